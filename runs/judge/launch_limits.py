"""Which of the limits that count before training gets going is spent: pure.

`limits.queue`, `limits.start` and `limits.first_step` are the launcher's where nobody else could count them: a trainer
that is not there has no clock, be it the first one or one that should follow another. Once a step was done the living
trainer's own limits count, and a loss of slices is not a start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..record.status import Status
from ..spec.run_spec import Limits, format_duration
from .verdict import Observation


@dataclass(frozen=True)
class Spent:
    """A limit that is spent: its field in the spec, and what was waited for."""

    limit: str
    reason: str


def spent(seen: Observation, status: Status | None, limits: Limits, now: datetime, trains: bool = True) -> Spent | None:
    """The limit that is spent, if any.

    Args:
      status: of the trainer, perhaps of one before this job.
      trains: whether the job trains; others have no first step.
    """
    if seen.state == "queued":
        return _over("limits.queue", limits.queue, seen.waited, seen.detail or "still queued")
    if seen.state == "suspended":
        what = f"it ran and was put back; {seen.detail or 'still suspended'}"
        return _over("limits.queue", limits.queue, seen.waited, what)
    if seen.state == "over" and seen.relaunching:  # the head died, and what should follow it does not come
        return _over("limits.start", limits.start, seen.waited, seen.detail or "the job is still being started again")
    got_on = status is not None and (status.step >= 0 or status.recovery > 0 or status.proven_step is not None)
    if seen.state == "starting":
        lives = seen.evidence.get("trainer_lives", True)
        if lives and (got_on or seen.evidence.get("ran")):
            return None
        return _over("limits.start", limits.start, seen.waited, seen.detail or "still starting")
    since = seen.evidence.get("running_since")
    if seen.state != "running" or got_on or not since or not trains:
        return None
    said = "has written no status.json" if status is None else f"is {status.phase}"
    what = f"all slices are ready, no step is done and the trainer {said}"
    return _over("limits.first_step", limits.first_step, (now - datetime.fromisoformat(since)).total_seconds(), what)


def _over(name: str, limit: float, waited: float, what: str) -> Spent | None:
    return Spent(name, f"{name} ({format_duration(limit)}) is spent: {what}") if waited > limit else None
