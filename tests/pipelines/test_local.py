"""`elastic-tpu run --via kfp-local`: the same pipeline on this machine, and what is left when it does not end well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from elastic_tpu.components.step_files import Note
from elastic_tpu.pipelines.local import LocalPipeline, judge
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.tests.support import Case, Launcher, expected_state, lives, until

MakeCase = Callable[..., Case]
STAGES = {"export": {}, "evaluate": {"gate": ["heldout.loss <= 1.5"]}}
DATA = {"data": {"eval": "valid.parquet"}}
SHORT = {"train": {"steps": 5}, "checkpoint": {"every": 5}}
LONG = {"train": {"steps": 100_000}}


class Runner(Launcher):
    """The command with the pipeline; every process of it belongs to the run."""

    def __init__(self, case: Case, *options: str, **more: Any) -> None:
        super().__init__(case, "run", str(case.spec), "--via", "kfp-local", *options, **more)

    def pipeline(self) -> psutil.Process:
        """The process of kfp.local."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def step(self) -> psutil.Process:
        """The process of the component that runs."""

        def found() -> list[psutil.Process]:
            return [p for p in self.pipeline().children(recursive=True) if "kfp.dsl.executor_main" in p.cmdline()]

        return until(found, "a step")[-1]


def artifacts(case: Case) -> dict[str, dict[str, Any]]:
    """What kfp.local recorded of each task's output artifacts, by task and name."""
    found = {}
    for path in (case.output / ".kfp" / case.name).glob("*/artifacts/*/*/executor_output.json"):
        outputs = json.loads(path.read_text()).get("artifacts", {})
        found[path.parent.name] = {name: value["artifacts"][0] for name, value in outputs.items()}
    return found


def test_a_pipeline_loses_a_slice_and_completes(make_case: MakeCase) -> None:
    fault = {"slice": 1, "after_step": 25, "down": "200ms"}
    case = make_case(**STAGES, **DATA, local={"faults": [fault]}, train={"steps": 200})
    with Runner(case) as runner:
        assert runner.wait() == 0
    assert case.final_state() == expected_state(200)
    assert case.attempts() == case.attempts("export") == case.attempts("evaluate") == [1]
    assert len(case.events("slice.lost")) == len(case.events("slice.back")) == 1
    assert {event.data["holder"] for event in case.events("claim.taken")} == {case.claim.claim.holder}  # type: ignore[union-attr]
    assert case.claim is not None
    assert case.claim.claim.state == "done"
    case.released()
    out = runner.output
    for line in ["slice 1 lost", "release: slices released: 2 of 2", "ok   heldout.loss <= 1.5: 1.0", "export: "]:
        assert line in out
    assert "KFP Executor" not in out  # kfp's own log disturbs no display
    assert "\x1b" not in out
    made = artifacts(case)
    manifest, spec_hash = case.json("export/199/manifest.json"), case.run.spec_hash
    assert manifest is not None
    model = made["export-checkpoint"]["model"]
    assert model["metadata"]["model"] == f"{case.uri}/export/199"
    assert (model["metadata"]["step"], model["metadata"]["export_digest"]) == (199, manifest["export_digest"])
    (uri,) = (case.output / ".kfp" / case.name).glob("*/artifacts/*/export-checkpoint/model_uri")
    assert uri.read_text() == f"{case.uri}/export/199"
    trained, evaluated = (
        made["train-elastic"]["metrics"]["metadata"],
        made["evaluate-checkpoint"]["metrics"]["metadata"],
    )
    assert (trained["step"], trained["recoveries"], trained["proof_digest"]) == (199, 1, manifest["proof_digest"])
    assert (evaluated["heldout.loss"], evaluated["export_digest"]) == (1.0, manifest["export_digest"])
    assert {m["spec_hash"] for m in (model["metadata"], trained, evaluated)} == {spec_hash}
    assert Path(made["evaluate-checkpoint"]["report"]["uri"]).read_bytes().startswith(b"<!")


@pytest.mark.parametrize(
    ("trainer", "sections", "code", "says"),
    [
        ((), {"limits": {"start": "1ms"}}, ExitCode.LIMIT_SPENT, "limits.start"),
        (("--exit-at", "3:70"), {}, ExitCode.BUG, "told to exit at step 3"),
        (("--fail-job", "export"), {}, ExitCode.BUG, "export was told to fail"),
        (("--loss", "2.5"), {}, ExitCode.GATE_FAILED, "FAIL heldout.loss <= 1.5: 2.5"),
    ],
    ids=["provision", "train", "export", "evaluate"],
)
def test_a_step_that_fails_gives_the_exit_code_and_the_slices_are_back(
    make_case: MakeCase, trainer: tuple[str, ...], sections: dict[str, Any], code: int, says: str
) -> None:
    case = make_case(*trainer, **STAGES, **DATA, **SHORT, **sections)
    with Runner(case) as runner:
        assert runner.wait() == code
    assert says in runner.output
    assert "Traceback" not in runner.output
    case.released()


def test_a_step_that_is_killed_is_infrastructure_and_the_slices_are_back(make_case: MakeCase) -> None:
    case = make_case(**LONG)
    with Runner(case) as runner:
        case.wait_for_step(20)
        runner.step().kill()
        assert runner.wait() == ExitCode.INFRASTRUCTURE
    assert "train: the step was killed" in runner.output
    assert f"elastic-tpu run {case.uri}" in runner.output  # goes on from what was saved
    case.released()


