"""What a person does to a run in a cluster, by the command: look, lose a slice, cancel, release, Ctrl-C."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from elastic_tpu.cli.main import app
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.gke.status import stuck_pods
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.tests.support import Launcher, until
from typer.testing import CliRunner

if TYPE_CHECKING:
    from click.testing import Result
    from elastic_tpu.tests.controlplane.cases import ClusterCase


def ask(case: ClusterCase, what: str, *more: str) -> Result:
    """A command in this process: starting one takes seconds."""
    return CliRunner().invoke(app, [what, case.uri, *more])


def say(case: ClusterCase, what: str, *more: str) -> str:
    """What a command that must succeed puts out."""
    done = ask(case, what, *more)
    assert done.exit_code == 0, done.output
    return done.stdout


def row(text: str, name: str) -> str:
    """One line of `status`."""
    return next(line for line in text.splitlines() if line.startswith(name)).removeprefix(name).strip()


def table(text: str) -> dict[str, list[str]]:
    """The rows of a release: existed, deleted, left, by object."""
    lines = text[text.index("object") :].splitlines()[1:]
    rows = [line.rsplit(maxsplit=2) for line in lines]
    return {name.strip(): rest for name, *rest in rows}


def test_a_run_is_watched_loses_slices_on_request_and_is_cancelled(case: ClusterCase) -> None:
    case.hold_at(15)
    with case.hardware(), Launcher(case) as launcher:
        case.wait_for_step(14)
        with Launcher(case, "logs", case.uri, "--follow", log="follow") as follower:
            assert row(say(case, "status"), "slices") == "2 of 2 slices ready"
            said = say(case, "kill-slice", "1")
            assert said.startswith(f"slice 1: pod {names.worker_job(case.run_id, 1)}-"), said
            until(lambda: len(case.events("recovery.finished")) == 1, "the recovery from one lost pod")
            said = say(case, "kill-slice", "0", "--whole")
            assert said.count(names.worker_job(case.run_id, 0)) == 4, said
            until(lambda: len(case.events("recovery.finished")) == 2, "the recovery from a lost slice")
            refused = ask(case, "kill-slice", "7")
            assert refused.exit_code == ExitCode.BAD_INPUT
            assert "this run has 2 slices, numbered from 0" in refused.stderr
            said = say(case, "cancel")
            assert "training is at step" in said
            assert "drives the run and gives the slices back" in said
            assert launcher.wait() == ExitCode.ENDED_ON_REQUEST, launcher.output
            assert follower.wait() == 0
            assert f"exit code {ExitCode.ENDED_ON_REQUEST.value}" in follower.output, follower.output
        case.nothing_left()
        assert [e.data["slice"] for e in case.events("slice.lost")] == [1, 0]
        (ended,) = case.events("attempt.ended")
        assert ended.data["code"] == ExitCode.ENDED_ON_REQUEST
        assert case.status is not None
        assert case.status.proven_step == case.status.step  # it saved first
        assert row(say(case, "status"), "slices") == "released"
        assert "nothing was held; nothing to release" in say(case, "release")


def test_a_run_whose_launcher_is_gone_is_released_by_a_person(case: ClusterCase) -> None:
    case.hold_at(15)
    with case.hardware(), Launcher(case) as launcher:
        case.wait_for_step(14)
        launcher.kill()
        said = say(case, "release")
        held = [f"JobSet {case.run_id}", "slice 0", "slice 1"]
        assert table(said) == {name: ["yes", "yes"] for name in held}, said
        case.nothing_left()
        assert case.status is not None
        assert case.status.phase == "ended"
        assert case.status.proven_step == case.status.step
        assert "nothing was held; nothing to release" in say(case, "release")


def test_ctrl_c_saves_and_gives_the_slices_back(case: ClusterCase) -> None:
    case.hold_at(15)
    with case.hardware(), Launcher(case) as launcher:
        case.wait_for_step(14)
        launcher.says("training")
        launcher.interrupt()
        launcher.says("Ctrl-C again stops it")
        launcher.interrupt()
        assert launcher.wait() == ExitCode.INTERRUPTED, launcher.output
        case.nothing_left()
        assert case.status is not None
        assert (case.status.exit, case.status.proven_step) == (ExitCode.ENDED_ON_REQUEST, case.status.step)
        assert "slices released: 2 of 2" in launcher.output
        assert f"elastic-tpu run {case.uri}" in launcher.output  # how to go on
        case.go_on()
        with Launcher(case, "run", case.uri, log="again") as again:
            assert again.wait() == 0, again.output
        case.nothing_left()


@pytest.mark.parametrize("how", ["Ctrl-C", "a closed terminal", "--detach"])
def test_training_outlives_a_launcher_that_leaves(case: ClusterCase, how: str) -> None:
    case.hold_at(15)
    more = ["--detach"] if how == "--detach" else []
    with case.hardware(), Launcher(case, "run", *more, str(case.spec)) as launcher:
        if how != "--detach":
            case.wait_for_step(14)
            launcher.process.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGHUP)
        assert launcher.wait() == (0 if how == "--detach" else ExitCode.INTERRUPTED), launcher.output
        assert f"attach         elastic-tpu run {case.uri}" in launcher.output
        case.wait_for_step(14)
        assert case.jobset is not None
        case.go_on()
        with Launcher(case, "run", case.uri, log="again") as again:
            assert again.wait() == 0, again.output
        result = case.record("result.json")
        assert result is not None
        assert result["attempts"] == 1
        case.nothing_left()


def test_a_release_does_not_wait_for_a_silent_node(case: ClusterCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_pods, "_SILENT", timedelta(seconds=1))
    head = {"spec": {**case.here["patch"]["spec"], "terminationGracePeriodSeconds": 1}}
    case.write(gke={"head": head})
    case.hold_at(15)
    with case.hardware():
        case.launch()
        case.wait_for_step(14)
        (node,) = case.heads
        node.lose_power()
        assert table(say(case, "release"))[f"JobSet {case.run_id}"] == ["yes", "yes"]
        case.nothing_left()
