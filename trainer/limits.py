"""Which limit of the spec is spent. Pure: every duration is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from ..runs.errors import ExitCode
from ..runs.spec.run_spec import RunSpec
from ..runs.units import format_duration


@dataclass(frozen=True)
class Watch:
    """Seconds: in this phase, since the last step, and since the run's first attempt began.

    `phase`: as in status.json; suspended = slices that training holds are away (trainer/suspension.py).
    """

    phase: str
    in_phase: float
    without_step: float
    total: float


@dataclass(frozen=True)
class Overdue:
    """A limit that is spent. `now`: end the process without a save: there is nothing to save, or it hangs."""

    code: ExitCode
    reason: str
    now: bool


def overdue(watch: Watch, spec: RunSpec) -> Overdue | None:
    """The limit that is spent, if any.

    While slices are missing or suspended only `wait_for_slices` and `total` count: a run may stand still for long
    without being stalled. A stall (all slices there, no step) is infrastructure: a new process may succeed.
    """
    live = watch.phase in ("training", "saving", "stopping")
    recovery = spec.recovery_limits
    if watch.phase in ("waiting", "suspended") and watch.in_phase > recovery.wait_for_slices:
        limit = format_duration(recovery.wait_for_slices)
        return Overdue(
            ExitCode.LIMIT_SPENT, f"recovery.wait_for_slices ({limit}) is spent: the slices did not come back", True
        )
    if live and watch.without_step > recovery.stalled_after:
        limit = format_duration(recovery.stalled_after)
        return Overdue(
            ExitCode.INFRASTRUCTURE, f"stalled: no step for {limit} (recovery.stalled_after), all slices there", True
        )
    preparing = max(spec.limits.first_step, recovery.stalled_after)
    if watch.phase in ("starting", "restoring", "compiling") and watch.in_phase > preparing:
        limit = format_duration(preparing)
        field = "limits.first_step" if preparing == spec.limits.first_step else "recovery.stalled_after"
        return Overdue(ExitCode.INFRASTRUCTURE, f"stalled: {watch.phase} for {limit} ({field})", True)
    if watch.total > spec.limits.total:  # checked last: it asks for a save, and a save that hangs must count as a stall
        reason = f"limits.total ({format_duration(spec.limits.total)}) is spent"
        return Overdue(ExitCode.LIMIT_SPENT, reason, now=not live)
    return None
