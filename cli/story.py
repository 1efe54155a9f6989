"""A run's events in words, a line each. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ..runs.record import slice_counts
from ..runs.record.events import Event
from ..runs.record.recovery_events import RECOVERY_PARTS, RecoveryFinished, RecoveryStarted
from ..runs.units import show_duration


def line(event: Event) -> str | None:
    """The line for an event; None for events that a person need not see."""
    data = event.data
    say: dict[str, Callable[[], str | None]] = {
        "claim.taken": lambda: (
            f"driven by {data['holder']}" + (" (taken over)" if "taken over" in str(data.get("reason")) else "")
        ),
        "claim.stopped": lambda: f"stop asked for by {data.get('by') or data['holder']}",
        "slice.ready": lambda: f"{len(data['slices'])} slices ready",
        "slice.lost": lambda: (
            f"slice {data['slice']} lost: worker pid {data['pid']} died ({data['how']})"
            if "pid" in data
            else f"slice {data['slice']} lost: {data.get('how', 'its pods are gone')}"
        ),
        "slice.back": lambda: (
            f"slice {data['slice']} is back" + (f" (worker pid {data['pid']})" if "pid" in data else "")
        ),
        "slice.released": lambda: f"slice {data['slice']} released",
        "attempt.started": lambda: (
            f"{data.get('job', 'trainer')} started (pid {data['pid']})" if "pid" in data else None
        ),
        "train.first_step": lambda: f"first step done ({event.step})",
        "train.restored": lambda: f"restored checkpoint {event.step}",
        "train.stopped": lambda: f"training ended at step {event.step}: {data['why']}",
        "train.suspended": lambda: f"training waits for slice {', '.join(map(str, data['slices']))}: {data['why']}",
        "train.resumed": lambda: f"training goes on after {show_duration(data['seconds'], tenths=True)}",
        "train.stalled": lambda: f"{data['reason']}; the stacks of all threads are in the log",
        slice_counts.KIND: lambda: f"from step {event.step} on {slice_counts.batch_words(data)}",
        "train.not_finite": lambda: (
            f"the loss of step {event.step} is {data['loss']} (recovery.on_nan: {data['then']})"
        ),
        RecoveryStarted.KIND: lambda: f"recovering at step {event.step}: {RecoveryStarted.of(event).cause}",
        RecoveryFinished.KIND: lambda: recovery(RecoveryFinished.of(event)),
        "checkpoint.proven": lambda: f"checkpoint {event.step} proven ({data['files']} files)",
        "checkpoint.rejected": lambda: f"checkpoint {event.step} set aside: {'; '.join(data['why'][:2])}",
        "export.published": lambda: f"model of step {event.step} exported",
        "gate.failed": lambda: "the gate did not pass",
        "record.rebuilt": lambda: f"{data['file']} was damaged and is rebuilt; the damaged one is {data['aside']}",
        "attempt.ended": lambda: (
            f"{data.get('job', 'trainer')} ended, exit code {data['code']}: {data['reason']}"
            if data.get("code")
            else None
        ),
    }
    try:
        return say[event.kind]() if event.kind in say else None
    except (LookupError, TypeError, AttributeError):  # not the data of this kind: another program wrote the file
        return f"{event.kind} (its event is damaged)"


def recovery(finished: RecoveryFinished) -> str:
    """A finished recovery: steps, where, and how long each part took."""
    where = "same process" if finished.in_process else "new process"
    steps = f"reached {finished.reached}, restored {finished.restored}, {finished.steps_lost} lost"
    result = f"; {finished.result_words}" if finished.result else ""
    return f"recovered ({where}): {steps}; {recovery_parts(finished)}{result}"


def recovery_parts(finished: RecoveryFinished) -> str:
    """How long each part of a recovery took."""
    took = {part: show_duration(finished.seconds[part], tenths=True) for part in RECOVERY_PARTS}
    return ", ".join(f"{part.replace('_', ' ')} {duration}" for part, duration in took.items())
