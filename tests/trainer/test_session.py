"""A process start in the run directory: its number, its clock, its log, and its last words."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.runs.errors import BadInput, ExitCode, Unreachable
from elastic_tpu.runs.record.events import EventReader
from elastic_tpu.runs.record.run import Run, open_run
from elastic_tpu.runs.record.status import Status
from elastic_tpu.runs.store import records
from elastic_tpu.runs.store.base import Entry
from elastic_tpu.tests.fakes.store import MemoryStore, lost_answer
from elastic_tpu.tests.support import until
from elastic_tpu.tests.tools.small import run_at, run_in, session_of
from elastic_tpu.trainer import session as sessions
from elastic_tpu.trainer.heartbeat import Stop
from elastic_tpu.trainer.session import ProcessAttempt
from elastic_tpu.trainer.training.failure_policy import starts_without_progress


def test_attempts_are_numbered_and_remember_what_was_proven() -> None:
    run = run_in(MemoryStore())
    first = ProcessAttempt(run, "train", None)
    second = ProcessAttempt(run, "train", 10)
    third = ProcessAttempt(run, "train", 10)
    assert [first.number, second.number, third.number] == [1, 2, 3]
    assert third.proven_at_start == [None, 10]
    assert starts_without_progress(third.proven_at_start, 10) == 1
    started = records.load(run.store.read("attempts/2/started.json").data, "x")
    assert (started["proven_step"], started["nonce"]) == (10, second.nonce)


def test_an_attempt_that_ended_on_request_does_not_count() -> None:
    run = run_in(MemoryStore())
    for code in (75, 76, 143):
        number = ProcessAttempt(run, "train", 10).number
        run.store.put(f"attempts/{number}/exit.json", records.dump({"exit_code": code}))
    assert ProcessAttempt(run, "train", 10).proven_at_start == [10, 10]


def test_an_attempt_that_never_registered_does_not_count() -> None:
    run = run_in(MemoryStore())
    ProcessAttempt(run, "train", 10)
    run.store.put("attempts/2/started.json", records.dump({"pid": 7, "by": "supervisor", "time": records.timestamp()}))
    run.store.put("attempts/2/exit.json", records.dump({"exit_code": 75}))
    assert ProcessAttempt(run, "train", 10).proven_at_start == [10]


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_starting_trainer_waits_for_its_storage_and_registers_once(
    monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    monkeypatch.setattr(sessions, "_AGAIN", 0.0)
    store = MemoryStore()
    store.fault, store.carried_out = lost_answer(), carried_out
    real, failures = store.list, [lost_answer()]

    def list_(prefix: str = "") -> list[Entry]:
        if failures:
            raise failures.pop()
        return real(prefix)

    monkeypatch.setattr(store, "list", list_)
    assert ProcessAttempt(run_in(store), "train", None).number == 1
    assert [entry.name for entry in store.list("attempts/")] == ["attempts/1/started.json"]


def test_jobs_are_numbered_apart() -> None:
    run = run_in(MemoryStore())
    ProcessAttempt(run, "train", None)
    assert ProcessAttempt(run, "export", None).number == 1
    assert ProcessAttempt(run, "export", None).number == 2
    run.store.put("attempts/notes/started.json", b"{}")
    run.store.put("attempts/²/started.json", b"{}")
    assert ProcessAttempt(run, "train", None).number == 2


def test_an_attempt_that_registers_in_between_keeps_its_number() -> None:
    store = MemoryStore()
    run = run_in(store)
    store.before_write = lambda: ProcessAttempt(run, "train", None)
    assert ProcessAttempt(run, "train", None).number == 2


def _register(uri: str) -> int:
    return ProcessAttempt(open_run(uri), "train", None).number


def test_processes_that_race_get_numbers_of_their_own(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        numbers = pool.map(_register, [run.uri] * 8, chunksize=1)
    assert sorted(numbers) == list(range(1, 9))


def test_elapsed_counts_from_the_first_attempt_over_restarts() -> None:
    run = run_in(MemoryStore())
    assert ProcessAttempt(run, "train", None).elapsed() < 5
    record = records.load(run.store.read("attempts/1/started.json").data, "x")
    hour_ago = records.timestamp(datetime.now(UTC) - timedelta(hours=1))
    run.store.put("attempts/1/started.json", records.dump({**record, "time": hour_ago}))
    assert ProcessAttempt(run, "train", None).elapsed() == pytest.approx(3600, abs=10)


def test_a_clock_that_stepped_back_does_not_make_the_run_younger_than_nothing() -> None:
    run = run_in(MemoryStore())
    later = records.timestamp(datetime.now(UTC) + timedelta(hours=1))
    run.store.put("attempts/1/started.json", records.dump({"time": later}))
    assert 0 <= ProcessAttempt(run, "train", None).elapsed() < 5


# -- the log ------------------------------------------------------------------------------------------------------

BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}

LOG = """
import os, subprocess, sys, threading
from elastic_tpu.runs.record.run import open_run
from elastic_tpu.trainer.session import AttemptLog, ProcessAttempt, leave

