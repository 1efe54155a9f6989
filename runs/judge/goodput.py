"""How the time of a run was spent, from its events.

goodput = seconds in steps that were not done again / seconds since all slices were first ready (docs/contracts.md 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..record.events import Event
from ..record.recovery_events import RECOVERY_PARTS, RecoveryFinished, RecoveryStarted, finished_recoveries


@dataclass(frozen=True)
class Goodput:
    """Seconds by kind; they add up to `total`. `productive`: in steps that were not done again."""

    total: float
    productive: float
    seconds_by_kind: dict[str, float]
    recoveries: tuple[RecoveryFinished, ...]

    @property
    def ratio(self) -> float | None:
        """Between 0 and 1, or None before there was time to measure."""
        return min(1.0, self.productive / self.total) if self.total > 0 else None  # kinds are rounded, perhaps up

    @property
    def steps_lost(self) -> int:
        """Steps that had to be done again."""
        return sum(r.steps_lost for r in self.recoveries)


def measure(events: Sequence[Event], end: datetime) -> Goodput:
    """Account for the time from the moment all slices were first ready until `end`.

    The first step of a process or of a recovery holds the compilation, so it counts as start or recovery, not as
    training. A step that waited for slices that were away is training without that time, which is `suspended`; in a
    start or a recovery it is part of those. A later process that recovers nothing starts as well: from its
    `attempt.started` to its first step. What events do not explain is `other`. Where they add up to more than the
    total (of a process that died they hold estimates), the excess is taken off training, then off the kinds before it.
    """
    ready = [e.time for e in events if e.kind == "slice.ready" and e.data.get("all")]
    begin = min(ready) if ready else min((e.time for e in events if e.kind == "attempt.started"), default=end)
    total = max(0.0, (end - begin).total_seconds())
    done = finished_recoveries(events)
    firsts = [e for e in events if e.kind == "train.first_step"]
    first = min((e.time for e in firsts), default=end)
    # Of a recovery in a new process no first step is told, so these are starts after an end in order.
    starts = [_start_before(e, events) for e in firsts[1:]]
    later = sum(_seconds(e, "seconds") for e, start in zip(firsts[1:], starts, strict=True) if start is None)
    in_start = sum(_seconds(e, "seconds") for e, start in zip(firsts, [begin, *starts], strict=False) if start)
    trained = sum(RecoveryStarted.of(e).trained_seconds for e in events if e.kind == RecoveryStarted.KIND)
    trained += sum(_seconds(e, "trained_seconds") for e in events if e.kind == "train.stopped")
    repeated = sum(r.repeated_seconds for r in done)
    # Recoveries from losses before the run's first step lie inside the time until that step.
    early = sum(r.total_seconds for r in done if r.time is not None and r.time <= first)
    spent = {"start": (first - begin).total_seconds() - early}
    spent["start"] += sum(
        (e.time - start).total_seconds() for e, start in zip(firsts[1:], starts, strict=True) if start
    )
    spent |= {part: sum(r.seconds[part] for r in done) for part in RECOVERY_PARTS}
    spent["first_step"] += later
    spent["suspended"] = _suspended(events, end)
    spent["repeated"] = repeated
    spent["training"] = trained - repeated - spent["first_step"] - in_start
    left, kinds = total, {}
    for kind, seconds in spent.items():
        kinds[kind] = round(min(left, max(0.0, seconds)), 3)
        left = max(0.0, left - kinds[kind])
    kinds["other"] = round(left, 3)
    return Goodput(total, kinds["training"], kinds, tuple(done))


_TRAINS = ("train.first_step", RecoveryFinished.KIND)
_TRAINS_NOT = (RecoveryStarted.KIND, "train.stopped", "attempt.started", "attempt.ended")


def _suspended(events: Sequence[Event], end: datetime) -> float:
    """Seconds in which training waited for slices that were away; also if that goes on, or the process ended in it."""
    training, since, total = False, None, 0.0
    for event in (e for e in events if e.writer == "trainer"):
        over = event.kind == "train.resumed" or event.kind in _TRAINS_NOT
        if since is not None and over:
            took = (event.time - since).total_seconds()
            total += _seconds(event, "seconds") if event.kind == "train.resumed" else took
            since = None
        if event.kind == "train.suspended" and training:
            since = event.time
        training = (training or event.kind in _TRAINS) and event.kind not in _TRAINS_NOT
    return total + (0.0 if since is None else max(0.0, (end - since).total_seconds()))


def _start_before(first_step: Event, events: Sequence[Event]) -> datetime | None:
    """When the process of this first step started; None if that was not told."""
    return max(
        (
            e.time
            for e in events
            if e.kind == "attempt.started" and e.writer == first_step.writer and e.time <= first_step.time
        ),
        default=None,
    )


def _seconds(event: Event, name: str) -> float:
    value = event.data.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
