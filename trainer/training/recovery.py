"""The story of one recovery while it happens: what was lost, and where each second goes.

detect: from the last step that was completed to the error; wait: until enough slices are up; rebuild: set-up, restore
and compilation; first_step: the first new step. Written as one event when the first new step is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...runs.record.status import Status


@dataclass
class StepTimes:
    """Wall seconds of the steps of one stretch of training, so that lost ones can be taken off exactly."""

    seconds: dict[int, float] = field(default_factory=dict)
    total: float = 0.0
    first: int | None = None

    def add(self, step: int, seconds: float) -> None:
        """A step was completed."""
        if self.first is None:
            self.first = step
        self.seconds[step] = seconds
        self.total += seconds

    def after(self, step: int) -> float:
        """Seconds spent in steps later than this one; the first of the stretch, which compiled, is told elsewhere."""
        return sum(seconds for s, seconds in self.seconds.items() if s > step and s != self.first)

    def forget_until(self, step: int) -> None:
        """Steps up to here are proven; they cannot be lost any more."""
        self.seconds = {s: seconds for s, seconds in self.seconds.items() if s > step}


@dataclass
class Recovering:
    """A recovery that has begun. Steps are numbers of completed steps, -1 before the first."""

    cause: str
    slices: list[int]
    reached: int
    began: float
    detect: float
    lost_times: StepTimes
    in_process: bool = True
    mean_step_seconds: float = 0.0
    ready: float | None = None
    training: float | None = None
    restored: int = -1

    def finished(self, now: float) -> dict[str, Any]:
        """The data of recovery.finished."""
        ready = self.ready if self.ready is not None else self.began
        training = self.training if self.training is not None else ready
        reached = max(self.reached, self.restored)  # a step that was saved and never told was reached
        lost = reached - self.restored
        repeated = self.lost_times.after(self.restored) if self.in_process else lost * self.mean_step_seconds
        seconds = {
            "detect": self.detect,
            "wait": ready - self.began,
            "rebuild": training - ready,
            "first_step": now - training,
        }
        return {
            "cause": self.cause,
            "slices": self.slices,
            "reached": reached,
            "restored": self.restored,
            "steps_lost": lost,
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "repeated_seconds": round(repeated, 3),
            "in_process": self.in_process,
            "exact": self.in_process,
        }


def after_a_dead_process(before: Status | None, clock: Callable[[], float] = time.monotonic) -> Recovering | None:
    """The recovery that a new process is for an earlier one that did not finish; None when nothing is to recover."""
    if before is None or before.step < 0 or (before.phase == "ended" and before.exit in (0, 76)):
        return None
    cause = before.reason or "the trainer process died"
    now = clock()
    return Recovering(
        cause, [], before.step, now, 0.0, StepTimes(), in_process=False, mean_step_seconds=before.step_seconds or 0.0
    )
