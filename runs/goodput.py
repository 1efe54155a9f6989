"""How the time of a run was spent, from its events.

goodput = seconds in steps that were not done again / seconds since all slices were first ready (contracts.md 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from .events import Event

RECOVERY_PARTS = ("detect", "wait", "rebuild", "first_step")


@dataclass(frozen=True)
class Recovery:
    """One recovery: what was lost, where each second went; not exact when a process died with its memory."""

    cause: str
    slices: tuple[int, ...]
    reached: int
    restored: int | None
    steps_lost: int
    seconds: dict[str, float]
    in_process: bool
    exact: bool
    time: datetime


@dataclass(frozen=True)
class Goodput:
    """Seconds by kind; they add up to `total`."""

    total: float
    productive: float
    seconds_by_kind: dict[str, float]
    recoveries: tuple[Recovery, ...]

    @property
    def ratio(self) -> float | None:
        """Between 0 and 1, or None before there was time to measure."""
        return self.productive / self.total if self.total > 0 else None

    @property
    def steps_lost(self) -> int:
        """Steps that had to be done again."""
        return sum(r.steps_lost for r in self.recoveries)


def recoveries(events: Sequence[Event]) -> list[Recovery]:
    """The recoveries that finished, in order."""
    return [
        Recovery(
            cause=str(e.data.get("cause", "")),
            slices=tuple(e.data.get("slices", ())),
            reached=int(e.data.get("reached", -1)),
            restored=e.data.get("restored"),
            steps_lost=int(e.data.get("steps_lost", 0)),
            seconds={part: float(e.data.get("seconds", {}).get(part, 0.0)) for part in RECOVERY_PARTS},
            in_process=bool(e.data.get("in_process", True)),
            exact=bool(e.data.get("exact", True)),
            time=e.time,
        )
        for e in events
        if e.kind == "recovery.finished"
    ]


def measure(events: Sequence[Event], end: datetime) -> Goodput:
    """Account for the time from the moment all slices were first ready until `end`."""
    ready = [e.time for e in events if e.kind == "slice.ready" and e.data.get("all")]
    begin = min(ready) if ready else min((e.time for e in events if e.kind == "attempt.started"), default=end)
    total = max(0.0, (end - begin).total_seconds())
    stretches = [e for e in events if e.kind in ("recovery.started", "train.stopped")]
    trained = sum(float(e.data.get("trained_seconds", 0.0)) for e in stretches)
    done = recoveries(events)
    repeated = sum(float(e.data.get("repeated_seconds", 0.0)) for e in events if e.kind == "recovery.finished")
    productive = max(0.0, min(total, trained - repeated))
    kinds = {"training": productive, "repeated": min(repeated, total)}
    for part in RECOVERY_PARTS:
        kinds[part] = sum(r.seconds[part] for r in done)
    first = min((e.time for e in events if e.kind == "train.first_step"), default=end)
    kinds["start"] = max(0.0, (first - begin).total_seconds())
    kinds["other"] = max(0.0, total - sum(kinds.values()))
    return Goodput(total, productive, {k: round(v, 3) for k, v in kinds.items()}, tuple(done))
