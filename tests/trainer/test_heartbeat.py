"""Heartbeat and fence: one writer, who leaves with the right code, and training that never waits for a slow storage.

Most tests beat by hand on a storage in memory and a clock of their own; the last ones run the thread.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.runs.errors import BadInput, Changed, Damaged, EndedOnRequest, ExitCode, NotFound, Unreachable
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.record.status import SliceCount, Status, load_status
from elastic_tpu.runs.store import records
from elastic_tpu.runs.store.base import Item
from elastic_tpu.runs.store.posix import PosixStore
from elastic_tpu.tests.fakes.store import MemoryStore, SlowStore, lost_answer
from elastic_tpu.tests.tools.small import run_at, run_in
from elastic_tpu.trainer import heartbeat
from elastic_tpu.trainer.heartbeat import Heartbeat, Stop

INTERVAL = 15.0
HOUR = 3600.0


class ByHand(Heartbeat):
    """A heartbeat whose thread does nothing: the test beats."""

    def _loop(self) -> None:
        pass


class Trainer:
    """A trainer process on a storage in memory, with a clock that only the test moves."""

    def __init__(self, store: MemoryStore | None = None, nonce: str = "mine", **sections: Any) -> None:
        self.store = store or MemoryStore()
        self.run: Run = run_in(self.store, **sections)
        self.now, self.elapsed = 1000.0, 0.0
        self.left: list[int] = []
        self.writes: list[str] = []
        self.beat = ByHand(
            self.run,
            3,
            nonce,
            INTERVAL,
            self.left.append,
            lambda: self.elapsed,
            lambda: self.now,
            self.wait,
            lambda code, reason: self.record_end(code, reason),
            tell=lambda kind, **data: self.told.append((kind, data)),
        )
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.said: list[tuple[int, str, str]] = []
        self.while_waiting: Callable[[], object] = lambda: None

    def record_end(self, code: int, reason: str) -> None:
        self.said.append((code, reason, self.status().phase))

    def wait(self, seconds: float) -> None:
        self.advance(seconds)
        self.while_waiting()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.elapsed += seconds

    def beats(self, count: int = 1, every: float = INTERVAL) -> None:
        for _ in range(count):
            self.advance(every)
            self.beat.beat()

    def started(self, **changes: Any) -> Trainer:
        self.beat.start()
        self.beat.update(**changes)
        self.beat.beat()
        return self

    def status(self) -> Status:
        status = load_status(records.load(self.store.read("status.json").data, "status.json"))
        assert status is not None
        return status

    def generation(self) -> str:
        return self.store.read("status.json").generation

    def claim(self, state: str = "held", nonce: str = "c", grace: float = 0, **more: Any) -> None:
        claim = {"holder": "dag/1", "instance": "1", "term": 1, "seconds": 600, "state": state, "nonce": nonce}
        self.store.put("claim.json", records.dump({**claim, "grace": grace, **more}))


def another(store: MemoryStore, **changes: Any) -> Status:
    """Another trainer's word in status.json."""
    status = Status("r", 2, "other", **{"phase": "training", "step": 41, **changes})
    store.put("status.json", status.dump())
    return status


# -- the fence ----------------------------------------------------------------------------------------------------


def test_what_takes_long_is_told_with_its_seconds_until_the_phase_ends() -> None:
    trainer = Trainer()
    trainer.beat.start()
    trainer.beat.update(doing="importing MaxText")
    trainer.advance(12.0)
    trainer.beat.beat()
    assert (trainer.status().doing, trainer.status().doing_seconds) == ("importing MaxText", 12.0)
    trainer.beat.update(doing="reading data")
    trainer.advance(3.0)
    trainer.beat.beat()
    assert (trainer.status().doing, trainer.status().doing_seconds) == ("reading data", 3.0)
    trainer.beat.update(phase="waiting")
    trainer.beat.beat()
    assert (trainer.status().doing, trainer.status().doing_seconds) == ("", 0.0)


