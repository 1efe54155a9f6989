"""The story of a recovery: where each second went, and what was lost exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_tpu.runs.record.events import EventReader
from elastic_tpu.runs.record.recovery_events import RecoveryStarted
from elastic_tpu.runs.record.status import Status
from elastic_tpu.tests.tools.small import run_at, session_of
from elastic_tpu.trainer.training.recovery import Recovering, StepTimes, after_a_dead_process, tell_started


def times(*seconds: float, first: int = 0) -> StepTimes:
    found = StepTimes()
    for step, value in enumerate(seconds, first):
        found.add(step, value)
    return found


def test_the_seconds_of_lost_steps_are_known_exactly() -> None:
    stretch = times(9.0, 1.0, 2.0, 3.0)
    assert stretch.total == 15
    assert stretch.after(2) == 3
    assert stretch.after(1) == 5
    assert stretch.after(3) == 0
    assert stretch.after(-1) == 6  # the first step compiled: that is told apart


def test_proven_steps_are_forgotten_but_not_their_time() -> None:
    stretch = times(9.0, 1.0, 2.0, 3.0)
    stretch.forget_until(2)
    assert (stretch.after(1), stretch.after(2), stretch.total) == (3, 3, 15)


def test_each_second_of_a_recovery_has_its_place() -> None:
    story = Recovering("slice 1 lost", [1], reached=25, began=105, detect=5, lost_times=times(*[1.0] * 26))
    story.ready, story.training, story.restored = 165, 180, 20
    told = story.finished(190)
    assert told.seconds == {"detect": 5, "wait": 60, "rebuild": 15, "first_step": 10}
    assert told.total_seconds == 190 - (105 - 5)
    assert (told.reached, told.restored, told.steps_lost, told.repeated_seconds) == (25, 20, 5, 5)
    assert (told.account, told.in_process, told.slices) == ("exact", True, (1,))


@pytest.mark.parametrize(
    ("reached", "restored", "lost"), [(25, 20, 5), (20, 20, 0), (25, -1, 26), (-1, -1, 0), (9, 10, 0)]
)
def test_steps_lost(reached: int, restored: int, lost: int) -> None:
    story = Recovering("x", [], reached, 0, 0, StepTimes(), restored=restored)
    assert story.finished(1).steps_lost == lost


def status(**changes: object) -> Status:
    return Status("r", 1, "n", **{"step": 41, "phase": "training", "step_seconds": 2.0, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        (None, None),
        (status(step=-1), None),
        (status(phase="ended", exit=0), None),
        (status(phase="ended", exit=76), None),
        (status(), "the trainer process died"),
        (status(reason="slice 1 lost"), "slice 1 lost"),
        (status(phase="ended", exit=75, reason="stalled"), "stalled"),
        (status(phase="ended", exit=143, reason="evicted"), "evicted"),
    ],
)
def test_a_new_process_recovers_what_another_left(before: Status | None, cause: str | None) -> None:
    story = after_a_dead_process(before, lambda: 7.0)
    assert (story and story.cause) == cause


def test_what_a_dead_process_lost_is_an_estimate() -> None:
    story = after_a_dead_process(status(), lambda: 7.0)
    assert story is not None
    story.restored = 30
    told = story.finished(9)
    assert (told.steps_lost, told.repeated_seconds) == (11, 22)
    assert (told.account, told.in_process) == ("estimated", False)


def test_another_error_before_the_first_new_step_is_the_same_recovery() -> None:
    story = Recovering("slice 1 lost", [1], 25, began=100, detect=5, lost_times=StepTimes(), ready=110, training=120)
    story.fail_again("slice 0 lost", [0])
    story.ready, story.training = 150, 160
    told = story.finished(170)
    assert (told.cause, told.slices) == ("slice 1 lost; slice 0 lost", (0, 1))
    assert told.seconds == {"detect": 5, "wait": 50, "rebuild": 10, "first_step": 10}


@pytest.mark.parametrize(("in_process", "number"), [(True, 1), (False, 0)])
def test_the_start_of_a_recovery_is_told_and_trained_seconds_count_anew(
    tmp_path: Path, in_process: bool, number: int
) -> None:
    run = run_at(tmp_path)
    story = Recovering("slice 1 lost", [1], 25, 100, 5, StepTimes(), in_process)
    with session_of(run) as session:
        session.heartbeat.update(phase="training", step=25, trained_seconds=35.0)
        tell_started(session, story, 35.0)
        said = session.heartbeat.status
        assert (said.phase, said.recovery, said.reason, said.trained_seconds) == ("waiting", number, "slice 1 lost", 0)
    (started,) = [RecoveryStarted.of(e) for e in EventReader(run.store).all() if e.kind == RecoveryStarted.KIND]
    assert (started.reached, started.trained_seconds, started.in_process) == (25, 35, in_process)