run = open_run(sys.argv[1])
attempt = ProcessAttempt(run, "train", None)
log = AttemptLog(run, f"attempts/{attempt.number}/trainer.log")
print("from python")
print("to stderr", file=sys.stderr)
os.write(1, b"from a library\\n")
subprocess.run([sys.executable, "-c", "print('from a child')"])
print("unflushed", end="")
%s
"""


@pytest.mark.parametrize(
    ("end", "last", "code"),
    [
        ("leave(75)", "unflushed", 75),
        ("log.close(); leave(0)", "unflushed", 0),
        ("os._exit(9)", "from a child", 9),
        ("os.abort()", "from a child", -6),
    ],
)
def test_the_log_holds_every_byte_however_the_process_ends(tmp_path: Path, end: str, last: str, code: int) -> None:
    run = run_at(tmp_path)
    done = subprocess.run([sys.executable, "-c", LOG % end, run.uri], stdout=subprocess.PIPE, env=BUFFERED)
    assert done.returncode == code
    log = (Path(run.uri) / "attempts/1/trainer.log").read_text()
    assert log.rstrip().endswith(last)
    for line in ("from a library", "from a child"):
        assert line in log
    if last == "unflushed":
        assert "from python" in log
        assert "to stderr" in log
    assert done.stdout.decode() == log  # the parent reads the same


def test_a_blocked_pipe_does_not_keep_the_process(tmp_path: Path) -> None:
    code = (
        "import contextlib, os\n"
        "from elastic_tpu.trainer import session\n"
        "os.set_blocking(1, False)\n"
        "with contextlib.suppress(BlockingIOError):\n"
        "    while True:\n"
        "        os.write(1, b'x' * 4096)\n"  # until the pipe is full: nobody reads
        "os.set_blocking(1, True)\n"
        "print('more')\n"
        "session.leave(75)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=BUFFERED)
    assert process.wait(30) == 75
    assert process.stdout is not None
    process.stdout.close()


# -- the session --------------------------------------------------------------------------------------------------


def test_a_session_from_start_to_end(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    with session_of(run) as session:
        assert session.before is None
        assert session.attempt.number == 1
        session.event("train.first_step", step=0)
        session.heartbeat.update(phase="training", step=3)
        assert session.end(75, "told to") == 75
    status = json.loads(run.store.read("status.json").data)
    assert (status["phase"], status["step"], status["exit"], status["reason"]) == ("ended", 3, 75, "told to")
    events = [e for e in EventReader(run.store).all() if e.writer == "trainer"]
    assert [(e.kind, e.attempt) for e in events][:3] == [
        ("attempt.started", 1),
        ("train.first_step", 1),
        ("attempt.ended", 1),
    ]
    with session_of(run) as second:
        assert second.before is not None
        assert (second.before.step, second.before.exit) == (3, 75)


def kinds(run: Run) -> set[str]:
    return {event.kind for event in EventReader(run.store).all()}


def ends(run: Run) -> list[tuple[str, int | None, Any]]:
    told = [e for e in EventReader(run.store).all() if e.kind in ("train.stalled", "attempt.ended")]
    return [(e.kind, e.step, e.data.get("code")) for e in told]


def test_who_was_superseded_records_no_end(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    with session_of(run) as session:
        run.store.put("status.json", Status("r", 2, "other", phase="training").dump())
        session.heartbeat.beat()
        assert session.end(0, "complete") == 0
        assert session.left == [76]  # type: ignore[attr-defined]
        assert ends(run) == []


def test_a_stall_is_told_with_the_end_by_the_heartbeat(tmp_path: Path) -> None:
    run = run_at(tmp_path, recovery={"stalled_after": "1s"})
    with session_of(run) as session:
        session.heartbeat.update(phase="training", step=3)
        until(lambda: session.left == [75])  # type: ignore[attr-defined]
        session.end(70, "and what came of it")
        assert ends(run) == [("train.stalled", 3, None), ("attempt.ended", None, 75)]


def test_slices_that_are_away_are_told_and_a_stall_is_not(tmp_path: Path) -> None:
    run = run_at(tmp_path, recovery={"stalled_after": "1s"})
    with session_of(run) as session:
        session.heartbeat.slices_away = lambda: {1: "suspended"}
        session.heartbeat.update(phase="training", step=3)
        until(lambda: kinds(run) & {"train.suspended", "train.stalled"}, "what the heartbeat says of it")
        session.heartbeat.update(step=4)
        until(lambda: "train.resumed" in kinds(run), "the end of it")
        assert "train.stalled" not in kinds(run)


def test_a_stop_with_nothing_to_save_is_told_as_an_end(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    with session_of(run) as session:
        session.heartbeat.update(phase="waiting")
        session.heartbeat.request_stop(Stop(ExitCode.ENDED_ON_REQUEST, "stopped by me"))
        until(lambda: session.left == [76])  # type: ignore[attr-defined]
        assert ends(run) == [("attempt.ended", None, 76)]


STALL = """
import sys, threading
from elastic_tpu.runs.record.run import open_run
from elastic_tpu.trainer.session import TrainerSession

