"""How a run's time was spent: an example worked out by hand, and that the kinds always add up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from elastic_tpu.runs.judge.goodput import measure
from elastic_tpu.runs.record.events import Event
from elastic_tpu.runs.record.recovery_events import finished_recoveries
from hypothesis import given
from hypothesis import strategies as st

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def event(second: float, kind: str, **data: Any) -> Event:
    return Event(NOON + timedelta(seconds=second), "trainer", kind, data=data)


def recovered(second: float, *, detect: float, wait: float, rebuild: float, first_step: float, **data: Any) -> Event:
    seconds = {"detect": detect, "wait": wait, "rebuild": rebuild, "first_step": first_step}
    return event(second, "recovery.finished", seconds=seconds, **data)


# A checkpoint every 10 steps of 1 s; the first step of each stretch compiles for 9 s and takes 10 s.
#   0  all slices are ready            20  the first step (0) is done
#  45  step 25 is done; 5 s later the loss of slice 1 is noticed          (trained: 10 + 25 = 35 s)
# 110  60 s later it is back, after 15 s step 21 begins, at 135 it is done (lost: steps 21 to 25, 5 s)
# 155  step 41 is done and the process dies                               (trained: 10 + 20 = 30 s)
# 175  another process has waited 1 s and rebuilt 9 s, step 41 begins, at 185 it is done (lost: step 41, 1 s)
# 203  step 59 is done (trained: 10 + 18 = 28 s); at 210 it is proven
STORY = [
    event(-3, "slice.ready", slice=0),
    event(0, "slice.ready", slice=1, all=True),
    event(2, "attempt.started"),
    event(20, "train.first_step", seconds=10),
    event(50, "recovery.started", trained_seconds=35, slices=[1]),
    event(60, "slice.ready", slice=1, all=True),
    recovered(
        135, detect=5, wait=60, rebuild=15, first_step=10, cause="slice 1 lost", slices=[1], reached=25, restored=20,
        steps_lost=5, repeated_seconds=5,
    ),
    event(163, "attempt.started"),
    event(165, "recovery.started", trained_seconds=30, in_process=False),
    recovered(
        185, detect=0, wait=1, rebuild=9, first_step=10, cause="the trainer process died", reached=41, restored=40,
        steps_lost=1, repeated_seconds=1, in_process=False, account="estimated",
    ),
    event(204, "train.stopped", trained_seconds=28),
]  # fmt: skip


def test_a_run_with_a_lost_slice_and_a_dead_process() -> None:
    spent = measure(STORY, NOON + timedelta(seconds=210))
    assert spent.seconds_by_kind == {
        "start": 20,
        "detect": 5,
        "wait": 61,
        "rebuild": 24,
        "first_step": 20,
        "suspended": 0,
        "repeated": 6,
        "training": 35 + 30 + 28 - 6 - 3 * 10,
        "other": 17,  # the dead process was noticed and started again, the last checkpoint proven
    }
    assert spent.total == 210
    assert sum(spent.seconds_by_kind.values()) == pytest.approx(210)
    assert spent.ratio == pytest.approx(57 / 210)
    assert (spent.steps_lost, len(spent.recoveries)) == (6, 2)


SUSPENDED = [
    event(0, "slice.ready", all=True),
    event(20, "train.first_step", seconds=10),
    event(40, "train.suspended", slices=[1]),
]


def test_the_time_in_which_slices_were_away_is_neither_training_nor_unknown() -> None:
    resumed = [*SUSPENDED, event(101, "train.resumed", seconds=60), event(120, "train.stopped", trained_seconds=50)]
    kinds = measure(resumed, NOON + timedelta(seconds=120)).seconds_by_kind
    assert (kinds["start"], kinds["training"], kinds["suspended"], kinds["other"]) == (20, 40, 60, 0)


@pytest.mark.parametrize(
    "after", [[], [event(100, "recovery.started", trained_seconds=30)], [event(100, "attempt.started")]]
)
def test_slices_that_did_not_come_back_are_counted_until_something_else_happened(after: list[Event]) -> None:
    late = [event(100.2, "train.resumed", seconds=60)] if after else []  # of a recovery: told by another thread
    kinds = measure([*SUSPENDED, *after, *late], NOON + timedelta(seconds=100)).seconds_by_kind
    assert kinds["suspended"] == 60


def test_slices_that_are_away_in_a_recovery_are_part_of_it() -> None:
    story = [
        event(0, "slice.ready", all=True),
        event(20, "train.first_step", seconds=10),
        event(30, "recovery.started", trained_seconds=20),
        event(40, "train.suspended", slices=[1]),
        event(70, "train.resumed", seconds=30),
        recovered(80, detect=0, wait=5, rebuild=40, first_step=5, reached=9, restored=9),
        event(90, "train.stopped", trained_seconds=15),
    ]
    kinds = measure(story, NOON + timedelta(seconds=90)).seconds_by_kind
    assert (kinds["suspended"], kinds["rebuild"]) == (0, 40)


def test_a_loss_before_the_very_first_step_is_no_lost_run() -> None:
    story = [
        event(0, "slice.ready", all=True),
        event(20, "recovery.started", trained_seconds=0),
        event(60, "train.first_step", seconds=0),
        recovered(60, detect=0, wait=20, rebuild=10, first_step=10, reached=-1, restored=-1),
        event(160, "train.stopped", trained_seconds=110),
    ]
    kinds = measure(story, NOON + timedelta(seconds=160)).seconds_by_kind
    assert (kinds["start"], kinds["wait"], kinds["training"], kinds["other"]) == (20, 20, 100, 0)


def test_the_story_of_each_recovery() -> None:
    in_process, dead = finished_recoveries(STORY)
    assert (in_process.cause, in_process.slices, in_process.reached, in_process.restored) == (
        "slice 1 lost",
        (1,),
        25,
        20,
    )
    assert in_process.seconds == {"detect": 5, "wait": 60, "rebuild": 15, "first_step": 10}
    assert (in_process.in_process, in_process.account) == (True, "exact")
    assert (dead.in_process, dead.account) == (False, "estimated")


def test_a_later_start_that_recovers_nothing_compiles_too() -> None:
    story = [
        event(0, "slice.ready", all=True),
        event(20, "train.first_step", seconds=10),
        event(30, "train.stopped", trained_seconds=20),
        event(50, "train.first_step", seconds=10),
        event(60, "train.stopped", trained_seconds=20),
    ]
    kinds = measure(story, NOON + timedelta(seconds=60)).seconds_by_kind
    assert (kinds["start"], kinds["training"], kinds["first_step"], kinds["other"]) == (20, 20, 10, 10)


def test_a_later_start_counts_as_start_from_its_process_on() -> None:
    story = [
        event(0, "slice.ready", all=True),
        event(2, "attempt.started"),
        event(20, "train.first_step", seconds=10),
        event(30, "train.stopped", trained_seconds=20),
        event(40, "attempt.started"),
        event(50, "train.first_step", seconds=10),
        event(60, "train.stopped", trained_seconds=20),
    ]
    kinds = measure(story, NOON + timedelta(seconds=60)).seconds_by_kind
    assert (kinds["start"], kinds["training"], kinds["first_step"], kinds["other"]) == (30, 20, 0, 10)


@pytest.mark.parametrize(
    ("story", "end", "total", "ratio"),
    [
        ([], 10, 0, None),
        ([event(5, "attempt.started")], 10, 5, 0),
        ([event(5, "slice.ready", slice=0)], 10, 0, None),  # not all of them
        ([event(5, "slice.ready", all=True)], 3, 0, None),  # a clock that stepped back
    ],
)
def test_before_there_was_anything_to_measure(
    story: list[Event], end: float, total: float, ratio: float | None
) -> None:
    spent = measure(story, NOON + timedelta(seconds=end))
    assert (spent.total, spent.ratio) == (total, ratio)


def test_goodput_is_not_above_1_where_its_seconds_were_rounded_up() -> None:
    story = [
        event(0, "slice.ready", all=True),
        event(0, "train.first_step"),
        event(0, "train.stopped", trained_seconds=2),
    ]
    spent = measure(story, NOON + timedelta(seconds=1.765625))
    assert (spent.productive, spent.ratio) == (1.766, 1)


_seconds = st.floats(-10, 1000)


@given(
    st.lists(
        st.builds(event, _seconds, st.just("recovery.started"), trained_seconds=_seconds)
        | st.builds(event, _seconds, st.just("train.first_step"), seconds=_seconds)
        | st.builds(event, _seconds, st.just("slice.ready"), all=st.booleans())
        | st.builds(
            recovered,
            _seconds,
            detect=_seconds,
            wait=_seconds,
            rebuild=_seconds,
            first_step=_seconds,
            repeated_seconds=_seconds,
        ),
        max_size=8,
    ),
    _seconds,
)
def test_the_kinds_add_up_whatever_was_recorded(story: list[Event], end: float) -> None:
    spent = measure(story, NOON + timedelta(seconds=end))
    assert sum(spent.seconds_by_kind.values()) == pytest.approx(spent.total, abs=0.01)
    assert all(seconds >= 0 for seconds in spent.seconds_by_kind.values())
    assert spent.ratio is None or 0 <= spent.ratio <= 1
