"""The folder of a run's sockets, locks and logs on this machine: where it is, and that it is this user's alone."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ...runs.errors import BadInput

_LONGEST_BASE = 50  # bytes; with user, run id and socket it stays below the 107 of a Unix socket's path


def runtime_folder(run_id: str) -> Path:
    """This user's folder for a run's sockets, locks and logs on this machine; short, as a socket's path must be.

    Its name can be guessed, and anybody may make a folder in /tmp. So it is looked at whenever it is used: what another
    user could write into it would name processes to end, and files to write to.

    Raises:
      BadInput: it is not this user's alone; names the cure.
    """
    base = tempfile.gettempdir() if not why_not_tmpdir() else "/tmp"
    return checked(Path(base) / f"elastic-tpu-{os.getuid()}" / run_id)


def checked(folder: Path) -> Path:
    """A folder of `runtime_folder`, looked at anew: somebody may have made it since."""
    for level in (folder.parent, folder):
        _require_private(level)
    return folder


def why_not_tmpdir() -> str:
    """Why /tmp is taken in place of TMPDIR; empty if it is not."""
    base = tempfile.gettempdir()
    short = len(base.encode()) <= _LONGEST_BASE
    return "" if short else f"TMPDIR is too long for the paths of sockets, so they are below /tmp: {base}"


def make_runtime_folder(folder: Path) -> None:
    """Make a folder of `runtime_folder`, both levels for this user alone."""
    for level in (folder.parent, folder):
        level.mkdir(mode=0o700, exist_ok=True)
        _require_private(level)


def _require_private(level: Path) -> None:
    try:
        found = level.lstat()
    except FileNotFoundError:
        return
    cure = "remove it, or set TMPDIR to a folder of your own"
    if not stat.S_ISDIR(found.st_mode):
        raise BadInput(f"{level}: is no folder but a file or a link, so it may lead elsewhere; {cure}")
    if found.st_uid != os.getuid():
        raise BadInput(f"{level}: belongs to another user (uid {found.st_uid}); {cure}")
    if found.st_mode & 0o022:
        raise BadInput(f"{level}: others may write into it (mode {stat.S_IMODE(found.st_mode):o}); {cure}")
    if found.st_mode & 0o077:
        level.chmod(0o700)