session = TrainerSession(open_run(sys.argv[1]))
print("the last line")
session.heartbeat.update(phase="training", step=3)
def hangs():
    threading.Event().wait()
hangs()
"""


def test_the_log_of_a_stalled_trainer_reaches_the_bucket(gcs_bucket: str) -> None:
    run = run_at(f"gs://{gcs_bucket}/runs", recovery={"stalled_after": "1s"})
    assert (
        subprocess.run([sys.executable, "-c", STALL, run.uri], stdout=subprocess.DEVNULL, timeout=60).returncode == 75
    )
    log = run.store.read("attempts/1/trainer.log").data
    assert b"the last line" in log
    assert b"in hangs" in log, "the stack of the thread that hangs"
    assert [kind for kind, *_ in ends(run)] == ["train.stalled", "attempt.ended"]


# -- a job --------------------------------------------------------------------------------------------------------

JOB = """
import os, signal, sys
from elastic_tpu.runs.record.run import open_run
from elastic_tpu.trainer import jobs

def term():
    os.kill(os.getpid(), signal.SIGTERM)

def job(run, events, progress):
    %s

real = jobs.EventLog.write
def write(self, kind, **data):
    if kind == "attempt.ended":
        term()  # one more, while the end is being told
    return real(self, kind, **data)

jobs.EventLog.write = write
jobs._JOBS["export"] = job
sys.exit(jobs.run_job(open_run(sys.argv[1]), "export"))
"""


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ("term()", 143),
        ("pass", 0),
        ("raise ValueError('a bug')", 70),
        ("try: term()\n    finally: term(); run.store.put('tidied', b'')", 143),
    ],
)
def test_a_job_that_is_evicted_says_so_however_often_it_is_told(tmp_path: Path, job: str, code: int) -> None:
    run = run_at(tmp_path)
    done = subprocess.run([sys.executable, "-c", JOB % job, run.uri], capture_output=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("finally" in job) == bool(run.store.list("tidied"))
    assert ends(run) == [("attempt.ended", None, code)]


def test_events_wait_for_a_storage_that_is_away_and_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_at(tmp_path)
    with session_of(run) as session:
        real, failed = run.store.create, threading.Event()

        def create(name: str, data: bytes) -> str:
            if name.startswith("events/") and not failed.is_set():
                failed.set()
                real(name, data)
                raise Unreachable("the answer was lost")
            return real(name, data)

        monkeypatch.setattr(run.store, "create", create)
        session.event("recovery.finished", step=7)
        assert failed.is_set()
        assert [e.step for e in EventReader(run.store).all() if e.kind == "recovery.finished"] == [7]


def test_a_run_of_a_newer_version_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    data = Status("r", 1, "other").dump().replace(b'"schema": 1', b'"schema": 2')
    run.store.put("status.json", data)
    with pytest.raises(BadInput, match="schema 2 is newer than 1"), session_of(run):
        pass
    assert run.store.read("status.json").data == data
