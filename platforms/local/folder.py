"""The runtime folder of a run (`runtime_folder`): whether a supervisor serves there, and its removal."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from .runtime_folder import make_runtime_folder

NAMES = ("slices", "export", "evaluate")
"""The supervisors that a run can have."""


def lock_file(folder: Path, name: str) -> Path:
    """The lock that a supervisor holds while it lives; names its process."""
    return folder / f"{name}.lock"


def open_in_folder(path: Path) -> IO[str]:
    """Open a file of the folder to append to; a supervisor that has just ended may have removed the folder."""
    while True:
        make_runtime_folder(path.parent)
        with suppress(FileNotFoundError):
            # No link is followed: what is written must stay in this folder.
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            return open(descriptor, "a+")  # noqa: PTH123 - not of a path; for the caller


def is_at(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one at this path; not once the folder was removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def without(folder: Path, name: str) -> Iterator[bool]:
    """Hold the lock of a supervisor's name, so that none starts meanwhile; yields False if one has the lock."""
    try:
        lock = lock_file(folder, name).open("a+")
    except FileNotFoundError:
        yield True  # no supervisor of this run was started here
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def discard(folder: Path) -> None:
    """Remove the folder, with its sockets and logs, unless a supervisor serves there."""
    with ExitStack() as held:
        if all(held.enter_context(without(folder, name)) for name in NAMES):
            # Renamed first: a supervisor that starts meanwhile finds the whole folder or none.
            gone = folder.with_name(f"{folder.name}.gone-{os.getpid()}")
            with suppress(FileNotFoundError):
                folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
