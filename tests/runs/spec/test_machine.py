"""A container's memory limit counts as the machine's memory: what exceeds it is killed, whatever the machine has."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from elastic_tpu.runs.spec import machine
from elastic_tpu.runs.spec.machine import memory_limit
from elastic_tpu.runs.units import GIB

V2 = "0::{path}\n"
V1 = "11:cpu,cpuacct:/\n9:memory:{path}\n0::/\n"
NO_LIMIT_V1 = "9223372036854771712"


def host(folder: Path, proc: str, path: str, limits: dict[str, str]) -> tuple[Path, Path]:
    """A cgroup filesystem with these files, and what /proc/self/cgroup says of a process in `path`."""
    for name, text in limits.items():
        file = folder / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    (folder / "self").write_text(proc.format(path=path))
    return folder / "cgroup", folder / "self"


@pytest.mark.parametrize(
    ("proc", "path", "limits", "expected"),
    [
        (V2, "/", {"memory.max": str(2 * GIB)}, 2 * GIB),  # a container sees its own group as the root
        (V2, "/", {"memory.max": "max"}, None),
        (V2, "/a/b", {"a/memory.max": str(2 * GIB), "a/b/memory.max": "max"}, 2 * GIB),
        (V2, "/a/b", {"a/memory.max": str(4 * GIB), "a/b/memory.max": str(3 * GIB)}, 3 * GIB),
        (V2, "/a", {"a/memory.max": "max", "z/memory.max": "1"}, None),  # another's group
        (V1, "/docker/1", {"memory/memory.limit_in_bytes": str(2 * GIB)}, 2 * GIB),
        (V1, "/a", {"memory/memory.limit_in_bytes": NO_LIMIT_V1, "memory/a/memory.limit_in_bytes": "7"}, 7),
        (V2, "/../..", {}, None),  # a process outside of what is mounted here
        (V2, "/", {"memory.max": "something else"}, None),
        ("", "", {}, None),
    ],
)
def test_the_smallest_limit_of_the_own_groups_counts(
    tmp_path: Path, proc: str, path: str, limits: dict[str, str], expected: int | None
) -> None:
    assert memory_limit(*host(tmp_path, proc, path, limits)) == expected


def test_a_machine_without_groups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "none", tmp_path / "none") is None


def test_the_machine_has_what_a_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    total = psutil.virtual_memory().total
    for limit, expected in ((None, total), (2 * GIB, 2 * GIB), (int(NO_LIMIT_V1), total)):
        monkeypatch.setattr(machine, "memory_limit", lambda limit=limit: limit)
        assert machine.memory() == expected
        said = "this process may use 2 GiB of the machine's" in machine.limit_words()
        assert said == (expected != total)
