"""The local platform by its own calls: slices and jobs as real processes, and an end that leaves nothing."""

from __future__ import annotations

import fcntl
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from elastic_tpu.platforms.base import Job
from elastic_tpu.platforms.local import platform as local
from elastic_tpu.platforms.local import supervisors
from elastic_tpu.platforms.local.control import ask, control_socket
from elastic_tpu.platforms.local.job import SupervisedJob
from elastic_tpu.platforms.local.platform import LocalPlatform
from elastic_tpu.platforms.local.processes import ProcessId
from elastic_tpu.platforms.local.runtime_folder import runtime_folder
from elastic_tpu.runs.errors import BadInput, Infrastructure, Unreachable
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.runs.store import records
from elastic_tpu.tests.support import Case, expected_state, lives, until

MakeCase = Callable[..., Case]
Opened = tuple[Case, LocalPlatform, Job]


@pytest.fixture
def opened(make_case: MakeCase) -> Iterator[Callable[..., Opened]]:
    """Makes a run that this process drives, its platform, and its training job."""
    platforms = []

    def make(*trainer: str, **sections: object) -> Opened:
        case = make_case(*trainer, **sections)
        run = create_run(read_spec(str(case.spec)))
        Driver(run.store, "test", "1", 600.0).take()
        platforms.append(LocalPlatform(run))
        return case, platforms[-1], Job("train", ("train", "--run", run.uri), slices=True)

    yield make
    for platform in platforms:
        platform.release()


def _ready(platform: LocalPlatform) -> None:
    platform.acquire()
    until(lambda: platform.slices().state == "ready", "all slices")


# ---- slices


def test_slices_are_taken_once_and_given_back(opened: Callable[..., Opened]) -> None:
    case, platform, _ = opened()
    assert platform.slices().state == "absent"
    _ready(platform)
    workers = {worker.pid for worker in case.workers()}
    assert len(workers) == 2
    platform.acquire()  # adopted
    assert {worker.pid for worker in case.workers()} == workers
    record = case.json("slices.json")
    assert record is not None
    assert (record["state"], {entry["pid"] for entry in record["slices"]}) == ("ready", workers)
    report = platform.release()
    assert report.existed == report.deleted == ("slice 0", "slice 1")
    assert report.left == ()
    case.released()
    assert platform.slices().state == "released"
    for _ in range(2):
        again = platform.release()
        assert (again.existed, again.deleted, again.left) == ((), (), ())
    assert len(case.events("slice.released")) == 2


def test_a_release_where_nothing_was_ever_taken(opened: Callable[..., Opened]) -> None:
    case, platform, _ = opened()
    report = platform.release()
    assert (report.existed, report.left) == ((), ())
    assert case.json("slices.json") is None


def test_slices_can_be_taken_again_after_a_release(opened: Callable[..., Opened]) -> None:
    case, platform, _ = opened()
    _ready(platform)
    platform.release()
    _ready(platform)
    assert len(case.workers()) == 2


def test_slices_that_are_ending_are_waited_for_and_taken_anew(opened: Callable[..., Opened]) -> None:
    # The trainer has seconds to end after SIGTERM: in that time the next launcher comes.
    case, platform, job = opened("--hang-at", "3")
    _ready(platform)
    platform.launch(job)
    until(lambda: case.at_step(0))
    before = case.supervisor()
    before.terminate()
    until(lambda: platform.slices().state == "failed", "the end to begin")
    assert "SIGTERM" in platform.slices().detail
    case.trainer().kill()  # instead of waiting for its grace to pass
    _ready(platform)
    assert not lives(before)
    assert case.supervisor().pid != before.pid


def test_a_killed_supervisor_takes_workers_and_trainer_along(opened: Callable[..., Opened]) -> None:
    case, platform, job = opened(train={"steps": 100_000})
    _ready(platform)
    platform.launch(job)
    case.wait_for_step(1)
    case.supervisor().kill()
    until(lambda: not case.processes(), "the end of all")
    assert platform.slices().state == "failed"
    seen = platform.observe(job)
    assert (seen.state, seen.exit_code) == ("over", None)
    assert "died together with its supervisor (attempt 1)" in seen.detail
    platform.release()
    case.released()


def test_a_supervisor_that_never_answers_is_killed_by_a_release(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisors, "ask", partial(ask, timeout=0.3))
    monkeypatch.setattr(local, "_END", 0.3)
    case, platform, _ = opened()
    _ready(platform)
    case.supervisor().suspend()
    report = platform.release()
    assert report.existed == ("supervisor of slices, which did not answer",)
    assert report.left == ()
    case.released()