def test_a_beat_says_where_training_is() -> None:
    trainer = Trainer().started(phase="training", step=7, loss=float("nan"), eta=float("inf"))
    said = trainer.status()
    assert (said.phase, said.step, said.steps, said.attempt, said.nonce) == ("training", 7, 100, 3, "mine")
    assert (said.loss, said.eta) == (None, None)
    assert trainer.left == []


def test_who_finds_anothers_word_leaves_without_a_further_write() -> None:
    trainer = Trainer().started(phase="training")
    another(trainer.store)
    there = trainer.generation()
    trainer.beats(3)
    trainer.beat.finish(0, "complete")
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]
    assert trainer.generation() == there
    assert trainer.status().nonce == "other"


def test_a_run_directory_that_was_removed_is_left() -> None:
    trainer = Trainer().started()
    trainer.store.delete("status.json")
    trainer.beats(2)
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]
    with pytest.raises(NotFound):
        trainer.store.read("status.json")


def test_an_own_write_whose_answer_was_lost_is_not_anothers() -> None:
    trainer = Trainer().started(phase="training")
    trainer.store.fault, trainer.store.carried_out = lost_answer(), True
    trainer.beats()
    trainer.beat.update(step=9)
    trainer.beats()
    assert trainer.left == []
    assert trainer.status().step == 9


def test_a_takeover_returns_what_the_other_said_last() -> None:
    store = MemoryStore()
    last = another(store, reason="slice 1 lost")
    trainer = Trainer(store)
    assert trainer.beat.start() == last
    assert trainer.status().nonce == "mine"


def test_a_first_trainer_has_nobody_before_it() -> None:
    assert Trainer().beat.start() is None


@pytest.mark.parametrize("before", [False, True])
def test_a_takeover_whose_answer_was_lost_does_not_take_its_own_word_for_anothers(before: bool) -> None:
    store = MemoryStore()
    last = another(store) if before else None
    trainer = Trainer(store)
    store.fault, store.carried_out = lost_answer(), True
    assert trainer.beat.start() == last
    trainer.beats()
    assert trainer.left == []


def test_a_beat_between_reading_and_taking_over_is_read_again() -> None:
    store = MemoryStore()
    another(store, step=41)
    store.before_write = lambda: another(store, step=42)
    before = Trainer(store).beat.start()
    assert before is not None
    assert before.step == 42


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not valid JSON"),
        (b"{}", "run_id: Field required"),
        (b'{"run_id": "r", "attempt": 1, "nonce": "x", "phase": "sleeping"}', "phase: Input should be"),
        (b'{"run_id": "r", "attempt": 1, "nonce": "x", "step": "many"}', "step: Input should be"),
    ],
)
def test_a_damaged_status_is_kept_aside_and_replaced(data: bytes, message: str) -> None:
    with pytest.raises(Damaged, match=message):
        load_status(records.load(data, "status.json"))
    store = MemoryStore()
    store.put("status.json", data)
    trainer = Trainer(store)
    assert trainer.beat.start() is None
    assert trainer.status().phase == "starting"
    aside = [entry.name for entry in store.list("status.json.damaged-")]
    assert [store.read(name).data for name in aside] == [data]
    assert not trainer.beat.held.is_set()  # the trainer that wrote before may still run


def test_a_status_of_a_newer_version_is_refused() -> None:
    store = MemoryStore()
    store.put("status.json", b'{"schema": 2}')
    with pytest.raises(BadInput, match=r"status.json: schema 2 is newer than 1"):
        Trainer(store).beat.start()


# -- holding it ---------------------------------------------------------------------------------------------------


def test_a_takeover_is_held_after_two_intervals_however_often_it_beats() -> None:
    store = MemoryStore()
    another(store)
    trainer = Trainer(store).started()
    trainer.beats(5, every=1.0)  # changes of phase beat at once: the other may not have looked yet
    assert not trainer.beat.held.is_set()
    trainer.beats(2, every=INTERVAL - 4)
    assert not trainer.beat.held.is_set()
    trainer.beats(1, every=4)
    assert trainer.beat.held.is_set()


