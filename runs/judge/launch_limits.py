"""Which limit before the first training step is spent: pure.

The launcher counts `limits.queue`, `limits.start` and `limits.first_step` where no trainer can: before there is one, or
while one is being started again. Once a step is done the trainer counts its own limits; lost slices are not a start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..record.status import Status
from ..spec.run_spec import Limits
from ..units import format_duration
from .verdict import Observation


@dataclass(frozen=True)
class SpentLimit:
    """A limit that is spent: its field in the spec (`limits.start`), and a message with what was waited for."""

    field: str
    reason: str


def spent_limit(
    seen: Observation, status: Status | None, limits: Limits, now: datetime, trains: bool = True
) -> SpentLimit | None:
    """The limit that is spent, if any.

    Args:
      status: status.json; an earlier trainer's unless `seen.trainer_lives`.
      now: by the clock that `seen.running_since` is of.
      trains: whether the job trains; others have no first step.
    """
    if seen.state == "queued":
        return _over("limits.queue", limits.queue, seen.waited, seen.detail or "still queued")
    if seen.state == "suspended":
        what = f"it ran and was put back; {seen.detail or 'still suspended'}"
        return _over("limits.queue", limits.queue, seen.waited, what)
    if seen.state == "over" and seen.relaunching:  # the trainer died, and the next one does not start
        return _over("limits.start", limits.start, seen.waited, seen.detail or "the job is still being started again")
    progressed = status is not None and (status.step >= 0 or status.recovery > 0 or status.proven_step is not None)
    if seen.state == "starting":
        if seen.trainer_lives and (progressed or seen.ran):
            return None
        return _over("limits.start", limits.start, seen.waited, seen.detail or "still starting")
    if seen.state != "running" or progressed or seen.running_since is None or not trains:
        return None
    said = "has written no status.json" if status is None else f"is {status.phase}"
    what = f"all slices are ready, no step is done and the trainer {said}"
    return _over("limits.first_step", limits.first_step, (now - seen.running_since).total_seconds(), what)


def _over(name: str, limit: float, waited: float, what: str) -> SpentLimit | None:
    return SpentLimit(name, f"{name} ({format_duration(limit)}) is spent: {what}") if waited > limit else None
