"""What an error means, with context; how often training may go on; how many starts brought nothing."""

from __future__ import annotations

import pytest
from elastic_tpu.trainer.training.failure_policy import Budget, Cause, Failure, classify, starts_without_progress


def failure(
    kind: str = "jax",
    message: str = "INTERNAL: x",
    step: int = 15,
    *,
    lost: tuple[int, ...] = (),
    first: bool = False,
    recovering: bool = False,
) -> Failure:
    return Failure(kind, message, step, not first, frozenset(lost), recovering)


# A04: the words alone decide nothing.
@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (failure(message="DATA_LOSS: slice 1", lost=(1,)), Cause.SLICE_LOST),
        (failure(message="INTERNAL: whatever", lost=(0, 2)), Cause.SLICE_LOST),
        (failure(kind="storage", message="x", lost=(1,)), Cause.SLICE_LOST),
        (failure(message="NOT_FOUND: gs://b/x.array_record", first=True), Cause.BUG),
        (failure(message="INTERNAL: Mosaic failed to compile", first=True), Cause.BUG),
        (failure(message="DEADLINE_EXCEEDED: x", first=True), Cause.BUG),
        (failure(message="DATA_LOSS: slice 1", first=True), Cause.INFRASTRUCTURE),
        # A02: an attempt to recover may fail for its own reasons; a new process tries again.
        (failure(message="INTERNAL: resharding", first=True, recovering=True), Cause.INFRASTRUCTURE),
        (failure(message="RESOURCE_EXHAUSTED: out of HBM", first=True, recovering=True), Cause.BUG),
        (failure(kind="other", message="KeyError: 'x'", first=True, recovering=True), Cause.BUG),
        (failure(message="DATA_LOSS: heartbeat"), Cause.RETRY),
        (failure(message="INTERNAL: transfer failed"), Cause.RETRY),
        (failure(message="DEADLINE_EXCEEDED: barrier"), Cause.RETRY),
        (failure(message="UNAVAILABLE: proxy"), Cause.INFRASTRUCTURE),  # the head is gone: another process
        (failure(message="  UNAVAILABLE: proxy", first=True), Cause.INFRASTRUCTURE),
        (failure(message="ABORTED: x"), Cause.INFRASTRUCTURE),
        (failure(message="CANCELLED: x"), Cause.INFRASTRUCTURE),
        (failure(message="RESOURCE_EXHAUSTED: out of HBM"), Cause.BUG),
        (failure(message="INVALID_ARGUMENT: dot with INTERNAL_projection"), Cause.BUG),
        (failure(message="UNIMPLEMENTED: x"), Cause.BUG),
        (failure(message="INTERNAL: after UNAVAILABLE and RESOURCE_EXHAUSTED"), Cause.RETRY),
        (failure(kind="storage", message="[Errno 5] I/O error"), Cause.INFRASTRUCTURE),
        (failure(kind="other", message="KeyError: 'x'"), Cause.BUG),
        (failure(kind="other", message="DATA_LOSS said a library"), Cause.BUG),
    ],
)
def test_the_cause_of_an_error(seen: Failure, cause: Cause) -> None:
    assert classify(seen, None) is cause


@pytest.mark.parametrize(
    ("before", "now", "cause"),
    [
        (failure(message="INTERNAL: at 0x7f"), failure(message="INTERNAL: at 0x99"), Cause.BUG),
        (failure(message="INTERNAL: 12 of 30 ms"), failure(message="INTERNAL: 13 of 31 ms"), Cause.BUG),
        (failure(message="INTERNAL: a"), failure(message="INTERNAL: b"), Cause.RETRY),
        (failure(step=14), failure(step=15), Cause.RETRY),
        (failure(), failure(lost=(1,)), Cause.SLICE_LOST),
        (failure(lost=(1,)), failure(), Cause.BUG),  # and now all slices are there
        (failure(message="UNAVAILABLE: x"), failure(message="UNAVAILABLE: x"), Cause.INFRASTRUCTURE),
    ],
)
def test_the_same_error_at_the_same_step_with_all_slices_there_is_a_bug(
    before: Failure, now: Failure, cause: Cause
) -> None:
    assert classify(now, before) is cause


def test_attempts_that_bring_nothing_are_counted() -> None:
    budget = Budget(3)
    assert [budget.note(Cause.RETRY, 10) for _ in range(3)] == [True, True, False]


def test_a_lost_slice_is_never_an_attempt() -> None:  # A05
    budget = Budget(2)
    assert all(budget.note(Cause.SLICE_LOST, None) for _ in range(1000))
    assert budget.note(Cause.RETRY, None)
    assert all(budget.note(Cause.SLICE_LOST, None) for _ in range(5))
    assert not budget.note(Cause.RETRY, None)


def test_progress_refills_the_budget() -> None:  # A03, A05
    budget = Budget(3)
    assert all(budget.note(Cause.RETRY, step) for step in range(0, 20_000, 1000))
    assert [budget.note(Cause.RETRY, step) for step in (20_000, 20_000, 20_000)] == [True, True, False]


def test_a_step_that_was_set_aside_is_no_progress() -> None:
    budget = Budget(3)
    assert [budget.note(Cause.RETRY, step) for step in (20, 10, 20)] == [True, True, False]


@pytest.mark.parametrize(
    ("at_start", "now", "count"),
    [
        ([], None, 0),
        ([None], None, 1),
        ([None, None], None, 2),
        ([None], 0, 0),
        ([None, 10], 20, 0),
        ([None, 10], 10, 1),
        ([None, 10, 10], 10, 2),
        ([10, 10, 20], 20, 1),
        ([10, 10, 20], 30, 0),
        ([20], 10, 1),  # what was proven at its start was set aside: still nothing new
        ([20, 10], 10, 2),
        ([20], None, 1),
    ],
)
def test_starts_without_progress(at_start: list[int | None], now: int | None, count: int) -> None:
    assert starts_without_progress(at_start, now) == count