def test_a_beat_that_did_not_arrive_holds_nothing() -> None:
    store = MemoryStore()
    another(store)
    trainer = Trainer(store).started()
    store.fault = lost_answer()
    trainer.beats(1, every=2 * INTERVAL)
    assert not trainer.beat.held.is_set()
    trainer.beats(1)
    assert trainer.beat.held.is_set()


@pytest.mark.parametrize("before", [None, "ended"])
def test_with_nobody_before_there_is_nobody_to_wait_for(before: str | None) -> None:
    store = MemoryStore()
    if before:
        another(store, phase=before, exit=75)
    trainer = Trainer(store)
    trainer.beat.start()
    assert trainer.beat.held.is_set()


# -- confirming it ------------------------------------------------------------------------------------------------


def test_confirm_beats_only_when_the_last_beat_is_older_than_two_intervals() -> None:
    trainer = Trainer().started()
    before = trainer.generation()
    trainer.advance(2 * INTERVAL)
    trainer.beat.confirm()
    assert trainer.generation() == before
    trainer.advance(1)
    trainer.beat.confirm()
    assert trainer.generation() != before


def test_a_zombie_that_wakes_up_confirms_nothing() -> None:
    trainer = Trainer().started(phase="training")
    another(trainer.store)
    trainer.advance(10 * HOUR)
    with pytest.raises(EndedOnRequest):
        trainer.beat.confirm()
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]


def test_confirm_waits_for_a_storage_that_is_away() -> None:
    trainer = Trainer().started(phase="training")
    _away(trainer.store)
    trainer.advance(3 * INTERVAL)
    trainer.while_waiting = lambda: trainer.now > 1200 and trainer.store.__dict__.pop("replace", None)
    trainer.beat.confirm()
    assert trainer.now > 1200
    assert trainer.left == []


def test_nothing_is_confirmed_after_the_last_word() -> None:
    trainer = Trainer().started()
    trainer.beat.finish(0, "complete")
    with pytest.raises(EndedOnRequest):
        trainer.beat.confirm()


# -- storage that is away -----------------------------------------------------------------------------------------


def _away(store: MemoryStore, error: Exception | None = None) -> None:
    def fail(*_: object) -> Any:
        raise error or Unreachable("no answer")

    store.replace = fail  # type: ignore[method-assign]


def test_storage_that_is_away_is_unknown_until_its_limit_is_spent() -> None:
    trainer = Trainer(recovery={"storage_timeout": "10m", "stalled_after": "3h"}).started(phase="training")
    _away(trainer.store)
    trainer.beats(40)  # 600 s
    assert trainer.left == []
    assert trainer.beat.stop is None
    trainer.beats(3)
    assert trainer.left == [ExitCode.INFRASTRUCTURE]


@pytest.mark.parametrize("phase", ["training", "waiting"])
def test_a_storage_that_refuses_is_waited_for_as_long(phase: str) -> None:
    trainer = Trainer(recovery={"storage_timeout": "10m", "stalled_after": "3h"}).started(phase=phase)
    _away(trainer.store, BadInput("gs://bucket: 403, give this account the right to write there"))
    trainer.beats(40)
    assert trainer.left == []
    trainer.beats(3)
    assert trainer.left == [ExitCode.INFRASTRUCTURE]
    assert trainer.said == []


def test_a_status_that_is_damaged_meanwhile_is_kept_aside_and_replaced() -> None:
    trainer = Trainer(recovery={"storage_timeout": "10m", "stalled_after": "3h"}).started(phase="training", step=7)
    trainer.store.put("status.json", b"{")
    trainer.beats(45)
    assert trainer.left == []
    assert trainer.status().step == 7
    assert len(trainer.store.list("status.json.damaged-")) == 1
    another(trainer.store)
    trainer.beats(1)
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]


def test_a_status_of_a_newer_version_is_waited_for_as_long() -> None:
    trainer = Trainer(recovery={"storage_timeout": "10m", "stalled_after": "3h"}).started(phase="training")
    trainer.store.put("status.json", b'{"schema": 2}')
    trainer.beats(40)
    assert trainer.left == []
    trainer.beats(3)
    assert trainer.left == [ExitCode.INFRASTRUCTURE]


