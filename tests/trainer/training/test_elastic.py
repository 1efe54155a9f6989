"""Training's own account and decisions around MaxText's loop, without MaxText."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from elastic_tpu.runs.errors import ElasticTPUError, ExitCode, Infrastructure, LimitSpent
from elastic_tpu.runs.record import proof
from elastic_tpu.runs.record.events import EventReader
from elastic_tpu.runs.record.status import Status
from elastic_tpu.tests.fakes.slices import FakeSlices
from elastic_tpu.tests.tools.small import checkpoint, run_at, session_of
from elastic_tpu.trainer.session import TrainerSession
from elastic_tpu.trainer.training import elastic
from elastic_tpu.trainer.training.failure_policy import Budget
from elastic_tpu.trainer.training.finite import FiniteLosses
from elastic_tpu.trainer.training.hardware import Hardware
from elastic_tpu.trainer.training.prover import Prover
from elastic_tpu.trainer.training.recovery import StepTimes


def training_in(session: TrainerSession) -> elastic.ElasticTraining:
    """Training that has done its first steps; what it has of MaxText is left out."""
    training = object.__new__(elastic.ElasticTraining)
    training._session, training._beat, training._spec = session, session.heartbeat, session.run.spec
    training._times, training._before, training._recovering = StepTimes(), None, None
    training._first_of_attempt, training._completed_at, training._suspended_before = False, 0.0, 0.0
    return training


def test_a_step_that_waited_for_its_slices_counts_without_that_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, suspended = [100.0], [0.0]
    monkeypatch.setattr(elastic.time, "monotonic", lambda: now[0])
    with session_of(run_at(tmp_path)) as session:
        monkeypatch.setattr(type(session.heartbeat), "suspended_seconds", property(lambda self: suspended[0]))
        training = training_in(session)
        training._completed_at = 100.0
        now[0] = 102.0
        training._completed(5, began=100.0)
        now[0], suspended[0] = 1004.0, 900.0
        training._completed(6, began=102.0)
        status: Status = session.heartbeat.status
        assert (status.step, status.step_seconds, status.trained_seconds) == (6, 2.0, 4.0)


class Diverging:
    """Training of which steps 10 and 20 were saved, in attempts that each go on from the newest proven step."""

    def __init__(self, session: TrainerSession) -> None:
        self.session, self.training = session, training_in(session)
        limits = session.run.spec.recovery_limits
        finite = self.training._finite = FiniteLosses(limits.on_nan)
        self.training._prover = Prover(session, 60.0, finite)
        self.training._budget, self.training._checkpointer = Budget(limits.attempts_without_progress), None
        self.training._losses = type("Losses", (), {"add": lambda *point: None})()
        self.begin()

    def begin(self) -> int | None:
        self.training._recovering = None
        proven = self.training._proven = self.training._prover.settle()
        self.training._finite.begin(proven)
        return proven

    def save(self, step: int) -> None:
        self.training._prover.saved(step)
        checkpoint(self.session.run, step)

    def loss(self, step: int, loss: float = 2.0) -> None:
        """The loss of a step, and what follows from it, as MaxText's loop meets it."""
        self.session.heartbeat.update(step=step)
        try:
            self.training.metrics(step, {"learning/loss": loss})
        except Exception as error:
            self.training._judge(error)

    def told(self, kind: str) -> list[tuple[int | None, Any]]:
        return [(e.step, e.data) for e in EventReader(self.session.run.store).all() if e.kind == kind]


@pytest.fixture
def diverging(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Diverging]:
    with session_of(run_at(tmp_path, recovery={"on_nan": request.param})) as session:
        found = Diverging(session)
        for step in (10, 20):
            found.save(step)
            found.loss(step)
        yield found
        found.training.close()


NAN = float("nan")


@pytest.mark.parametrize("diverging", ["stop"], indirect=True)
def test_a_loss_that_is_not_a_number_ends_the_run_in_words(diverging: Diverging) -> None:
    diverging.save(30)
    with pytest.raises(ElasticTPUError) as caught:
        diverging.loss(30, NAN)
    assert caught.value.code == ExitCode.BUG
    assert str(caught.value) == (
        "the loss of step 30 is nan: training is stopped (recovery.on_nan: stop); the newest checkpoint is of step 20"
    )
    assert diverging.told("train.not_finite") == [(30, {"loss": "nan", "then": "stop", "proven_step": None})]
    assert proof.newest_proven(diverging.session.run.store) == 20


