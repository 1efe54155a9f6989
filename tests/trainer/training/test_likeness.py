"""Whether a recovery leaves the result as it would be without it, over all recoveries of a run."""

from __future__ import annotations

from datetime import UTC, datetime

from elastic_tpu.runs.record.events import Event
from elastic_tpu.runs.record.recovery_events import IDENTICAL
from elastic_tpu.trainer.training.likeness import Likeness

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def told(step: int, result: str) -> Event:
    return Event(NOON, "trainer", "recovery.finished", 1, step, {"result": result})


def test_slices_that_are_back_do_not_undo_the_steps_without_them() -> None:
    likeness = Likeness()
    likeness.begin(-1, [])
    assert likeness.result == IDENTICAL
    likeness.begin(20, ["2 of 3 slices"])
    assert likeness.result == "2 of 3 slices"
    likeness.begin(30, [])
    assert likeness.result == "2 of 3 slices"
    likeness.begin(20, [])  # all that was trained without the slice is lost
    assert likeness.result == IDENTICAL


def test_a_new_process_knows_what_earlier_ones_did() -> None:
    events = [told(21, "2 of 3 slices"), told(41, "2 of 3 slices; it went back"), told(51, IDENTICAL)]
    likeness = Likeness(events)
    likeness.begin(60, ["its data cannot resume where it stopped"])
    assert likeness.result == "2 of 3 slices; it went back; its data cannot resume where it stopped"
    likeness = Likeness(events)
    likeness.begin(30, [])
    assert likeness.result == "2 of 3 slices"


def test_a_process_that_started_with_fewer_slices_and_died_is_known_too() -> None:
    counts = {"active": 2, "wanted": 3, "global_batch": 8, "full_batch": 12}
    likeness = Likeness([Event(NOON, "trainer", "train.slices", 1, 0, counts)])
    likeness.begin(10, [])
    assert likeness.result == "2 of 3 slices, global batch 8 instead of 12, the learning rate stays"
