"""What happened to a run: one file per event, created and never changed (docs/contracts.md 9).

Recoveries, goodput and the report are computed from events alone, so any process can read the past of a run.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..errors import BadInput, Exists, NotFound, Unreachable
from ..spec.platform_traits import PlatformTraits
from ..store import records
from ..store.base import Store

KINDS = frozenset(
    [
        "run.created",
        "run.moved",
        "claim.taken",
        "claim.stopped",
        "claim.done",
        "slice.requested",
        "slice.ready",
        "slice.lost",
        "slice.back",
        "slice.released",
        "attempt.started",
        "attempt.ended",
        "train.restored",
        "train.first_step",
        "train.stopped",
        "train.stalled",
        "train.suspended",
        "train.resumed",
        "train.not_finite",
        "train.slices",
        "recovery.started",
        "recovery.finished",
        "checkpoint.saved",
        "checkpoint.proven",
        "checkpoint.rejected",
        "export.published",
        "evaluation.done",
        "gate.failed",
        "record.rebuilt",
    ]
)


_AT_A_TIME = 8  # concurrent requests of a reader; a storage client keeps ten connections


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
      time: when it was written, by the writer's clock.
      writer: trainer, stage, person, ...
      kind: one of `KINDS`.
      attempt: the process start that it belongs to, for writers that have attempts.
      step: the training step that it is about, if any.
      data: the fields of its kind.
    """

    time: datetime
    writer: str
    kind: str
    attempt: int | None = None
    step: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def is_simulated(traits: PlatformTraits, events: Iterable[Event]) -> bool:
    """Whether a run's figures are those of simulated slices: its platform's, or a test cluster's by its events."""
    return traits.simulated or any(e.data.get("simulated") for e in events if e.kind.startswith("slice."))


class EventLog:
    """Writes the events of one writer (`trainer`, `local`, `cli`, ...)."""

    def __init__(
        self,
        store: Store,
        writer: str,
        attempt: int | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store, self._writer, self._attempt, self._clock = store, writer, attempt, clock
        self._sequence = itertools.count()
        self._lock = threading.Lock()

    def write(
        self,
        kind: str,
        *,
        step: int | None = None,
        on_unreachable: Callable[[Unreachable], None] | None = None,
        **data: Any,
    ) -> Event:
        """Record that something happened now.

        Args:
          on_unreachable: called when the storage does not answer; when it returns, the same event is written again.
          data: the fields of this kind of event.

        Raises:
          ValueError: `kind` is not one of `KINDS`.
          Unreachable: the storage does not answer and there is no `on_unreachable`.
        """
        if kind not in KINDS:
            raise ValueError(f"unknown event kind {kind!r}")
        with self._lock:
            sequence = next(self._sequence)
        event = Event(self._clock(), self._writer, kind, self._attempt, step, data)
        stamp = records.timestamp(event.time)
        body: dict[str, Any] = {"time": stamp, "writer": self._writer, "kind": kind, "data": data}
        if self._attempt is not None:
            body["attempt"] = self._attempt
        if step is not None:
            body["step"] = step
        who = self._writer if self._attempt is None else f"{self._writer}{self._attempt}"
        name = f"events/{stamp.replace('-', '').replace(':', '')}-{who}-{sequence:04d}"
        self._create(name, records.dump(body), on_unreachable)
        return event

    def _create(self, name: str, body: bytes, on_unreachable: Callable[[Unreachable], None] | None) -> None:
        for again in itertools.count():
            whole = f"{name}{f'.{again}' if again else ''}.json"
            while True:
                try:
                    self._store.create(whole, body)
                    return
                except Exists:
                    if self._store.read(whole).data == body:
                        return  # the answer to an earlier call of this loop was lost
                    break  # another process wrote an event in the same millisecond: take another name
                except Unreachable as error:
                    if on_unreachable is None:
                        raise
                    on_unreachable(error)

    def hook(self, kind: str, data: Mapping[str, object]) -> None:
        """`write`, in the form of a driver's `OnEvent`."""
        more: dict[str, Any] = dict(data)
        self.write(kind, **more)


class EventReader:
    """Reads the events of a run in order; events never change, so each is fetched once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Event] = {}

    def all(self) -> list[Event]:
        """Every event so far, in order of time."""
        names = [entry.name for entry in self._store.list("events/")]
        new = [name for name in names if name not in self._known and name.endswith(".json")]
        if len(new) > 1:  # one request per event: a run of weeks has thousands, and a bucket answers many at a time
            with ThreadPoolExecutor(_AT_A_TIME) as readers:
                found = list(readers.map(self._read, new))
        else:
            found = [self._read(name) for name in new]
        self._known.update({name: event for name, event in zip(new, found, strict=True) if event is not None})
        return [self._known[name] for name in sorted(self._known)]

    def _read(self, name: str) -> Event | None:
        try:
            return parse(self._store.read(name).data, name)
        except (NotFound, BadInput):
            return None  # deleted meanwhile, or not an event


def parse(data: bytes, name: str) -> Event:
    """The event in the bytes of its file.

    Raises:
      BadInput: they are not an event, or a newer version wrote them.
    """
    record = records.load(data, name)
    attempt, step, more = record.get("attempt"), record.get("step"), record.get("data", {})
    sound = all(isinstance(record.get(key), str) for key in ("time", "writer", "kind")) and isinstance(more, dict)
    if not sound or not all(value is None or isinstance(value, int) for value in (attempt, step)):
        raise BadInput(f"{name}: not an event; the file was cut short, or elastic-tpu did not write it")
    try:
        when = records.parse_time(record["time"])
    except ValueError as error:
        raise BadInput(f"{name}: not an event ({error})") from error
    return Event(when, record["writer"], record["kind"], attempt, step, more)
