"""One recovery while it happens: what was lost, and where each second goes.

detect: from the last step that was completed to the error; wait: until enough slices are up; rebuild: set-up, restore
and compilation; first_step: the first new step. Two events tell it: one when it begins, one when the first new step is
done (runs/record/recovery_events.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...runs.record.recovery_events import IDENTICAL, RecoveryFinished, RecoveryStarted
from ...runs.record.status import Status
from ..session import TrainerSession


@dataclass
class StepTimes:
    """Wall seconds of the steps since the last restore, so that lost ones can be taken off exactly.

    `seconds`: by step; `total`: of all steps; `first`: the first step, which compiled.
    """

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
        """Seconds in steps later than this one, the first step left out: it counts as start or as recovery."""
        return sum(seconds for s, seconds in self.seconds.items() if s > step and s != self.first)

    def forget_until(self, step: int) -> None:
        """Drop the steps up to this one, which are proven and so cannot be lost; `total` stays."""
        self.seconds = {s: seconds for s, seconds in self.seconds.items() if s > step}


@dataclass
class Recovering:
    """A recovery that has begun. Steps are numbers of completed steps, -1 before the first.

    Attributes:
      cause: in words.
      slices: that were lost.
      reached: last step that was completed.
      began: when the error was judged; this, `ready` and `training` in monotonic seconds.
      detect: seconds from the last completed step to `began`.
      lost_times: of the steps that this process did before the error.
      in_process: False when this process follows one that died.
      mean_step_seconds: of the process that died, to estimate the seconds of its lost steps.
      ready: when enough slices were up.
      training: when the first new step began.
      restored: step of the checkpoint, -1 when there was none.
      result: as in `RecoveryFinished`.
    """

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
    result: str = IDENTICAL

    def fail_again(self, why: str, slices: list[int]) -> None:
        """Note another error before the first new step: it belongs to the same recovery."""
        self.cause, self.slices = f"{self.cause}; {why}", sorted({*self.slices, *slices})
        self.training = None

    def started(self, trained_seconds: float) -> RecoveryStarted:
        """What recovery.started tells; `trained_seconds` in steps since the recovery before this one."""
        return RecoveryStarted(
            cause=self.cause,
            slices=tuple(self.slices),
            reached=self.reached,
            in_process=self.in_process,
            detect=self.detect,
            trained_seconds=trained_seconds,
        )

    def finished(self, now: float) -> RecoveryFinished:
        """What recovery.finished tells; `now` is when the first new step was done."""
        ready = self.ready if self.ready is not None else self.began
        training = self.training if self.training is not None else ready
        # A step may be saved and proven although the process died before a heartbeat reported it.
        reached = max(self.reached, self.restored)
        lost = reached - self.restored
        repeated = self.lost_times.after(self.restored) if self.in_process else lost * self.mean_step_seconds
        seconds = {
            "detect": self.detect,
            "wait": ready - self.began,
            "rebuild": training - ready,
            "first_step": now - training,
        }
        return RecoveryFinished(
            cause=self.cause,
            slices=tuple(self.slices),
            reached=reached,
            restored=self.restored,
            steps_lost=lost,
            seconds=seconds,
            repeated_seconds=repeated,
            in_process=self.in_process,
            account="exact" if self.in_process else "estimated",
            result=self.result,
        )


def after_a_dead_process(before: Status | None, clock: Callable[[], float] = time.monotonic) -> Recovering | None:
    """The recovery that a new process begins with, after one that did not finish; None when nothing is to recover.

    Args:
      before: last status of the earlier process.
      clock: monotonic seconds.
    """
    if before is None or before.step < 0 or (before.phase == "ended" and before.exit in (0, 76)):
        return None
    cause = before.reason or "the trainer process died"
    now = clock()
    return Recovering(
        cause, [], before.step, now, 0.0, StepTimes(), in_process=False, mean_step_seconds=before.step_seconds or 0.0
    )


def tell_started(session: TrainerSession, recovering: Recovering, trained_seconds: float) -> None:
    """Record recovery.started and show it in the status.

    Args:
      trained_seconds: in steps since the recovery before this one. The status counts from 0 again afterwards, so that
        a later process does not record them a second time.
    """
    beat = session.heartbeat
    number = beat.status.recovery + (1 if recovering.in_process else 0)
    beat.update(phase="waiting", recovery=number, reason=recovering.cause)
    started = recovering.started(trained_seconds)
    session.event(started.KIND, step=started.reached, **started.data())
    beat.update(trained_seconds=0.0)


def tell_finished(session: TrainerSession, recovering: Recovering, step: int, now: float) -> None:
    """Record recovery.finished: the first new step, `step`, was done at `now`."""
    finished = recovering.finished(now)
    session.event(finished.KIND, step=step, **finished.data())
