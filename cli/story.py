"""A run's events as lines that a person follows: pure."""

from __future__ import annotations

from collections.abc import Callable

from ..runs.record.events import Event


def line(event: Event) -> str | None:
    """One line for an event, or None for those that say nothing new to a person."""
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
        "recovery.started": lambda: f"recovering at step {event.step}: {data['cause']}",
        "recovery.finished": lambda: recovery(event),
        "checkpoint.proven": lambda: f"checkpoint {event.step} proven ({data['files']} files)",
        "checkpoint.rejected": lambda: f"checkpoint {event.step} set aside: {'; '.join(data['why'][:2])}",
        "export.published": lambda: f"model of step {event.step} exported",
        "gate.failed": lambda: "the gate did not pass",
        "attempt.ended": lambda: (
            f"{data.get('job', 'trainer')} ended, exit code {data['code']}: {data['reason']}"
            if data.get("code")
            else None
        ),
    }
    return say[event.kind]() if event.kind in say else None


def recovery(event: Event) -> str:
    """A finished recovery in a line."""
    data, seconds = event.data, event.data["seconds"]
    where = "same process" if data["in_process"] else "new process"
    parts = ", ".join(
        f"{name.replace('_', ' ')} {seconds[name]:.1f} s" for name in ("detect", "wait", "rebuild", "first_step")
    )
    steps = f"reached {data['reached']}, restored {data['restored']}, {data['steps_lost']} lost"
    return f"recovered ({where}): {steps}; {parts}"