@pytest.mark.parametrize("diverging", ["restore"], indirect=True)
def test_training_goes_back_before_the_bad_loss_as_often_as_the_budget_allows(diverging: Diverging) -> None:
    for again in range(2):
        diverging.save(30)
        with pytest.raises(jax.errors.JaxRuntimeError, match="DATA_LOSS: the loss of step 25 is inf"):
            diverging.loss(25, float("inf"))
        assert diverging.begin() == 20
        assert [step for step, _ in diverging.told("checkpoint.rejected")] == [30] * (again + 1)
        diverging.loss(21)
    with pytest.raises(
        LimitSpent, match=r"attempts_without_progress \(3\) is spent: the loss of step 25 is inf, again"
    ):
        diverging.loss(25, float("inf"))


@pytest.mark.parametrize("diverging", ["restore"], indirect=True)
def test_a_checkpoint_whose_first_loss_is_bad_is_not_restored_twice(diverging: Diverging) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="DATA_LOSS"):
        diverging.loss(21, NAN)
    assert diverging.begin() == 20
    with pytest.raises(jax.errors.JaxRuntimeError, match="DATA_LOSS"):
        diverging.loss(21, NAN)
    assert diverging.begin() == 10


@pytest.mark.parametrize("diverging", ["continue"], indirect=True)
def test_where_the_spec_says_so_training_goes_on(diverging: Diverging) -> None:
    diverging.save(30)
    diverging.loss(30, NAN)
    diverging.loss(31, NAN)
    assert diverging.begin() == 30
    assert [step for step, _ in diverging.told("train.not_finite")] == [30]


class Checkpointer:
    """Orbax's: a failed save in the background is over, and told to the first who waits."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends, self.under_way = list(ends), True

    def is_saving_in_progress(self) -> bool:
        return self.under_way

    def wait(self) -> None:
        if (error := self.ends.pop(0)) is not None:
            raise error


class Saving:
    """Training whose step 10 is being saved, and that has done step 11."""

    def __init__(self, session: TrainerSession, checkpointer: Checkpointer, slices: FakeSlices) -> None:
        self.training, self.checkpointer = training_in(session), checkpointer
        self.training._checkpointer, self.training._slices = checkpointer, slices
        self.training._hardware = Hardware(slices, 0.0, simulated=False)
        self.training._saved_step, self.training._saved_well = 10, -1
        session.heartbeat.update(step=11, proven_step=0)

    def step(self, done: Callable[[], Any] = dict) -> None:
        """The next step, as MaxText's loop meets it."""
        variables = {"checkpoint_manager": self.checkpointer}
        try:
            self.training.iteration(12, {"state": {}}, variables, {}, done)
        except Exception as error:
            self.training._judge(error)


@pytest.mark.parametrize(
    "why",
    [PermissionError(13, "Permission denied"), OSError(28, "No space left on device"), ValueError("UNAVAILABLE: x")],
)
def test_a_save_that_failed_in_the_background_is_seen_at_the_next_step(tmp_path: Path, why: Exception) -> None:
    with session_of(run_at(tmp_path)) as session:
        saving = Saving(session, Checkpointer(why), FakeSlices())
        saving.step()
        saving.checkpointer.under_way = False
        with pytest.raises(Infrastructure) as caught:
            saving.step(done=lambda: pytest.fail("no step may follow"))
        told = f"the save of step 10 failed: {type(why).__name__}: {why}; the newest proven checkpoint is of step 0"
        assert str(caught.value) == told


def test_a_save_that_ended_well_is_asked_once(tmp_path: Path) -> None:
    with session_of(run_at(tmp_path)) as session:
        saving = Saving(session, Checkpointer(None), FakeSlices())
        saving.checkpointer.under_way = False
        saving.step()
        saving.step()
        saving.training.end_save()
        assert saving.checkpointer.ends == []


def test_a_save_that_failed_with_its_slice_is_a_lost_slice(tmp_path: Path) -> None:
    with session_of(run_at(tmp_path)) as session:
        saving = Saving(session, Checkpointer(OSError(5, "i/o")), FakeSlices(gone=frozenset({1})))
        saving.training._budget = Budget(3)
        saving.checkpointer.under_way = False
        with pytest.raises(jax.errors.JaxRuntimeError, match="DATA_LOSS"):
            saving.step()


def test_a_save_that_fails_by_a_bug_is_one(tmp_path: Path) -> None:
    with session_of(run_at(tmp_path)) as session:
        saving = Saving(session, Checkpointer(TypeError("no array")), FakeSlices())
        saving.checkpointer.under_way = False
        with pytest.raises(ElasticTPUError, match="no array") as caught:
            saving.step()
        assert caught.value.code == ExitCode.BUG
