"""How the time of a run was spent, from its events.

goodput = seconds in steps that were not done again / seconds since all slices were first ready (contracts.md 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..record.events import Event

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
    """Account for the time from the moment all slices were first ready until `end`.

    The first step of a process or of a recovery holds the compilation, so it counts as start or recovery, not as
    training. What events do not explain is `other`; where they claim more than there was (a process that died kept no
    exact account), training gives way.
    """
    ready = [e.time for e in events if e.kind == "slice.ready" and e.data.get("all")]
    begin = min(ready) if ready else min((e.time for e in events if e.kind == "attempt.started"), default=end)
    total = max(0.0, (end - begin).total_seconds())
    done = recoveries(events)
    firsts = [e for e in events if e.kind == "train.first_step"]
    first = min((e.time for e in firsts), default=end)
    later = sum(_seconds(e, "seconds") for e in firsts[1:])
    stretches = [e for e in events if e.kind in ("recovery.started", "train.stopped")]
    trained = sum(_seconds(e, "trained_seconds") for e in stretches)
    repeated = sum(_seconds(e, "repeated_seconds") for e in events if e.kind == "recovery.finished")
    early = sum(sum(r.seconds.values()) for r in done if r.time <= first)  # lost before the very first step
    claimed = {"start": (first - begin).total_seconds() - early}
    claimed |= {part: sum(r.seconds[part] for r in done) for part in RECOVERY_PARTS}
    claimed["first_step"] += later
    claimed["repeated"] = repeated
    claimed["training"] = trained - repeated - claimed["first_step"] - sum(_seconds(e, "seconds") for e in firsts[:1])
    left, kinds = total, {}
    for kind, seconds in claimed.items():
        kinds[kind] = round(min(left, max(0.0, seconds)), 3)
        left = max(0.0, left - kinds[kind])
    kinds["other"] = round(left, 3)
    return Goodput(total, kinds["training"], kinds, tuple(done))


def _seconds(event: Event, name: str) -> float:
    value = event.data.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
