"""`elastic-tpu run` as a user has it: whole runs, launchers that die, trainers that fail, and who drives a run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.record.claim import decide_stop
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.store.posix import PosixStore
from elastic_tpu.tests.support import COMMAND, Case, Launcher, command, expected_state, lives, until

MakeCase = Callable[..., Case]
STAGES = {"export": {}, "evaluate": {"gate": ["heldout.loss <= 1.5"]}}
DATA = {"data": {"eval": "valid.parquet"}}


# ---- whole runs


def test_a_run_loses_a_slice_and_completes_as_if_it_had_not(make_case: MakeCase) -> None:
    fault = {"slice": 1, "after_step": 25, "down": "200ms"}
    case = make_case(**STAGES, **DATA, local={"faults": [fault]}, train={"steps": 200})
    with Launcher(case) as launcher:
        assert launcher.wait() == 0
    assert case.final_state() == expected_state(200)
    assert case.attempts() == [1]  # it recovered inside the process
    result = case.json("result.json")
    assert result is not None
    assert (result["final_step"], result["recoveries"]) == (199, 1)
    assert case.json("proofs/199.json")
    assert case.json("export/199/manifest.json")
    assert len(case.events("slice.lost")) == len(case.events("slice.back")) == 1
    assert len(case.events("slice.released")) == 2
    assert case.claim is not None
    assert case.claim.claim.state == "done"
    case.released()
    out = launcher.output
    assert "slice 1 lost" in out
    assert "slices released: 2 of 2" in out
    assert "ok   heldout.loss <= 1.5: 1.0" in out
    assert "\x1b" not in out  # plain lines where nobody can see a live one
    assert len(out.partition("\nrun   ")[2].splitlines()) <= 25


def test_a_complete_run_is_not_done_again(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 10}, **STAGES, **DATA)
    with Launcher(case) as launcher:
        assert launcher.wait() == 0
    with Launcher(case, log="again") as again:
        assert again.wait() == 0
    assert "training is complete already; no slices are needed" in again.output
    assert case.attempts() == case.attempts("export") == case.attempts("evaluate") == [1]
    assert len(case.events("slice.requested")) == 2


def test_a_name_taken_by_another_spec_lists_the_fields(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 10})
    with Launcher(case) as launcher:
        assert launcher.wait() == 0
    case.write(train={"steps": 12}, checkpoint={"every": 5})
    with Launcher(case, log="other") as other:
        assert other.wait() == ExitCode.BAD_INPUT
    assert other.output.startswith("error: 2 problems")
    assert "checkpoint.every" in other.output
    assert "train.steps" in other.output
    assert "take another run.name" in other.output
    assert case.attempts() == [1]


# ---- launchers that die


def test_a_killed_launcher_is_followed_by_one_that_adopts(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 300})
    with Launcher(case) as first:
        case.wait_for_step(20)
        trainer = case.trainer().pid
        first.kill()
    with Launcher(case, log="second") as second:
        second.says("going on with it")
        assert case.trainer().pid == trainer
        assert second.wait() == 0
    assert case.attempts() == [1]  # exactly one trainer, ever
    assert len(case.events("slice.requested")) == 2
    assert case.final_state() == expected_state(300)
    case.released()


def test_a_run_that_nobody_drives_saves_and_ends_itself(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000}, local={"unclaimed": "2s"})
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        supervisor = case.supervisor()
        launcher.kill()
    until(lambda: not lives(supervisor), "the end of the supervisor")
    case.released()
    record = case.json("slices.json")
    assert record is not None
    assert "nobody drives this run" in record["reason"]
    assert "local.unclaimed is 2s" in record["reason"]
    exit_record, status = case.exit_of(1), case.status
    assert exit_record is not None
    assert exit_record["exit_code"] == ExitCode.EVICTED
    assert status is not None
    assert status.proven_step == status.step  # nothing was lost


def test_an_export_that_runs_is_adopted_by_the_next_launcher(make_case: MakeCase, tmp_path: Path) -> None:
    case = make_case("--job-until", str(tmp_path / "go"), train={"steps": 5}, checkpoint={"every": 5}, export={})
    with Launcher(case) as first:
        job = case.trainer("export").pid
        until(lambda: case.attempts("export"))
        first.kill()
    with Launcher(case, log="second") as second:
        second.says("release: ")
        assert case.trainer("export").pid == job
        (tmp_path / "go").touch()
        assert second.wait() == 0
    assert case.attempts("export") == [1]
    case.released()


# ---- processes of the run that die


def test_a_killed_supervisor_takes_all_along_and_the_next_run_resumes(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 150})
    with Launcher(case) as launcher:
        case.wait_for_step(30)
        case.supervisor().kill()
        assert launcher.wait() == ExitCode.INFRASTRUCTURE
    case.released()
    assert "died together with its supervisor" in launcher.output
    assert f"elastic-tpu run {case.uri}" in launcher.output  # what to do
    with Launcher(case, log="again") as again:
        assert again.wait() == 0
    assert case.attempts() == [1, 2]
    assert case.events("train.first_step")[0].step == 0
    assert (case.events("recovery.finished")[-1].step or 0) >= 30
    assert case.final_state() == expected_state(150)
    case.released()


def test_a_killed_trainer_is_started_again_by_the_supervisor(make_case: MakeCase) -> None:
    case = make_case("--exit-at", "150:-9", "--exit-times", "1", train={"steps": 200})
    with Launcher(case) as launcher:
        assert launcher.wait() == 0
    assert case.attempts() == [1, 2]
    record = case.exit_of(1)
    assert record is not None
    assert (record["exit_code"], record["final"]) == (-9, False)
    recovery = case.events("recovery.finished")[0]
    assert recovery.data["in_process"] is False
    assert recovery.step == recovery.data["restored"] + 1
    assert case.final_state() == expected_state(200)
    case.released()


@pytest.mark.parametrize("code", [-9, 75, 143])
def test_head_restarts_are_spent(make_case: MakeCase, code: int) -> None:
    recovery = {"head_restarts": 1, "attempts_without_progress": 9}
    case = make_case("--exit-at", f"5:{code}", recovery=recovery)
    with Launcher(case) as launcher:
        assert launcher.wait() == ExitCode.LIMIT_SPENT
    assert "recovery.head_restarts (1) is spent" in launcher.output
    assert ("signal 9" if code < 0 else f"exited {code}") in launcher.output
    # A step that was proven in between refills the budget, so there is one attempt more than restarts, or two.
    assert len(case.attempts()) in (2, 3)
    case.released()


@pytest.mark.parametrize("code", [64, 70, 76, 77])
def test_these_exit_codes_are_final_and_the_commands_own(make_case: MakeCase, code: int) -> None:
    case = make_case("--exit-at", f"5:{code}")
    with Launcher(case) as launcher:
        assert launcher.wait() == code
    assert "told to exit at step 5" in launcher.output
    assert case.attempts() == [1]
    case.released()


def test_exit_0_without_a_proof_is_a_failure(make_case: MakeCase) -> None:
    case = make_case("--exit-at", "5:0")
    with Launcher(case) as launcher:
        assert launcher.wait() == ExitCode.BUG
    assert "train exited 0 but there is no result.json" in launcher.output
    case.released()


def test_a_slice_that_never_comes_back(make_case: MakeCase) -> None:
    faults = [{"slice": 1, "after_step": 12, "down": "forever"}]
    case = make_case("--step-seconds", "0.02", local={"faults": faults}, recovery={"wait_for_slices": "1s"})
    with Launcher(case) as launcher:
        assert launcher.wait() == ExitCode.LIMIT_SPENT
    assert "recovery.wait_for_slices (1s) is spent: the slices did not come back" in launcher.output
    case.released()


def test_a_trainer_command_that_does_not_exist(make_case: MakeCase) -> None:
    case = make_case(local={"trainer": ["/no/such/trainer"]})
    with Launcher(case) as launcher:
        assert launcher.wait() == ExitCode.BAD_INPUT
    assert "local.trainer" in launcher.output
    assert "/no/such/trainer" in launcher.output
    case.released()


# ---- export and evaluation


def test_a_killed_export_is_started_again(make_case: MakeCase, tmp_path: Path) -> None:
    case = make_case("--job-until", str(tmp_path / "go"), train={"steps": 5}, checkpoint={"every": 5}, export={})
    with Launcher(case) as launcher:
        until(lambda: case.attempts("export"))
        case.trainer("export").kill()
        (tmp_path / "go").touch()
        assert launcher.wait() == 0
    assert case.attempts("export") == [1, 2]
    assert case.attempts() == [1]


def test_the_launcher_and_status_say_how_far_an_export_is(make_case: MakeCase, tmp_path: Path) -> None:
    case = make_case("--job-until", str(tmp_path / "go"), train={"steps": 5}, checkpoint={"every": 5}, export={})
    with Launcher(case) as launcher:
        launcher.says("export: writing the weights, ")
        until(lambda: (case.json("jobs/export-progress.json") or {}).get("total"), "a count")
        status = command("status", case.uri).stdout
        assert re.search(r"^export +writing the weights, .* s, 1 GiB of 4 GiB \(25 %\) \(told .* ago\)$", status, re.M)
        told = json.loads(command("status", case.uri, "--json").stdout)["job"]
        assert (told["name"], told["attempt"], told["done"], told["unit"]) == ("export", 1, 2**30, "bytes")
        (tmp_path / "go").touch()
        assert launcher.wait() == 0
    assert json.loads(command("status", case.uri, "--json").stdout)["job"] is None


@pytest.mark.parametrize("job", ["export", "evaluate"])
def test_a_failing_job_ends_the_run_with_its_reason(make_case: MakeCase, job: str) -> None:
    case = make_case("--fail-job", job, train={"steps": 5}, checkpoint={"every": 5}, **STAGES, **DATA)
    with Launcher(case) as launcher:
        assert launcher.wait() == ExitCode.BUG
    assert f"{job} was told to fail" in launcher.output.partition("not complete")[2]
    assert case.attempts(job) == [1]
    case.released()


def test_a_gate_that_fails(make_case: MakeCase) -> None:
    case = make_case("--loss", "2.5", train={"steps": 5}, checkpoint={"every": 5}, **STAGES, **DATA)
    with Launcher(case) as launcher:
        assert launcher.wait() == ExitCode.GATE_FAILED
    assert "FAIL heldout.loss <= 1.5: 2.5" in launcher.output
    assert case.events("gate.failed")
    assert case.claim is not None
    assert case.claim.claim.state == "done"


# ---- who drives


def test_another_holder_is_refused_and_touches_nothing(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000})
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        with Launcher(case, log="other", LOGNAME="somebody-else") as other:
            assert other.wait() == ExitCode.HELD_BY_ANOTHER
        assert "is driven by" in other.output
        assert str(launcher.process.pid) in other.output
        assert "--take-over" in other.output
        assert launcher.process.poll() is None
        assert case.trainer()
        assert {event.data["holder"] for event in case.events("claim.taken")} == {case.claim.claim.holder}  # type: ignore[union-attr]
        launcher.interrupt()
        assert launcher.wait() == ExitCode.INTERRUPTED
    case.released()


def test_a_second_launcher_of_the_same_user_is_refused_then_takes_over(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000})
    with Launcher(case) as first:
        case.wait_for_step(5)
        trainer = case.trainer()
        with Launcher(case, log="second") as second:
            assert second.wait() == ExitCode.HELD_BY_ANOTHER
        assert f"instance {first.process.pid}:" in second.output
        assert "still runs on this host" in second.output
        with Launcher(case, "run", str(case.spec), "--take-over", log="third") as third:
            assert first.wait() == ExitCode.ENDED_ON_REQUEST
            assert "took the run over" in first.output
            assert "cancels nothing" in first.output
            third.says("train: training")
            assert lives(trainer)  # the first one ended without cancelling
            assert len(case.workers()) == 2
            assert not case.events("claim.stopped")
            third.interrupt()
            assert third.wait() == ExitCode.INTERRUPTED
    assert case.attempts() == [1]
    case.released()


def test_the_launcher_of_a_run_that_a_trainer_by_hand_took_ends(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000})
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        with subprocess.Popen(
            case.trainer().cmdline(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as by_hand:
            try:
                assert launcher.wait() == ExitCode.ENDED_ON_REQUEST
                assert "another trainer" in launcher.output
            finally:
                by_hand.kill()
    record = case.exit_of(1)
    assert record is not None
    assert record["exit_code"] == ExitCode.ENDED_ON_REQUEST


def test_a_stop_while_slices_are_taken_is_not_undone(make_case: MakeCase) -> None:
    # The launcher is stopped (SIGSTOP) while it provisions, so that the order of events is certain.
    case = make_case()
    with Launcher(case) as launcher:
        until(lambda: case.claim, "a claim")
        store = PosixStore(Path(case.uri))
        with store._locked():  # so that it does not stop while it holds the lock, which would keep others out
            os.kill(launcher.process.pid, signal.SIGSTOP)
            until(lambda: psutil.Process(launcher.process.pid).status() == psutil.STATUS_STOPPED)
        seen = case.claim
        assert seen is not None
        stopped = decide_stop(seen.claim, "bob@there", "a colleague", 0.0, "nonce")
        assert stopped is not None
        driver = Driver(store, seen.claim.holder, seen.claim.instance, 60.0, term=seen.claim.term)
        driver.stop(0.0, "a colleague")
        os.kill(launcher.process.pid, signal.SIGCONT)
        assert launcher.wait() == ExitCode.ENDED_ON_REQUEST
    assert "a colleague" in launcher.output
    assert not case.json("result.json")
    case.nothing_left()


def test_output_that_nobody_reads_any_more_ends_no_run(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 30})
    with subprocess.Popen(
        [*COMMAND, "run", str(case.spec)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        launcher.stdout.close()  # as `| head -1` does
        assert launcher.wait(60) == 0
    assert case.json("result.json")
    case.released()


def test_a_closed_terminal_gives_the_slices_back(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000})
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        launcher.process.send_signal(signal.SIGHUP)
        assert launcher.wait() == ExitCode.INTERRUPTED
    case.released()


def test_under_nohup_a_closed_terminal_is_outlived(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 200})
    with subprocess.Popen(["nohup", *COMMAND, "run", str(case.spec)], stdout=subprocess.DEVNULL) as launcher:
        case.wait_for_step(5)
        launcher.send_signal(signal.SIGHUP)
        assert launcher.wait(60) == 0
    assert case.json("result.json")


def test_a_long_tmpdir_is_no_obstacle(make_case: MakeCase, tmp_path: Path) -> None:
    case = make_case(train={"steps": 20})
    folder = tmp_path / ("t" * 90)
    folder.mkdir()
    with Launcher(case, TMPDIR=str(folder)) as launcher:
        assert launcher.wait() == 0, launcher.output
    assert f"so they are below /tmp: {folder}" in launcher.output


@pytest.mark.parametrize("name", ["claim.json", "slices.json"])
def test_a_damaged_record_keeps_no_slice_from_its_release(make_case: MakeCase, name: str) -> None:
    case = make_case(train={"steps": 100_000}, local={"unclaimed": "5m"})
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        launcher.kill()
    (Path(case.uri) / name).write_text("[]")
    done = command("release", case.uri)
    assert done.returncode == 0, done.stderr
    case.nothing_left()


def test_a_secret_in_the_last_words_of_a_trainer_is_told_nowhere(make_case: MakeCase, tmp_path: Path) -> None:
    token, value = "ghp_0123456789abcdefghij0", "open-sesame-of-mine"
    words = f"GET https://bot:{token}@example.org/x?sig=Zm9vYmFyMTIz failed with $MY_TOKEN"
    (tmp_path / "words").write_text(words)
    spec = {"secrets": {"MY_TOKEN": {"env": "OF_MINE"}}}
    case = make_case("--exit-at", "5:70", "--reason", str(tmp_path / "words"), **spec)
    with Launcher(case, OF_MINE=value) as launcher:
        assert launcher.wait() == ExitCode.BUG
    assert "https://<hidden>@example.org/x?sig=<hidden> failed with <hidden>" in launcher.output
    written = [path for path in Path(case.uri).rglob("*") if path.is_file() and path.name != "trainer.log"]
    told = {str(path): path.read_bytes() for path in written} | {"the terminal": launcher.output.encode()}
    for secret in (token, value, "Zm9vYmFyMTIz"):
        assert [name for name, data in told.items() if secret.encode() in data] == []
    assert any(name.endswith("report.html") for name in told)