@pytest.mark.parametrize("error", [Unreachable("no answer"), BadInput("403")])
def test_limits_are_enforced_while_the_storage_is_away(error: Exception) -> None:
    trainer = Trainer(recovery={"storage_timeout": "3h", "wait_for_slices": "1h"}).started(phase="waiting")
    _away(trainer.store, error)
    trainer.beats(int(HOUR // INTERVAL) + 1)
    assert trainer.left == [ExitCode.LIMIT_SPENT]


def test_storage_that_comes_back_in_time_changes_nothing() -> None:
    trainer = Trainer(recovery={"storage_timeout": "10m", "stalled_after": "3h"}).started(phase="training")
    _away(trainer.store)
    trainer.beats(39)
    del trainer.store.__dict__["replace"]
    trainer.beats(1)
    _away(trainer.store)
    trainer.beats(39)
    assert trainer.left == []


def test_a_starting_trainer_waits_as_long() -> None:
    trainer = Trainer(recovery={"storage_timeout": "10m"})

    def fail(name: str) -> Item:
        raise Unreachable(name)

    trainer.store.read = fail  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        trainer.beat.start()
    assert 600 < trainer.now - 1000 < 640


# -- the claim ----------------------------------------------------------------------------------------------------


def test_a_users_stop_is_obeyed_at_once() -> None:
    trainer = Trainer().started(phase="training")
    trainer.claim("stop", by="me@host")
    trainer.beats()
    assert trainer.beat.stop == Stop(ExitCode.ENDED_ON_REQUEST, "stopped by me@host")
    assert trainer.left == []  # after the step that runs, with a save


def test_a_signals_stop_is_obeyed_when_it_was_seen_for_its_grace() -> None:
    trainer = Trainer().started(phase="training")
    trainer.claim("stop", grace=300)
    trainer.beats(20)  # seen for 285 s
    assert trainer.beat.stop is None
    trainer.beats()
    assert trainer.beat.stop is not None


def test_a_take_undoes_a_stop_that_was_not_obeyed_yet() -> None:
    trainer = Trainer().started(phase="training")
    trainer.claim("stop", nonce="a", grace=300)
    trainer.beats(15)
    trainer.claim("held", nonce="b")
    trainer.beats(1)
    trainer.claim("stop", nonce="a", grace=300)
    trainer.beats(15)
    assert trainer.beat.stop is None


def test_another_stop_is_counted_anew_but_one_without_grace_is_not_waited_for() -> None:
    trainer = Trainer().started(phase="training")
    trainer.claim("stop", nonce="a", grace=300)
    trainer.beats(15)
    trainer.claim("stop", nonce="b", grace=300)
    trainer.beats(15)
    assert trainer.beat.stop is None
    trainer.claim("stop", nonce="c", grace=0)
    trainer.beats(1)
    assert trainer.beat.stop is not None


def test_an_unreadable_claim_is_no_stop() -> None:
    trainer = Trainer().started(phase="training")
    trainer.store.put("claim.json", b"{")
    trainer.beats(3)
    assert trainer.beat.stop is None
    assert trainer.left == []


def test_a_stop_from_before_the_start_ends_it_before_anything_is_imported() -> None:
    trainer = Trainer()
    trainer.claim("stop")
    trainer.beat.start()
    assert trainer.beat.stop is not None
    trainer.beats()
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]
    assert (trainer.status().phase, trainer.status().exit) == ("ended", 76)


def test_a_trainer_that_begins_after_its_run_was_given_up_ends() -> None:
    """Its launcher was cut off while the job was being created, and has gone."""
    trainer = Trainer()
    trainer.claim("done")
    trainer.beat.start()
    trainer.beats()
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]
    assert trainer.status().reason == "dag/1 gave the run up before this trainer began"


def test_a_run_that_is_given_up_while_it_trains_goes_on() -> None:
    trainer = Trainer().started(phase="training")
    trainer.claim("done")
    trainer.beats(3)
    assert trainer.beat.stop is None


