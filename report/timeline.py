"""Slices and jobs of a run over time: its events as lanes of spans, one a slice, one for training, one a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..runs.record.events import Event

# The state of a slice after an event about it, None: the slice is gone; and that of training.
_SLICE: Mapping[str, str | None] = {
    "slice.requested": "requested",
    "slice.ready": "ready",
    "slice.lost": "lost",
    "slice.back": "ready",
    "slice.released": None,
}
_TRAINING: Mapping[str, str | None] = {
    "attempt.started": "starting",
    "train.first_step": "training",
    "train.suspended": "suspended",
    "train.resumed": "training",
    "recovery.started": "recovering",
    "recovery.finished": "training",
    "train.stopped": "ending",
    "attempt.ended": None,
}


@dataclass(frozen=True)
class Span:
    """A stretch of time in one state; `note` is its cause in words, if one is known."""

    state: str
    begin: datetime
    end: datetime
    note: str = ""

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True)
class Lane:
    """The spans of one slice, or of one job, in order."""

    name: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Timeline:
    """All lanes over one stretch of time."""

    begin: datetime
    end: datetime
    lanes: tuple[Lane, ...]


def timeline(events: Sequence[Event], ends: Mapping[tuple[str, int], datetime], until: datetime) -> Timeline | None:
    """The lanes of a run; None when no slice was asked for and no job started.

    Args:
      events: all of the run's, by time.
      ends: when each (job, attempt) ended, if that is known: a process that was killed wrote no event.
      until: where spans that are open end.
    """
    marks: dict[str, list[tuple[datetime, str | None, str]]] = {}
    for event in events:
        for index in _slices(event.data):
            if event.kind in _SLICE:
                mark = (event.time, _SLICE[event.kind], str(event.data.get("how", "")))
                marks.setdefault(f"slice {index}", []).append(mark)
        if event.writer == "trainer" and event.kind in _TRAINING:
            lane = marks.setdefault("training", [])
            # Slices that are away are told of a start or a recovery as well: that is what it is then.
            needs = {"train.suspended": "training", "train.resumed": "suspended"}.get(event.kind)
            if needs is None or (lane and lane[-1][1] == needs):
                lane.append((event.time, _TRAINING[event.kind], _note(event)))
        elif event.kind in ("attempt.started", "attempt.ended") and event.writer in ("export", "evaluate"):
            state = "working" if event.kind == "attempt.started" else None
            marks.setdefault(event.writer, []).append((event.time, state, _note(event)))
    for (job, number), end in ends.items():
        ended = marks.get("training" if job == "train" else job)
        if ended is not None:
            ended.append((end, None, f"attempt {number} ended"))
    if not marks:
        return None
    lanes = tuple(Lane(name, _spans(sorted(marks[name], key=lambda m: m[0]), until)) for name in _order(marks))
    return Timeline(events[0].time, max(until, events[-1].time), lanes)


def _spans(marks: Sequence[tuple[datetime, str | None, str]], until: datetime) -> tuple[Span, ...]:
    ends = [*(when for when, _, _ in marks[1:]), until]
    pairs = zip(marks, ends, strict=True)
    return tuple(Span(state, begin, max(begin, end), note) for (begin, state, note), end in pairs if state)


def _slices(data: Mapping[str, Any]) -> list[int]:
    """The slices that an event is about."""
    several = data.get("slices")
    named = several if isinstance(several, (list, tuple)) else [data.get("slice")]
    return [index for index in named if isinstance(index, int)]


def _note(event: Event) -> str:
    return str(event.data.get("cause") or event.data.get("why") or event.data.get("reason") or "")


def _order(names: Mapping[str, object]) -> list[str]:
    """Names of lanes: slices by number, then training, then the jobs after it."""
    after = ["training", "export", "evaluate"]
    slices = sorted((name for name in names if name not in after), key=lambda name: int(name.rpartition(" ")[2]))
    return slices + [name for name in after if name in names]