def test_a_supervisor_that_is_slow_ends_its_trainer_in_order(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, platform, job = opened(train={"steps": 100_000})
    _ready(platform)
    platform.launch(job)
    case.wait_for_step(1)
    supervisor, told = case.supervisor(), local._signal

    def wakes_up(processes: list[ProcessId], signum: signal.Signals) -> None:
        told(processes, signum)
        supervisor.resume()

    monkeypatch.setattr(supervisors, "ask", partial(ask, timeout=0.3))
    monkeypatch.setattr(local, "_signal", wakes_up)
    supervisor.suspend()
    with pytest.raises(Unreachable, match="has not answered 'state'"):
        platform.slices()  # unknown, not lost
    assert platform.release().left == ()
    ended = case.exit_of(1)
    assert ended is not None
    assert ended["exit_code"] == 143  # it had the time to save
    case.released()


def test_a_release_that_comes_late_leaves_a_successor_alone(opened: Callable[..., Opened]) -> None:
    case, platform, _ = opened()
    record = {"run_id": case.run_id, "state": "ready", "pid": 1, "slices": []}
    case.run.store.put("slices.json", records.dump(record))
    folder = runtime_folder(case.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    socket_file = folder / "s0.sock"
    socket_file.touch()
    with (folder / "slices.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        platform.release()
        assert socket_file.exists()
        assert (case.json("slices.json") or {})["state"] == "ready"
    platform.release()
    case.released()


def test_slices_of_a_host_that_is_gone_are_given_up_once_nobody_drives_them(opened: Callable[..., Opened]) -> None:
    case, platform, _ = opened()
    record = {"run_id": case.run_id, "state": "ready", "pid": 1, "host": "elsewhere", "slices": []}
    case.run.store.put("slices.json", records.dump(record))
    with pytest.raises(Infrastructure, match=r"elsewhere.*`elastic-tpu release .* nobody has driven it for 1m"):
        platform.release()
    driver = Driver(case.run.store, "test", "1", 600.0)
    driver.join()
    driver.done()
    assert platform.release().left == ()
    case.released()


def test_kill_slice(opened: Callable[..., Opened]) -> None:
    case, platform, _ = opened()
    with pytest.raises(BadInput, match="no slices are provisioned now"):
        platform.kill_slice(0)
    _ready(platform)
    with pytest.raises(BadInput, match="this run has 2 slices"):
        platform.kill_slice(2)
    old = {worker.pid for worker in case.workers()}
    assert "killed (SIGKILL)" in platform.kill_slice(1)
    until(lambda: case.events("slice.back"), "the slice to be back")
    assert len(old & {worker.pid for worker in case.workers()}) == 1
    lost = case.events("slice.lost")[0]
    assert (lost.data["slice"], lost.data["how"]) == (1, "signal 9")


# ---- jobs


def test_a_job_needs_slices(opened: Callable[..., Opened]) -> None:
    _, platform, job = opened()
    with pytest.raises(Infrastructure, match="train needs slices, and there are none"):
        platform.launch(job)


def test_a_job_is_launched_once_however_often_it_is_asked_for(opened: Callable[..., Opened]) -> None:
    case, platform, job = opened(train={"steps": 100_000})
    assert platform.observe(job).state == "absent"
    _ready(platform)
    for _ in range(3):
        platform.launch(job)
    case.wait_for_step(1)
    platform.launch(job)
    assert case.attempts() == [1]
    assert len(case.processes("train --run")) == 1
    assert platform.observe(job).state == "running"
    platform.cancel(job)
    until(lambda: platform.observe(job).state == "over")
    seen = platform.observe(job)
    assert seen.exit_code == 143  # SIGTERM, saved
    assert len(case.workers()) == 2  # a cancelled job leaves the slices
    platform.cancel(job)  # is over and stays so


def test_a_cancel_without_time_to_save_ends_a_trainer_that_hangs(opened: Callable[..., Opened]) -> None:
    case, platform, job = opened("--hang-at", "3")
    _ready(platform)
    platform.launch(job)
    until(lambda: case.at_step(0))
    platform.cancel(job)
    platform.cancel(job, now=True)
    until(lambda: platform.observe(job).state == "over")
    assert platform.observe(job).exit_code == -9


def test_a_job_is_told_to_end_once_however_often_it_is_cancelled(opened: Callable[..., Opened]) -> None:
    # A stop that is not carried out yet cancels at every look; a second SIGTERM would interrupt the end of the first.
    command = ["/bin/sh", "-c", "trap 'echo told' TERM; echo begun; while :; do sleep 0.05; done"]
    case, platform, job = opened(local={"trainer": command})
    _ready(platform)
    platform.launch(job)
    log = runtime_folder(case.run_id) / "train.out"
    until(lambda: "begun" in log.read_text())
    platform.cancel(job)
    until(lambda: "told" in log.read_text())
    for _ in range(3):
        platform.cancel(job)
    platform.cancel(job, now=True)
    until(lambda: platform.observe(job).state == "over")
    assert log.read_text().count("told") == 1


def test_a_checkpoint_that_was_set_aside_does_not_refill_the_restarts(make_case: MakeCase, tmp_path: Path) -> None:
    script = 'if mkdir "$0/once"; then exit 75; else rm -f "$0/proofs/9.json"; exit 75; fi'
    case = make_case(local={"trainer": ["/bin/sh", "-c", script]}, recovery={"head_restarts": 1})
    run = create_run(read_spec(str(case.spec)))
    for step in (5, 9):
        run.store.put(f"proofs/{step}.json", b"{}")
    Driver(run.store, "test", "1", 600.0).take()
    job = SupervisedJob(run, "train", (run.uri,), tmp_path)
    job.start()

    def over() -> bool:
        job.tick(wanted=True)
        return job.over

    until(over)
    assert (job.exit_code, case.attempts()) == (77, [1, 2])


def test_a_trainer_that_dies_before_it_registers_is_on_record(opened: Callable[..., Opened]) -> None:
    command = ["/bin/sh", "-c", "echo the image is broken; exit 70"]
    case, platform, job = opened(local={"trainer": command})
    _ready(platform)
    platform.launch(job)
    until(lambda: platform.observe(job).state == "over")
    seen = platform.observe(job)
    assert (seen.exit_code, seen.detail) == (70, "the image is broken")
    record = case.exit_of(1)
    assert record is not None
    assert (record["exit_code"], record["tail"]) == (70, "the image is broken")


def test_of_two_trainers_of_one_run_exactly_one_goes_on(opened: Callable[..., Opened], tmp_path: Path) -> None:
    case, platform, job = opened(train={"steps": 400})
    _ready(platform)
    platform.launch(job)
    case.wait_for_step(10)
    log = tmp_path / "second.log"
    with log.open("wb") as output:
        second = subprocess.Popen(case.trainer().cmdline(), stdout=output, stderr=output)
    try:
        until(lambda: platform.observe(job).state == "over", "the end of the first one")
        assert platform.observe(job).exit_code == 76
        first = case.exit_of(1)
        assert first is not None
        assert first["exit_code"] == 76
        assert second.wait(60) == 0
    finally:
        second.kill()
    assert case.final_state() == expected_state(400)
    # Not a word of the loser's once the other one began to train.
    began = next(event for event in case.events() if event.attempt == 2 and event.step is not None)
    later = [event for event in case.events() if event.time > began.time and event.writer == "trainer"]
    assert {event.attempt for event in later} == {2}
    assert case.status is not None
    assert (case.status.attempt, case.status.exit) == (2, 0)


# ---- questions and answers


def test_a_question_that_got_lost_is_asked_again_while_the_supervisor_lives(opened: Callable[..., Opened]) -> None:
    case, platform, _ = opened()
    _ready(platform)
    real = control_socket(runtime_folder(case.run_id), "slices")
    aside = real.with_suffix(".aside")
    real.rename(aside)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(str(real))
        deaf.listen()

        def hang_up_once() -> None:
            deaf.accept()[0].close()
            aside.rename(real)

        thread = threading.Thread(target=hang_up_once)
        thread.start()
        assert platform.slices().state == "ready"  # not: its supervisor is gone
        thread.join()


def test_a_question_is_not_answered_where_nobody_is(tmp_path: Path) -> None:
    path = tmp_path / "x.ctl"
    assert ask(path, "state") is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        gone.bind(str(path))
    assert ask(path, "state") is None


def test_a_supervisor_that_is_busy_is_unknown_and_not_gone(tmp_path: Path) -> None:
    path = tmp_path / "x.ctl"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy:
        busy.bind(str(path))
        busy.listen()
        with pytest.raises(Unreachable, match="has not answered 'state'"):
            ask(path, "state", timeout=0.05)