def test_a_ctrl_c_saves_and_releases(make_case: MakeCase) -> None:
    case = make_case(**LONG)
    with Runner(case) as runner:
        case.wait_for_step(20)
        pipeline = runner.pipeline()
        runner.interrupt(whole_group=True)
        assert runner.wait() == ExitCode.INTERRUPTED
    assert not lives(pipeline)
    case.released()
    status = case.status
    assert status is not None
    assert status.proven_step == status.step >= 20
    assert f"step {status.step} is saved and proven" in runner.output
    assert "Traceback" not in runner.output
    assert [event.data["grace"] for event in case.events("claim.stopped")] == [0]


def test_a_second_ctrl_c_does_not_wait_for_a_trainer_that_hangs(make_case: MakeCase) -> None:
    case = make_case("--hang-at", "20", **LONG)
    with Runner(case) as runner:
        until(lambda: case.json("proofs/10.json"), "a proven checkpoint")
        until(lambda: case.at_step(19), "the last step before it hangs")
        runner.interrupt()
        runner.says("Ctrl-C again")
        runner.interrupt()
        assert runner.wait(20) == ExitCode.INTERRUPTED
    assert "not waiting for the save" in runner.output
    case.released()


def test_ctrl_c_before_any_step_leaves_nothing(make_case: MakeCase) -> None:
    case = make_case()
    with Runner(case) as runner:
        runner.says("kfp is being loaded")
        runner.interrupt()
        assert runner.wait(20) == ExitCode.INTERRUPTED
    assert case.claim is None
    case.nothing_left()


@pytest.mark.full
def test_a_killed_runner_takes_its_pipeline_along_and_the_next_adopts(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 900})
    with Runner(case) as first:
        case.wait_for_step(5)
        trainer, step = case.trainer(), first.step()
        first.kill()
        until(lambda: not lives(step), "the end of the step")
    assert lives(trainer)
    with Runner(case, log="second") as second:
        assert second.wait() == 0
    assert case.attempts() == [1]
    assert case.final_state() == expected_state(900)
    case.released()


@pytest.mark.full
def test_a_second_runner_is_refused_then_takes_over_and_the_first_releases_nothing(make_case: MakeCase) -> None:
    case = make_case(**LONG)
    with Runner(case) as first:
        case.wait_for_step(5)
        with Runner(case, log="second") as second:
            assert second.wait() == ExitCode.HELD_BY_ANOTHER
        assert "still runs on this host" in second.output
        assert first.process.poll() is None
        with Runner(case, "--take-over", log="third") as third:
            assert first.wait() == ExitCode.ENDED_ON_REQUEST
            assert "took the run over" in first.output
            third.says("train: training")
            assert lives(case.trainer())
            assert len(case.workers()) == 2
            assert not case.events("claim.stopped") + case.events("slice.released")
            os.kill(third.process.pid, signal.SIGINT)
            assert third.wait() == ExitCode.INTERRUPTED
    assert case.attempts() == [1]
    case.released()


def test_a_path_that_kfp_local_would_change_is_refused(make_case: MakeCase) -> None:
    case = make_case(run={"name": "python3-run"})
    with Runner(case) as runner:
        assert runner.wait() == ExitCode.BAD_INPUT
    assert "kfp.local writes another text for 'python3'" in runner.output


ALL = [Note(name, 0) for name in ("provision", "train", "release", "export", "evaluate", "release")]


@pytest.mark.parametrize(
    ("notes", "kfp_code", "outcome", "code"),
    [
        (ALL, 0, "complete", 0),
        ([*ALL[:1], Note("train", 70, "a bug"), Note("release", 0)], 1, "failed", 70),
        ([*ALL[:1], Note("train", 70, "a bug"), Note("release", 0)], 0, "failed", 70),  # whatever kfp.local says
        ([Note("provision", 69, "another"), Note("release", 69, "another")], 1, "superseded", 69),
        ([*ALL[:1], Note("train"), Note("release", 0)], 1, "failed", 75),
        ([*ALL[:1], Note("train", 143, "ended by SIGTERM"), Note("release", 0)], 1, "failed", 75),
        ([*ALL[:5], Note("release", 75, "slice 1 is left")], 1, "failed", 75),
        (ALL, 1, "failed", 70),
        (ALL[:3], 0, "failed", 70),  # export and evaluate never began
        ([], 1, "failed", 70),
    ],
)
def test_the_verdict_on_a_pipeline_is_its_steps(
    notes: list[Note], kfp_code: int, outcome: str, code: int, tmp_path: Path
) -> None:
    log = tmp_path / "pipeline.log"
    log.write_text("something\nRuntimeError: the last words\n\n")
    verdict = judge(notes, kfp_code, log)
    assert (verdict.phase, verdict.outcome, verdict.code) == ("done", outcome, code)
    if code == ExitCode.BUG and all(note.code == 0 for note in notes):
        assert "the last words" in verdict.reason


def test_a_step_whose_kfp_local_died_ends_with_the_pipeline(make_case: MakeCase) -> None:
    case = make_case()
    pipeline = LocalPipeline(create_run(read_spec(str(case.spec))), "ann@host")
    step = f"{sys.executable} -c 'import time; time.sleep(600)' {case.uri}/step"
    died = subprocess.Popen(["/bin/sh", "-c", f"{step} & exit"], stdin=subprocess.PIPE, start_new_session=True)
    until(lambda: case.processes("time.sleep"), "the step")
    assert died.wait() == 0
    pipeline._process = died
    pipeline.close()
    until(lambda: not case.processes("time.sleep"), "the step's end")
