"""The trainer's view of its own simulated slices: which are alive, which were lost since it took them.

A held connection that breaks is a lost slice, even if the worker is back before anyone looks: the new one is another
process with nothing of the state. The supervisor restarts workers by itself, so asking for a slice back is a no-op.
"""

from __future__ import annotations

import json
import os
import select
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

_LONGEST_BASE = 50  # bytes; with user, run id and socket it stays below the 107 of a Unix socket's path


def runtime_folder(run_id: str) -> Path:
    """Sockets, locks and pids of a run on this machine: short (socket paths are limited), this user's only."""
    base = tempfile.gettempdir()
    return Path(base if len(base) <= _LONGEST_BASE else "/tmp") / f"elastic-tpu-{os.getuid()}" / run_id


def worker_socket(folder: Path, index: int) -> Path:
    """Where the worker of a slice answers."""
    return folder / f"s{index}.sock"


class LocalSlices:
    """Connections to the workers of a run's slices."""

    def __init__(self, run_id: str, count: int) -> None:
        self._folder = runtime_folder(run_id)
        self._count = count
        self._held: dict[int, socket.socket] = {}

    @property
    def all(self) -> frozenset[int]:
        """Indices of all slices of the run."""
        return frozenset(range(self._count))

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        """Take these slices for the coming attempt; returns those that answered."""
        self.close()
        for index in indices:
            connection = self._connect(index)
            if connection is not None:
                self._held[index] = connection
        return frozenset(self._held)

    def lost(self) -> frozenset[int]:
        """Held slices whose worker has died since they were taken."""
        return frozenset(index for index, connection in self._held.items() if _broken(connection))

    def alive(self) -> frozenset[int]:
        """Slices whose worker answers now."""
        found = set()
        for index in range(self._count):
            held = self._held.get(index)
            if held is not None and not _broken(held):
                found.add(index)
                continue
            probe = self._connect(index)
            if probe is not None:
                probe.close()
                found.add(index)
        return frozenset(found)

    def ask_back(self, indices: Iterable[int]) -> None:
        """The supervisor restarts lost workers unasked."""

    def close(self) -> None:
        """Let go of all slices."""
        for connection in self._held.values():
            connection.close()
        self._held.clear()

    def _connect(self, index: int) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(2.0)
        try:
            connection.connect(str(worker_socket(self._folder, index)))
            hello = json.loads(connection.makefile("rb").readline() or b"{}")
        except (OSError, ValueError):
            connection.close()
            return None
        if hello.get("slice") != index:
            connection.close()
            return None
        connection.setblocking(False)
        return connection


def _broken(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    if not readable:
        return False
    try:
        return not connection.recv(64)
    except BlockingIOError:
        return False
    except OSError:
        return True
