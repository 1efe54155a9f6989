"""What a command prints, and what happens when nobody reads it (`| head -1`) or it cannot be written (a full disk)."""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress

from ..runs.errors import ExitCode

UNREAD = 128 + signal.SIGPIPE
"""Exit code of a command whose output nobody reads any more: what a shell says of a program that SIGPIPE ended."""

# Of a write to the output; an error of a named file is another one.
_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def is_of_output(error: OSError) -> bool:
    """Whether an error is of the command's output, not of a file."""
    return error.filename is None and error.errno in _UNWRITTEN


def give_up(error: OSError) -> int:
    """Discard all further output; returns the exit code. Nothing is said if only the reader is gone."""
    _discard()
    if isinstance(error, BrokenPipeError):
        return UNREAD
    with suppress(OSError):
        print(f"error: the output cannot be written: {os.strerror(error.errno or 0)}", file=sys.stderr)  # noqa: T201
    return int(ExitCode.INFRASTRUCTURE)


def flush() -> int:
    """Write what is still in memory; returns the exit code if that fails, else 0."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return give_up(error)
    return 0


def _discard() -> None:
    # The stream keeps what it could not write, and Python would try again at its end: so not the stream but its file.
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
