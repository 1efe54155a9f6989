"""Ctrl-C, SIGTERM, cancel and release: what runs saves, the slices come back, and running again goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.record.claim import is_stale
from elastic_tpu.tests.support import Case, Launcher, command, expected_state, until

MakeCase = Callable[..., Case]
LONG = {"steps": 100_000}


@pytest.mark.parametrize("how", ["to the command", "to its process group", "SIGTERM"])
def test_an_interrupt_saves_releases_and_the_next_run_resumes(make_case: MakeCase, how: str) -> None:
    case = make_case(train={"steps": 250})
    with Launcher(case) as launcher:
        case.wait_for_step(20)
        if how == "SIGTERM":
            launcher.process.terminate()
        else:
            launcher.interrupt(whole_group="group" in how)
        assert launcher.wait() == ExitCode.INTERRUPTED
    case.released()
    status = case.status
    assert status is not None
    assert status.exit == ExitCode.ENDED_ON_REQUEST
    assert status.proven_step == status.step >= 20
    assert len(case.events("slice.released")) == 2
    assert f"step {status.step} is saved and proven" in launcher.output
    assert f"elastic-tpu run {case.uri}" in launcher.output
    assert "Traceback" not in launcher.output
    with Launcher(case, log="again") as again:
        assert again.wait() == 0
    so_far = f"step {status.step} of 250 done, newest proven checkpoint: {status.step}"
    assert f"(going on with it: {so_far})" in again.output
    assert "the trainer has ended" not in again.output.partition("trainer started")[0]  # the first one had
    assert "step 0 of" not in again.output
    assert case.attempts() == [1, 2]
    assert case.events("train.first_step")[-1].step == status.step + 1  # from where it stopped, nothing twice
    assert case.final_state() == expected_state(250)
    case.released()


def test_a_second_ctrl_c_does_not_wait_for_a_trainer_that_hangs(make_case: MakeCase) -> None:
    case = make_case("--hang-at", "20", train=LONG)
    with Launcher(case) as launcher:
        until(lambda: case.json("proofs/10.json"), "a proven checkpoint")
        until(lambda: case.at_step(19), "the last step before it hangs")
        launcher.interrupt()
        launcher.says("Ctrl-C again")
        began = time.monotonic()
        launcher.interrupt()
        assert launcher.wait() == ExitCode.INTERRUPTED
        assert time.monotonic() - began < 10
    assert "not waiting for the save" in launcher.output
    assert "slices released: 2 of 2" in launcher.output
    case.released()


def test_ctrl_c_while_the_trainer_starts(make_case: MakeCase) -> None:
    case = make_case("--start-seconds", "30")
    with Launcher(case) as launcher:
        until(lambda: case.status, "a heartbeat")
        launcher.interrupt()
        assert launcher.wait(20) == ExitCode.INTERRUPTED
    case.released()


def test_ctrl_c_while_slices_are_taken(make_case: MakeCase) -> None:
    case = make_case(slices={"count": 8})
    with Launcher(case) as launcher:
        until(lambda: case.processes("--name slices"), "a supervisor")
        launcher.interrupt()
        assert launcher.wait(20) == ExitCode.INTERRUPTED
    assert "Traceback" not in launcher.output
    case.nothing_left()
    assert case.attempts() == []


def test_ctrl_c_during_the_export_ends_it_and_running_again_completes(make_case: MakeCase, tmp_path: Path) -> None:
    case = make_case("--job-until", str(tmp_path / "go"), train={"steps": 5}, checkpoint={"every": 5}, export={})
    with Launcher(case) as launcher:
        until(lambda: case.attempts("export"))
        launcher.interrupt()
        assert launcher.wait() == ExitCode.INTERRUPTED
    assert "stopping export" in launcher.output
    case.nothing_left()
    (tmp_path / "go").touch()
    with Launcher(case, log="again") as again:
        assert again.wait() == 0
    assert case.attempts() == [1]
    assert case.json("export/4/manifest.json")
    case.released()


def test_cancel_by_command_ends_training_and_the_launcher_gives_back(make_case: MakeCase) -> None:
    case = make_case(train=LONG)
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        done = command("cancel", case.uri)
        assert done.returncode == 0
        assert "drives the run and gives the slices back" in done.stdout
        assert launcher.wait() == ExitCode.ENDED_ON_REQUEST
    assert "stopped by" in launcher.output
    assert case.status is not None
    assert case.status.proven_step == case.status.step
    case.released()
    again = command("cancel", case.uri)
    assert again.returncode == 0
    assert again.stdout == (
        "nothing of this run is going on, so there is nothing to stop\n"
        f"the run is not complete; to go on with it:  elastic-tpu run {case.uri}\n"
    )
    told = " ".join(launcher.output.split())
    assert f"not complete exit code 76: stopped by {case.claim.claim.holder}; step" in told  # type: ignore[union-attr]
    assert "error" not in told
    assert "bug" not in told


def test_cancel_by_command_during_the_export(make_case: MakeCase) -> None:
    case = make_case("--job-seconds", "60", train={"steps": 5}, checkpoint={"every": 5}, export={})
    with Launcher(case) as launcher:
        until(lambda: case.attempts("export"))
        began = time.monotonic()
        assert command("cancel", case.uri).returncode == 0
        assert launcher.wait() == ExitCode.ENDED_ON_REQUEST
        assert time.monotonic() - began < 20
    case.nothing_left()


def test_cancel_when_the_launcher_is_gone_says_how_to_give_back(make_case: MakeCase) -> None:
    case = make_case(train=LONG, local={"unclaimed": "2s"})
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        launcher.kill()
    case.supervisor().kill()
    until(lambda: case.claim and is_stale(case.claim, case.run.store.now()), "a stale claim")
    status = command("status", case.uri).stdout
    assert "nobody drives this run: the process of " in status
    assert "failed: the supervisor of the slices" in status
    assert "not running: train died together with its supervisor" in status
    done = command("cancel", case.uri)
    assert done.returncode == 0
    assert f"elastic-tpu release {case.uri}" in done.stdout
    assert command("release", case.uri).returncode == 0
    case.released()


def test_release_of_a_live_run_stops_it_and_the_launcher_ends(make_case: MakeCase) -> None:
    case = make_case(train=LONG)
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        done = command("release", case.uri)
        assert done.returncode == 0
        assert [line.split() for line in done.stdout.splitlines()[-2:]] == [
            ["slice", "0", "yes", "yes"],
            ["slice", "1", "yes", "yes"],
        ]
        case.released()
        assert launcher.wait() == ExitCode.ENDED_ON_REQUEST  # not a fault that another try would mend
    assert case.status is not None
    assert case.status.proven_step == case.status.step
    for _ in range(2):  # as often as one likes
        again = command("release", case.uri)
        assert again.returncode == 0
        assert "nothing was held" in again.stdout


def test_a_run_that_ends_with_its_launcher_is_not_detached(make_case: MakeCase) -> None:
    case = make_case()
    done = command("run", "--detach", str(case.spec))
    assert done.returncode == ExitCode.BAD_INPUT
    assert "--detach: platform local ends a run that nobody drives" in done.stderr
    assert not case.output.exists()
