"""Processes of the local platform: children that die with their parent, and identities that survive pid reuse."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from ...runs.record.claim import process_lives

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ProcessId:
    """A process, by pid and start time (seconds since 1970), so that a reused pid is told apart."""

    pid: int
    started: float

    def alive(self) -> bool:
        """Whether this very process still runs; False for a zombie."""
        return process_lives(f"{self.pid}:{self.started}")


def identify(pid: int) -> ProcessId:
    """The identity of the process with this pid; if there is none, one that is not alive."""
    import psutil

    try:
        return ProcessId(pid, psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return ProcessId(pid, 0.0)


def is_ours(pid: int, module: str) -> bool:
    """Whether the process with this pid is this user's and runs this module: a pid in a file proves neither."""
    import psutil

    try:
        process = psutil.Process(pid)
        return process.uids().real == os.getuid() and module in process.cmdline()
    except psutil.Error:
        return False


def spawn_child(
    argv: Sequence[str], output: IO[bytes], env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, out of reach of a terminal's Ctrl-C; it is killed if this process dies.

    Args:
      output: gets stdout and stderr.
      env: the whole environment; None for that of this process.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def die_with_parent() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=None if env is None else dict(env),
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def end_group(process: subprocess.Popen[bytes], signum: int) -> None:
    """Signal a child of `spawn_child` and its process group; does nothing if they are gone."""
    try:
        os.killpg(process.pid, signum)
    except (ProcessLookupError, PermissionError):
        return
