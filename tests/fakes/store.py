"""Stores whose test decides when they answer: one in memory with a clock of its own, and a slow folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ...runs.errors import Changed, Exists, NotFound, Unreachable
from ...runs.store.base import LARGEST, Entry, Item, Store
from ...runs.store.posix import PosixStore

Hook = Callable[[str, Item | None, bytes], None]


class MemoryStore:
    """The `Store` protocol; one process, one thread.

    Attributes:
      clock: the storage's time, far from any local clock.
      before_write: called once, before the next conditional write is looked at: what others do meanwhile.
      fault: raised once by the next conditional write; `Unreachable` also leaves the write done when `carried_out`.
      on_commit: called with the name, the old item and the new bytes of every write that succeeds.
    """

    uri = "memory"

    def __init__(self, on_commit: Hook | None = None) -> None:
        self.clock = datetime(2001, 1, 1, tzinfo=UTC)
        self.before_write: Callable[[], object] | None = None
        self.fault: BaseException | None = None
        self.carried_out = False
        self._on_commit = on_commit
        self._items: dict[str, Item] = {}
        self._count = 0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock += timedelta(seconds=seconds)

    def read(self, name: str, largest: int = LARGEST) -> Item:
        if name not in self._items:
            raise NotFound(name)
        return self._items[name]

    def read_from(self, name: str, start: int) -> bytes:
        return self.read(name).data[start:]

    def create(self, name: str, data: bytes) -> str:
        return self._conditional(name, data, None, Exists(name))

    def replace(self, name: str, data: bytes, generation: str) -> str:
        return self._conditional(name, data, generation, Changed(name))

    def put(self, name: str, data: bytes) -> str:
        old = self._items.get(name)
        self._count += 1
        self._items[name] = Item(data, f"g{self._count}", self.clock)
        if self._on_commit:
            self._on_commit(name, old, data)
        return f"g{self._count}"

    def list(self, prefix: str = "") -> list[Entry]:
        found = sorted((name, item) for name, item in self._items.items() if name.startswith(prefix))
        return [Entry(name, len(item.data), item.generation, item.updated, None) for name, item in found]

    def delete(self, name: str, generation: str | None = None) -> None:
        if generation is not None and (name not in self._items or self._items[name].generation != generation):
            raise Changed(name)
        self._items.pop(name, None)

    def digest(self, name: str) -> str:
        return f"length:{len(self.read(name).data)}"

    def now(self) -> datetime:
        return self.clock

    def _conditional(self, name: str, data: bytes, generation: str | None, conflict: Exception) -> str:
        if meanwhile := self.before_write:
            self.before_write = None
            meanwhile()
        fault, self.fault = self.fault, None
        if fault and not self.carried_out:
            raise fault
        there = self._items.get(name)
        if (there.generation if there else None) != generation:
            raise conflict
        written = self.put(name, data)
        if fault:
            raise fault
        return written


class SlowStore(PosixStore):
    """A folder whose conditional writes over a generation wait while `open` is not set.

    Attributes:
      open: lets them through; set at first.
      writing: set once one has begun.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open, self.writing = threading.Event(), threading.Event()
        self.open.set()

    def replace(self, name: str, data: bytes, generation: str) -> str:
        self.writing.set()
        assert self.open.wait(20)
        return super().replace(name, data, generation)


def lost_answer() -> Unreachable:
    """What a driver sees when the storage does not answer."""
    return Unreachable("no answer")


_: type[Store] = MemoryStore
