"""Proving while training goes on: what this process saved is proven, what another saved is set aside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import NotFound, Unreachable
from elastic_tpu.runs.record import proof
from elastic_tpu.runs.record.events import EventReader
from elastic_tpu.runs.store.base import Item
from elastic_tpu.tests.tools.small import checkpoint, run_at, session_of
from elastic_tpu.trainer import session as sessions
from elastic_tpu.trainer.session import TrainerSession
from elastic_tpu.trainer.training.checkpoints import prove
from elastic_tpu.trainer.training.finite import FiniteLosses
from elastic_tpu.trainer.training.prover import Prover


class Watched(Prover):
    """A prover that says when it has looked."""

    def __init__(self, session: TrainerSession) -> None:
        self.looks = threading.Semaphore(0)
        self.losses = FiniteLosses("stop")
        self.losses.begin(restored=1000)  # every loss is known and finite, unless a test says otherwise
        super().__init__(session, 0.01, self.losses)

    def _look(self) -> None:
        try:
            super()._look()
        finally:
            self.looks.release()

    def after_looks(self, count: int) -> None:
        """Wait for whole looks that began after this call."""
        while self.looks.acquire(blocking=False):
            pass
        for _ in range(count + 1):
            assert self.looks.acquire(timeout=20)


@pytest.fixture
def session(store_uri: str) -> Iterator[TrainerSession]:
    with session_of(run_at(store_uri)) as opened:
        yield opened


@pytest.fixture
def prover(session: TrainerSession) -> Iterator[Watched]:
    opened = Watched(session)
    yield opened
    opened.close()


def kinds(session: TrainerSession) -> list[tuple[str, int | None]]:
    return [(e.kind, e.step) for e in EventReader(session.run.store).all() if e.kind.startswith("checkpoint.")]


def test_what_this_process_saved_is_proven_when_it_is_finished(session: TrainerSession, prover: Watched) -> None:
    prover.settle()
    prover.resume()
    prover.saved(10)
    checkpoint(session.run, 10, finished=False)
    prover.after_looks(2)
    assert session.heartbeat.status.proven_step is None
    session.run.store.put("checkpoints/10/commit_success.txt", b"ok")
    prover.after_looks(1)
    assert session.heartbeat.status.proven_step == 10
    assert proof.check(session.run.store, 10) == []
    assert kinds(session) == [("checkpoint.saved", 10), ("checkpoint.proven", 10)]


@pytest.mark.parametrize("before", [None, 10])
def test_a_step_that_another_trainer_saved_is_set_aside(
    session: TrainerSession, prover: Watched, before: int | None
) -> None:
    if before is not None:
        checkpoint(session.run, before)
        prove(session.run.store, before, session)
    assert prover.settle() == before
    prover.resume()
    checkpoint(session.run, 20)
    prover.after_looks(2)
    assert proof.recorded_steps(session.run.store) == ([] if before is None else [before])
    assert ("checkpoint.rejected", 20) in kinds(session)
    prover.saved(30)
    checkpoint(session.run, 30)
    prover.after_looks(1)
    assert session.heartbeat.status.proven_step == 30


def test_a_save_that_is_finished_before_it_is_told_is_not_anothers(
    session: TrainerSession, prover: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    prover.settle()
    checkpoint(session.run, 10)
    looked = threading.Event()
    real = prover._look

    def look() -> None:
        real()
        if not looked.is_set():
            prover._saved.add(10)  # training comes to say so after the first look
            looked.set()

    monkeypatch.setattr(prover, "_look", look)
    prover.resume()
    assert looked.wait(20)
    prover.after_looks(1)
    assert session.heartbeat.status.proven_step == 10
    assert ("checkpoint.rejected", 10) not in kinds(session)


def test_a_step_that_orbax_declined_to_save_is_anothers(session: TrainerSession, prover: Watched) -> None:
    """MaxText asks at every step, and Orbax declines most: that makes none of them our own."""
    prover.settle()
    prover.resume()
    prover.saving(20)
    prover.declined(20)
    checkpoint(session.run, 20)
    prover.after_looks(2)
    assert kinds(session) == [("checkpoint.rejected", 20)]
    assert session.heartbeat.status.proven_step is None


def test_a_save_that_is_declined_because_it_was_done_already_stays_our_own(
    session: TrainerSession, prover: Watched
) -> None:
    prover.settle()
    prover.saving(20)
    prover.saved(20)
    prover.saving(20)  # once more at the end of training
    prover.declined(20)
    checkpoint(session.run, 20)
    prover.resume()
    prover.after_looks(2)
    assert session.heartbeat.status.proven_step == 20


def test_settling_waits_for_a_storage_that_is_away(
    session: TrainerSession, prover: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_AGAIN", 0.0)
    checkpoint(session.run, 20)
    prover.saved(20)
    real, failures = session.run.store.read, [Unreachable("no answer")] * 2

    def read(name: str) -> Item:
        if failures and name.startswith("checkpoints/"):
            raise failures.pop()
        return real(name)

    monkeypatch.setattr(session.run.store, "read", read)
    assert prover.settle() == 20
    assert failures == []


def test_settling_gives_up_when_the_storage_timeout_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_AGAIN", 0.0)
    with session_of(run_at(tmp_path, recovery={"storage_timeout": "1s"})) as session:
        prover = Prover(session, 60.0, FiniteLosses("stop"))
        asked = 0

        def list_(prefix: str = "") -> object:
            nonlocal asked
            asked += 1
            raise Unreachable("no answer")

        with monkeypatch.context() as away:
            away.setattr(session.run.store, "list", list_)
            with pytest.raises(Unreachable):
                prover.settle()
        assert asked > 1
        prover.close()


def test_retention_takes_the_proof_along(session: TrainerSession, prover: Watched) -> None:
    for step in (10, 20):
        checkpoint(session.run, step)
        prove(session.run.store, step, session)
    session.run.store.put("proofs/30.json", session.run.store.read("proofs/20.json").data)
    prover.settle()
    for entry in session.run.store.list("checkpoints/10/"):
        session.run.store.delete(entry.name)
    prover.resume()
    prover.after_looks(1)
    assert proof.recorded_steps(session.run.store) == [20]
    assert session.heartbeat.status.proven_step == 20  # and never 30, whose checkpoint is not there


def test_at_the_end_an_older_save_that_was_not_proven_yet_is_proven_too(
    session: TrainerSession, prover: Watched
) -> None:
    for step in (10, 11):
        prover.saved(step)
        checkpoint(session.run, step)
    assert prover.settle() == 11
    assert proof.recorded_steps(session.run.store) == [10, 11]  # the newest has a fallback


def test_a_checkpoint_that_retention_is_removing_is_not_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of(run_at(tmp_path)) as session:
        store = session.run.store
        checkpoint(session.run, 10)
        real = store.digest

        def digest(name: str) -> str:
            found = real(name)
            if name.endswith("_METADATA"):
                store.delete("checkpoints/10/items/params.w/0.0" if "items" in name else name)
            return found

        monkeypatch.setattr(store, "digest", digest)
        with pytest.raises(NotFound):
            prove(store, 10, session)
        assert proof.recorded_steps(store) == []


def test_nothing_is_looked_at_before_training_goes_on(session: TrainerSession, prover: Watched) -> None:
    checkpoint(session.run, 10)
    prover.saved(10)
    prover.resume()
    prover.after_looks(1)
    prover.settle()
    checkpoint(session.run, 20)
    prover.saved(20)
    assert not prover.looks.acquire(timeout=0.1) or not prover.looks.acquire(timeout=0.1)
    assert session.heartbeat.status.proven_step == 10
    assert prover.settle() == 20
    assert session.heartbeat.status.proven_step == 20


def test_a_failed_look_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of(run_at(tmp_path)) as session:
        prover = Watched(session)
        try:
            prover.settle()
            prover.saved(10)
            checkpoint(session.run, 10)
            real, failures = session.run.store.list, [OSError("disk"), None]

            def list_(prefix: str = "") -> object:
                if prefix == "proofs/" and failures and (error := failures.pop(0)):
                    raise error
                return real(prefix)

            replaced: Callable[..., object] = list_
            monkeypatch.setattr(session.run.store, "list", replaced)
            prover.resume()
            prover.after_looks(3)
            assert session.heartbeat.status.proven_step == 10
        finally:
            prover.close()


def test_nothing_is_proven_before_its_loss_is_known_nor_after_one_that_is_not_finite(
    session: TrainerSession, prover: Watched
) -> None:
    prover.losses.begin(None)
    prover.settle()
    prover.resume()
    for step in (10, 20):
        prover.saved(step)
        checkpoint(session.run, step)
    prover.losses.note(10, 2.5)
    prover.after_looks(2)
    assert session.heartbeat.status.proven_step == 10
    prover.losses.note(19, float("nan"))
    assert prover.settle() == 10
    assert proof.recorded_steps(session.run.store) == [10]
    (rejected,) = [e for e in EventReader(session.run.store).all() if e.kind == "checkpoint.rejected"]
    assert (rejected.step, "loss of step 19" in rejected.data["why"][0]) == (20, True)


def test_where_the_spec_says_to_go_on_checkpoints_are_proven_whatever_the_loss(
    session: TrainerSession, prover: Watched
) -> None:
    prover.losses.begin(None)
    prover.losses.on_nan = "continue"
    prover.losses.note(9, float("inf"))
    prover.saved(10)
    checkpoint(session.run, 10)
    assert prover.settle() == 10
