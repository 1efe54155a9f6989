"""What a supervisor does by itself: a machine that slept, a full disk, a run directory that is deleted."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.platforms.base import Job
from elastic_tpu.platforms.local.platform import LocalPlatform
from elastic_tpu.platforms.local.supervisor import Supervisor
from elastic_tpu.platforms.local.supervisor_process import CountRepeats
from elastic_tpu.platforms.local.unclaimed import Unclaimed
from elastic_tpu.runs.errors import Unreachable
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.runs.store.posix import PosixStore
from elastic_tpu.tests.support import Case, Launcher, until

MakeCase = Callable[..., Case]


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([("g1", 5), ("g1", 10), ("g1", 15)], 10),
        ([("g1", 5), ("g1", 10), ("g2", 15)], 0),  # renewed
        ([("g1", 5), ("g1", 3605)], 10),  # this process slept: the launcher, which slept too, gets time to renew
        ([("g1", 5), ("g1", 3605), ("g1", 3610), ("g2", 3615)], 0),
        ([("g1", 5), ("g1", 3605), ("g1", 3610)], 15),  # and if it does not renew, the run ends after all
        ([(None, 5), (None, 10)], 10),  # nobody ever claimed it
        ([("g1", 5), (None, 10), (None, 15)], 5),  # the claim is gone
    ],
)
def test_time_in_which_the_machine_slept_is_not_counted(looks: list[tuple[str | None, float]], seconds: float) -> None:
    unclaimed = Unclaimed(0, longest=10)
    assert [unclaimed.look(generation, now) for generation, now in looks][-1] == seconds


@pytest.fixture
def supervisor(make_case: MakeCase, tmp_path: Path) -> Callable[..., Supervisor]:
    """Makes the supervisor of a claimed run, without slices, in this process."""

    def make(*trainer: str, **sections: Any) -> Supervisor:
        run = create_run(read_spec(str(make_case(*trainer, **sections).spec)))
        Driver(run.store, "test", "1", 600.0).take()
        return Supervisor(run, "export", tmp_path)

    return make


def test_a_run_outlives_the_sleep_of_its_machine(
    supervisor: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = supervisor(local={"unclaimed": "1s"})
    now = slept.run.store.now
    monkeypatch.setattr(slept.run.store, "now", lambda: now().replace(year=2100))  # the wall clock went on
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        slept.tick()
        time.sleep(0.02)
    assert slept.ending is None
    until(lambda: not slept.tick() and slept.ending, "an end, since nobody renews")
    assert "nobody drives this run (test last renewed" in str(slept.ending)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: PosixStore, folder: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PosixStore, "_temporary", refuse)


def test_a_full_disk_hides_no_end_of_a_process(
    supervisor: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = supervisor(local={"trainer": ["/bin/sh", "-c", "exit 70"]})
    there.answer({"call": "launch", "job": "export", "argv": []})
    assert there.job is not None
    with monkeypatch.context() as full:
        full_disk(full)
        monkeypatch.setattr(there, "_look_at_slices", there.run.store.now)  # whatever else cannot be written
        until(lambda: there.job and there.job.process and there.job.process.poll() is not None)
        with pytest.raises(Unreachable, match="No space left"):
            there.tick()
        said = there.state()["job"]["unrecorded"]
        assert said.startswith("export has ended (")
        assert "which cannot be recorded, trying again" in said
        assert "exit.json: No space left on device" in said or "started.json: No space left on device" in said
        assert not there.state()["job"]["over"]
    there.tick()
    job = there.state()["job"]
    assert (job["over"], job["exit_code"], job["unrecorded"]) == (True, 70, "")


def test_a_launcher_says_of_a_full_disk_that_the_trainer_is_gone(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(read_spec(str(make_case().spec)))
    platform, words = LocalPlatform(run), "train has ended (killed by SIGKILL), which cannot be recorded, ..."
    job = {"name": "train", "pid": 1, "restarts": 0, "over": False, "relaunching": False, "unrecorded": words}
    monkeypatch.setattr(platform._supervisors, "state", lambda name: {"job": job})
    seen = platform.observe(Job("train", (), slices=True))
    assert (seen.state, seen.trainer_lives, seen.detail) == ("running", False, words)


def test_lines_of_a_log_that_repeat_are_counted() -> None:
    lines: list[str] = []
    counted = CountRepeats()
    full = [(n / 16, "disk full") for n in range(160)]
    for second, text in [*full, (11, "trainer gone"), (12, "disk full"), (80, "disk full")]:
        record = logging.LogRecord("x", logging.WARNING, "", 0, "%s", (text,), None)
        record.created = second
        if counted.filter(record):
            lines.append(record.getMessage())
    assert lines == ["disk full", "(the line before came 159 times more) trainer gone", "disk full", "disk full"]


def test_a_run_directory_that_is_deleted_is_not_partly_made_again(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000}, local={"unclaimed": "10s"})
    run = create_run(read_spec(str(case.spec)))
    driver = Driver(run.store, "test", "1", 10.0)
    driver.take()
    platform = LocalPlatform(run)
    platform.acquire()
    until(lambda: driver.renew() and platform.slices().state == "ready")
    platform.launch(Job("train", ("train", "--run", run.uri), slices=True))
    until(lambda: driver.renew() and case.at_step(3), "step 3")
    shutil.rmtree(run.uri, ignore_errors=True)  # a file may be written meanwhile
    while Path(run.uri).exists():
        shutil.rmtree(run.uri, ignore_errors=True)
    until(lambda: not case.processes(), "the end of all of it")
    left = [str(path.relative_to(run.uri)) for path in Path(run.uri).rglob("*")]
    assert not [name for name in left if name.endswith(".json")], left


def test_a_launcher_whose_run_is_deleted_ends_and_makes_nothing_again(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000}, local={"unclaimed": "3s"})
    with Launcher(case) as launcher:
        case.wait_for_step(3)
        while Path(case.uri).exists():  # a file may be written meanwhile
            shutil.rmtree(case.uri, ignore_errors=True)
        assert launcher.wait() != 0
        assert "Traceback" not in launcher.output
    until(lambda: not case.processes(), "the end of all of it")
    assert not list(Path(case.uri).rglob("*.json"))
