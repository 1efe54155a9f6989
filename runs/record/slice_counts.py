"""The event of another number of slices that train than before, and what it means for the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .events import Event

KIND = "train.slices"


def data(active: int, batches: Mapping[int, int]) -> dict[str, int]:
    """The data of the event.

    Args:
      active: slices that train now.
      batches: sequences a step, by number of slices; the largest number is that of the spec.
    """
    wanted = max(batches)
    return {"active": active, "wanted": wanted, "global_batch": batches[active], "full_batch": batches[wanted]}


def batch_words(told: Mapping[str, object]) -> str:
    """What the slices of an event's data mean for training."""
    batch, full = told["global_batch"], told["full_batch"]
    instead = "" if batch == full else f" instead of {full}, the learning rate stays"
    return f"{told['active']} of {told['wanted']} slices, global batch {batch}{instead}"


def batch_of(step: int, events: Iterable[Event], full: int) -> int:
    """Sequences of a step that is kept.

    Args:
      events: of the run, in order of time: of two changes before the step the later one holds.
      full: sequences of a step on all slices.
    """
    told = [e for e in events if e.kind == KIND and e.step is not None and e.step <= step]
    batch = told[-1].data.get("global_batch") if told else None
    return batch if isinstance(batch, int) else full


def changes(events: Iterable[Event]) -> list[str]:
    """Each change of the number of slices that train, in words; damaged events are left out."""
    needed = {"active", "wanted", "global_batch", "full_batch"}
    found = [e for e in events if e.kind == KIND and needed <= e.data.keys()]
    return [f"from step {e.step} on {batch_words(e.data)}" for e in found]
