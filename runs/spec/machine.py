"""The memory that a process of this machine may use: the machine's, or the limit of its control group (a container's).

Linux ends what exceeds the limit of a group, and each group above counts as well.
https://docs.kernel.org/admin-guide/cgroup-v2.html, `memory.max`;
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html, `memory.limit_in_bytes`
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from ..units import show_size

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def memory() -> int:
    """Bytes that this process may use."""
    total = int(psutil.virtual_memory().total)
    return min(total, memory_limit() or total)


def limit_words() -> str:
    """That a limit and not the machine bounds the memory, for a message; empty if none does."""
    total, usable = int(psutil.virtual_memory().total), memory()
    if usable == total:
        return ""
    return f" (this process may use {show_size(usable)} of the machine's {show_size(total)}: a container's limit)"


def memory_limit(groups: Path = _GROUPS, own: Path = _OWN) -> int | None:
    """The smallest memory limit, in bytes, of this process's control groups; None if they have none.

    Args:
      groups: where control groups are mounted.
      own: the file that names those of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:  # another system than Linux
        return None
    limits = (_number(file) for line in lines for file in _files(line, groups))
    return min((limit for limit in limits if limit), default=None)


def _files(line: str, groups: Path) -> Iterator[Path]:
    """The files with the limits of a group and of those above it, by its line ``number:controllers:path``."""
    _, controllers, path = line.split(":", 2)
    if not controllers:
        top, name = groups, "memory.max"
    elif "memory" in controllers.split(","):
        top, name = groups / "memory", "memory.limit_in_bytes"
    else:
        return
    # In a container the path may be that of the host; then only the mount's root is there, which is the container's.
    group = top / path.lstrip("/")
    yield from (folder / name for folder in (group, *group.parents) if folder.is_relative_to(top))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such group here; "max": no limit
        return None