@pytest.mark.parametrize("phase", ["starting", "waiting", "restoring", "compiling"])
def test_a_stop_with_nothing_to_save_writes_the_status_and_exits(phase: str) -> None:
    trainer = Trainer().started(phase=phase)
    trainer.claim("stop", by="me@host")
    trainer.beats(3)
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]
    said = trainer.status()
    assert (said.phase, said.exit, said.reason) == ("ended", 76, "stopped by me@host")


def test_an_eviction_saves_first_and_the_first_reason_counts() -> None:
    trainer = Trainer().started(phase="training")
    trainer.beat.evicted()
    trainer.claim("stop")
    trainer.beats(2)
    assert trainer.beat.stop is not None
    assert trainer.beat.stop.code == ExitCode.EVICTED
    assert trainer.left == []
    trainer.beat.update(phase="waiting")
    trainer.beats()
    assert trainer.left == [ExitCode.EVICTED]


# -- limits -------------------------------------------------------------------------------------------------------

LIMITS = {
    "limits": {"total": "10h"},
    "recovery": {"wait_for_slices": "1h", "stalled_after": "20m"},
}


@pytest.mark.parametrize(
    ("phase", "seconds", "code", "reason"),
    [
        ("waiting", HOUR + 30, 77, "recovery.wait_for_slices (1h)"),
        ("training", 1230, 75, "stalled"),
        ("saving", 1230, 75, "stalled"),
        ("compiling", 1830, 75, "stalled: compiling"),
    ],
)
def test_a_limit_ends_the_process_with_its_status_written(phase: str, seconds: float, code: int, reason: str) -> None:
    trainer = Trainer(**LIMITS).started(phase=phase)
    trainer.beats(int(seconds // INTERVAL) - 3)
    assert trainer.left == []
    trainer.beats(4)
    assert trainer.left == [code]
    said = trainer.status()
    assert (said.phase, said.exit) == ("ended", code)
    assert reason in said.reason
    assert trainer.said == [(code, said.reason, "ended")]  # once, after the status


def suspended(**changes: Any) -> Trainer:
    """A trainer in a step, one of whose slices has been away for a minute."""
    trainer = Trainer(**LIMITS).started(**{"phase": "training", "step": 7, "slices": SliceCount(2, 2), **changes})
    trainer.beat.slices_away = lambda: {1: "3 of 4 pods ready"}
    trainer.beats(4)
    return trainer


@pytest.mark.parametrize("phase", ["training", "saving", "compiling"])
def test_slices_that_are_away_are_no_stall_and_the_status_says_so(phase: str) -> None:
    trainer = suspended(phase=phase)
    said = trainer.status()
    assert (said.phase, said.reason, said.slices) == (
        "suspended",
        "slice 1 is away: 3 of 4 pods ready",
        SliceCount(1, 2),
    )
    trainer.beats(200)  # 50 min: longer than any limit of a step
    assert trainer.left == []
    trainer.beat.slices_away = dict
    trainer.beats(1)
    assert (trainer.status().phase, trainer.status().slices) == (phase, SliceCount(2, 2))
    trainer.beats(79)  # the time for a step counts anew
    assert trainer.left == []
    trainer.beats(45)
    assert trainer.left == [75]


def test_slices_that_never_come_back_spend_the_wait_for_them() -> None:
    trainer = suspended()
    trainer.beats(int(HOUR // INTERVAL) + 1)
    assert trainer.left == [77]
    assert "recovery.wait_for_slices (1h)" in trainer.status().reason


def test_a_suspension_is_told_and_its_seconds_are_counted() -> None:
    trainer = suspended()
    trainer.beats(19)
    trainer.beat.update(step=8)  # Pathways resumed: the step is done before the next look
    trainer.beats(1)
    assert trainer.status().phase == "training"
    assert trainer.told == [
        ("train.suspended", {"step": 7, "slices": [1], "why": "3 of 4 pods ready"}),
        ("train.resumed", {"step": 7, "seconds": 20 * INTERVAL}),
    ]
    assert trainer.beat.suspended_seconds == 20 * INTERVAL


def test_slices_are_asked_about_only_when_a_step_is_late() -> None:
    trainer = Trainer(**LIMITS).started(phase="training", step=7, step_seconds=60.0)
    asked: list[float] = []
    trainer.beat.slices_away = lambda: asked.append(trainer.now) or {}  # type: ignore[func-returns-value]
    trainer.beats(8)  # two usual steps
    assert asked == []
    trainer.beats(1)
    assert len(asked) == 1
    trainer.beat.update(phase="waiting")  # nothing is held
    trainer.beats(40)
    assert len(asked) == 1


def test_a_stop_is_not_kept_waiting_by_slices_that_are_away() -> None:
    trainer = suspended()
    trainer.claim("stop", by="me@host")
    trainer.beats()
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]
    assert trainer.status().phase == "ended"


def test_steps_and_changes_of_phase_are_progress() -> None:
    trainer = Trainer(**LIMITS).started(phase="training", step=0)
    for step in range(1, 20):
        trainer.beat.update(step=step)
        trainer.beats(70)  # 17.5 min a step
        trainer.beat.update(phase="saving" if step % 2 else "training")
    assert trainer.left == []


def test_the_runs_limit_lets_the_step_and_its_save_end() -> None:
    trainer = Trainer(**LIMITS).started(phase="training")
    trainer.elapsed = 10 * HOUR + 1
    trainer.beats()
    assert trainer.beat.stop is not None
    assert trainer.beat.stop.code == ExitCode.LIMIT_SPENT
    trainer.beat.update(phase="stopping")
    trainer.beats(10)
    trainer.beat.update(phase="saving")
    trainer.beats(10)
    assert trainer.left == []


def test_the_runs_limit_counts_from_the_first_attempt() -> None:
    trainer = Trainer(**LIMITS)
    trainer.elapsed = 10 * HOUR + 1
    trainer.started(phase="waiting")
    assert trainer.left == [ExitCode.LIMIT_SPENT]


def test_a_fence_that_is_lost_when_a_limit_is_spent_is_left_once() -> None:
    trainer = Trainer(**LIMITS).started(phase="waiting")
    another(trainer.store)
    trainer.advance(2 * HOUR)
    trainer.beat.beat()
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]


def test_a_trainer_that_lost_the_run_records_no_end() -> None:
    trainer = Trainer(**LIMITS).started(phase="waiting")
    another(trainer.store)
    trainer.advance(2 * HOUR)
    trainer.beat.beat()
    assert trainer.left == [ExitCode.ENDED_ON_REQUEST]
    assert trainer.said == []


def test_an_end_that_cannot_be_recorded_does_not_keep_the_process() -> None:
    trainer = Trainer(**LIMITS).started(phase="waiting")

    def fail(code: int, reason: str) -> None:
        raise Unreachable("no answer")

    trainer.record_end = fail  # type: ignore[method-assign]
    trainer.beats(1, every=2 * HOUR)
    assert trainer.left == [ExitCode.LIMIT_SPENT]


def test_an_end_whose_record_hangs_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_RECORD_END", 0.05)
    answered, over = threading.Event(), threading.Event()

    def hang(code: int, reason: str) -> None:
        answered.wait(20)
        over.set()

    trainer = Trainer(**LIMITS).started(phase="waiting")
    trainer.record_end = hang  # type: ignore[method-assign]
    trainer.beats(1, every=2 * HOUR)
    assert trainer.left == [ExitCode.LIMIT_SPENT]
    assert not over.is_set()
    answered.set()


def test_a_zombie_that_finishes_tells_nothing() -> None:
    trainer = Trainer().started(phase="training")
    another(trainer.store)
    there = trainer.generation()
    trainer.advance(10 * HOUR)
    told: list[str] = []
    trainer.beat.finish(0, "complete", lambda: told.append("complete"))
    assert (told, trainer.left, trainer.generation()) == ([], [ExitCode.ENDED_ON_REQUEST], there)


def test_the_last_word() -> None:
    trainer = Trainer().started(phase="training", step=99)
    trainer.beat.finish(0, "complete at step 99", proven_step=99)
    said = trainer.status()
    assert (said.phase, said.exit, said.reason, said.proven_step) == ("ended", 0, "complete at step 99", 99)
    there = trainer.generation()
    trainer.beats(3)
    trainer.beat.finish(75, "again")
    assert trainer.generation() == there


# -- the thread ---------------------------------------------------------------------------------------------------


@pytest.fixture
def threaded(tmp_path: Path) -> Any:
    run = run_at(tmp_path)
    slow = SlowStore(Path(run.uri))
    left: list[int] = []
    beat = Heartbeat(Run(run.uri, slow, run.spec), 1, "mine", 0.02, left.append, lambda: 0.0)
    yield beat, slow, left
    slow.open.set()
    beat.finish(0, "over")


def test_updates_never_wait_for_a_slow_write(threaded: Any) -> None:
    beat, slow, _ = threaded
    beat.start()
    slow.open.clear()
    slow.writing.clear()
    assert slow.writing.wait(20)  # the thread is in the middle of a write, and will not come out
    done = threading.Event()

    def train() -> None:
        for step in range(1000):
            beat.update(phase="training" if step % 2 else "saving", step=step)
        beat.evicted()
        done.set()

    threading.Thread(target=train, daemon=True).start()
    assert done.wait(20)
    slow.open.set()


def test_a_signal_in_the_middle_of_an_update_does_not_block(threaded: Any) -> None:
    beat, _, _ = threaded
    beat.start()
    handled = 0

    def evict(*_: object) -> None:
        nonlocal handled
        handled += 1
        beat.evicted()

    over = threading.Event()

    def shoot() -> None:
        while not over.wait(0.0005):
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, evict)
    try:
        threading.Thread(target=shoot, daemon=True).start()
        step = 0
        while handled < 300:
            step += 1
            beat.update(phase="training" if step % 2 else "saving", step=step)
    finally:
        over.set()
        time.sleep(0.01)  # the last shot is in the air
        signal.signal(signal.SIGUSR1, before)
    assert beat.stop is not None


def test_a_change_of_phase_is_written_at_once_and_a_takeover_is_waited_for(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    run.store.put("status.json", Status("r", 1, "other", phase="training").dump())
    written = threading.Event()

    class Listening(PosixStore):
        def replace(self, name: str, data: bytes, generation: str) -> str:
            generation = super().replace(name, data, generation)
            if json.loads(data)["phase"] == "waiting":
                written.set()
            return generation

    left: list[int] = []
    listening = Listening(Path(run.uri))
    beat = Heartbeat(Run(run.uri, listening, run.spec), 2, "mine", 0.3, left.append, lambda: 0.0)
    began = time.monotonic()
    beat.start()
    beat.update(phase="waiting")
    assert written.wait(20)
    beat.wait_until_held()
    assert time.monotonic() - began >= 0.6
    beat.finish(0, "over")
    assert left == []


def test_of_two_threads_that_write_one_leaves(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    left: list[str] = []
    gone = threading.Event()

    def leave(name: str) -> Callable[[int], None]:
        def told(code: int) -> None:
            left.append(f"{name} {code}")
            gone.set()

        return told

    first = Heartbeat(run, 1, "first", 0.02, leave("first"), lambda: 0.0)
    first.start()
    second = Heartbeat(run, 2, "second", 0.02, leave("second"), lambda: 0.0)
    second.start()
    assert gone.wait(20)
    second.wait_until_held()
    second.finish(0, "over")
    first.finish(0, "over")
    assert left == ["first 76"]
    assert json.loads(run.store.read("status.json").data)["nonce"] == "second"


def test_a_bug_in_the_heartbeat_does_not_leave_training_blind(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    gone = threading.Event()
    left: list[int] = []

    def leave(code: int) -> None:
        left.append(code)
        gone.set()

    class Broken(Heartbeat):
        def _enforce(self) -> None:
            raise ZeroDivisionError

    beat = Broken(run, 1, "mine", 0.02, leave, lambda: 0.0)
    beat.start()
    assert gone.wait(20)
    assert left[0] == ExitCode.BUG
    beat._closed = True


def test_the_memory_store_is_strict() -> None:
    with pytest.raises(Changed):
        MemoryStore().replace("status.json", b"", "g1")
