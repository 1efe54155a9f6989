"""For the trainer: which of its simulated slices are alive, and which were lost since it took them.

The trainer holds a connection to each worker. One that breaks means a lost slice, even if a new worker answers before
the trainer looks, since the new process has none of the state. A slice has one worker, or one for each VM, and is lost
with any of them. The supervisor restarts lost workers by itself, so asking for a slice back does nothing.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterable
from pathlib import Path

from .runtime_folder import runtime_folder


def worker_socket(folder: Path, index: int, vm: int | None = None) -> Path:
    """The socket of a slice's worker; with `vm`, that of the worker of one VM."""
    return folder / (f"s{index}.sock" if vm is None else f"s{index}-{vm}.sock")


class LocalSlices:
    """Connections to the workers of a run's slices.

    Args:
      count: slices of the run.
      vms: workers of a slice, one for each VM.
    """

    def __init__(self, run_id: str, count: int, vms: int = 1) -> None:
        self._folder = runtime_folder(run_id)
        self._count = count
        self._vms: tuple[int | None, ...] = tuple(range(vms)) if vms > 1 else (None,)
        self._held: dict[int, list[socket.socket]] = {}

    @property
    def all(self) -> frozenset[int]:
        """Indices of all slices of the run."""
        return frozenset(range(self._count))

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        """Connect to the workers of these slices, dropping earlier connections. Returns the slices that answered."""
        self.close()
        for index in indices:
            connections = self._connect(index)
            if connections is not None:
                self._held[index] = connections
        return frozenset(self._held)

    def lost(self, timeout: float = 0.0) -> frozenset[int]:
        """Held slices with a broken connection: a worker died. Never waits, since a broken connection shows at once."""
        return frozenset(index for index, held in self._held.items() if any(map(_broken, held)))

    def alive(self) -> frozenset[int]:
        """Slices whose workers all answer now."""
        found = set()
        for index in range(self._count):
            held = self._held.get(index)
            if held is not None and not any(map(_broken, held)):
                found.add(index)
                continue
            probes = self._connect(index)
            if probes is not None:
                _close(probes)
                found.add(index)
        return frozenset(found)

    def away(self) -> dict[int, str]:
        """Held slices of which a worker does not answer now; asks by connections of its own, for any thread."""
        found = {}
        for index in list(self._held):
            probes = self._connect(index)
            if probes is None:
                found[index] = "its worker does not answer"
            else:
                _close(probes)
        return found

    def ask_back(self, indices: Iterable[int]) -> None:
        """Does nothing: the supervisor restarts lost workers by itself."""

    def close(self) -> None:
        """Close all connections."""
        for connections in self._held.values():
            _close(connections)
        self._held.clear()

    def _connect(self, index: int) -> list[socket.socket] | None:
        """Connections to all workers of a slice, or None if one does not answer."""
        connections: list[socket.socket] = []
        for vm in self._vms:
            connection = self._connect_to(index, vm)
            if connection is None:
                _close(connections)
                return None
            connections.append(connection)
        return connections

    def _connect_to(self, index: int, vm: int | None) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(2.0)
        try:
            connection.connect(str(worker_socket(self._folder, index, vm)))
            hello = json.loads(connection.makefile("rb").readline() or b"{}")
        except (OSError, ValueError):
            connection.close()
            return None
        if (hello.get("slice"), hello.get("vm", 0)) != (index, vm or 0):
            connection.close()
            return None
        connection.setblocking(False)
        return connection


def _close(connections: Iterable[socket.socket]) -> None:
    for connection in connections:
        connection.close()


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
