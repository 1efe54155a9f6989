"""The KFP adapter and its components: the loop, signals, who may act, and what each component declares."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu import __version__
from elastic_tpu.components import kfp_step as adapter
from elastic_tpu.pipelines import describe
from elastic_tpu.runs.errors import (
    BadInput,
    ElasticTPUError,
    EndedOnRequest,
    ExitCode,
    HeldByAnother,
    Infrastructure,
    Problem,
    Unreachable,
)
from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.stages.allowed import ALLOW_LOCAL
from elastic_tpu.tests.fakes.stage import ScriptedStage
from elastic_tpu.tests.support import Case, Launcher, expected_state, lives, until

MakeCase = Callable[..., Case]
STEP = "import sys; from elastic_tpu.components.kfp_step import run_step; run_step(*sys.argv[1:])"


# ---- the loop


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


DONE = Verdict("done", "complete")


def followed(stage: ScriptedStage) -> tuple[list[str], float]:
    """The lines of the log, and the seconds that it took."""
    lines: list[str] = []
    clock = Clock()
    assert adapter.follow(stage, tell=lines.append, clock=clock, sleep=clock.sleep).summary == "well"
    return lines, clock.now


def test_the_log_has_a_line_for_each_change_and_one_every_30_seconds() -> None:
    running = [Verdict("running")] * 7
    lines, seconds = followed(ScriptedStage(Verdict("queued", reason="position 3"), *running, DONE))
    assert lines == ["train: queued, position 3", "train: running", "train: running", "train: running"]
    assert seconds == 80


def test_a_storage_that_does_not_answer_is_waited_for() -> None:
    lost = Unreachable("bucket: no answer")
    lines, _ = followed(ScriptedStage(Verdict("running"), lost, lost, DONE, collects=[lost]))
    assert lines[1:] == ["waiting for an answer: bucket: no answer"] * 3


def test_a_storage_that_never_answers_ends_the_step_as_infrastructure() -> None:
    clock = Clock()
    with pytest.raises(Unreachable):
        adapter.follow(ScriptedStage(*[Unreachable("gone")] * 999), tell=str, clock=clock, sleep=clock.sleep)
    assert 1800 <= clock.now < 2000


def test_sigterm_cancels_with_a_grace_that_a_rescheduled_step_undoes() -> None:
    stage = ScriptedStage(Verdict("running"), adapter.Terminated())
    with pytest.raises(adapter.Terminated):
        adapter.follow(stage, tell=str, sleep=lambda _: None)
    assert stage.cancelled == [(300.0, "SIGTERM", False)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (HeldByAnother("another"), 69),
        (ElasticTPUError("a bug"), 70),
        (ValueError("unforeseen"), 70),
        (Infrastructure("network"), 75),
        (EndedOnRequest("stopped by bob"), 76),
        (adapter.Terminated(), 143),
    ],
)
def test_a_step_ends_with_the_exit_code_of_its_error(
    error: BaseException | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(adapter, "open_stage", lambda *_, **__: ScriptedStage(error or DONE))
    before = signal.getsignal(signal.SIGTERM)
    try:
        adapter.run_step("train", "run", "job-1")
        ended: object = 0
    except SystemExit as end:
        ended = end.code
    assert ended == code
    assert ("error: " in capsys.readouterr().out) == (code not in (0, 76))  # a stop is none
    assert signal.getsignal(signal.SIGTERM) is before


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of the log, without its time."""
    return capsys.readouterr().out.splitlines()[-1].partition("  ")[2]


def test_the_last_line_of_a_step_that_fails_says_it_all(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = create_run(read_spec(str(make_case().spec)))
    error = BadInput([Problem("gke.namespace", "team", "none"), Problem("gke.ttl", "x", "wrong")])
    stage = ScriptedStage()
    stage.uri = run.uri
    monkeypatch.setattr(adapter, "open_stage", lambda *_, **__: stage)
    for report in ("", f"; report {run.uri}/report.html"):
        if report:
            run.store.create("report.html", b"a page")
        stage.looks = [error]
        with pytest.raises(SystemExit, match="64"):
            adapter.run_step("train", "gs://acme/spec.yaml", "job-1")
        assert last_line(capsys) == (
            "train: error: exit code 64 (bad spec or input): gke.namespace: 'team', none; gke.ttl: 'x', wrong; "
            f"run {run.uri}{report}"
        )


def test_a_long_reason_is_shortened_in_the_last_line_and_stands_whole_above_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = f"begin {'x' * 3000} end"
    monkeypatch.setattr(adapter, "open_stage", lambda *_, **__: ScriptedStage(ElasticTPUError(reason)))
    with pytest.raises(SystemExit):
        adapter.run_step("train", "gs://acme/spec.yaml", "job-1")
    *_, above, last = capsys.readouterr().out.splitlines()
    assert reason in above
    assert len(last) < 1000
    assert "begin x" in last
    assert last.endswith("x end; spec gs://acme/spec.yaml")  # no run was opened


def test_a_release_tries_again_and_other_steps_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ScriptedStage] = []

    def open_stage(*_: object, **__: object) -> ScriptedStage:
        errors = [Infrastructure("slice 1 is left")] if len(opened) < 3 else []
        opened.append(ScriptedStage(DONE, collects=errors))
        return opened[-1]

    monkeypatch.setattr(adapter, "open_stage", open_stage)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    adapter.run_step("release", "run", "job-1")
    assert len(opened) == 4
    opened.clear()
    with pytest.raises(SystemExit, match="75"):
        adapter.run_step("provision", "run", "job-1")
    assert len(opened) == 1


# ---- what whoever starts a pipeline cannot have


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "platform: 'local', would run"),
        ({ALLOW_LOCAL: "1", "ELASTIC_TPU_SPECS": "gs://acme/specs"}, "may start only what lies under gs://acme/specs"),
        ({ALLOW_LOCAL: "1", "ELASTIC_TPU_SPEC_HASH": "other"}, "this pipeline started with other"),
    ],
)
def test_a_step_does_only_what_its_environment_allows(
    make_case: MakeCase,
    environ: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = make_case()
    for name, value in {"ELASTIC_TPU_INSTANCE": "1", **environ}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        adapter.run_step("provision", str(case.spec), "job-1")
    assert ended.value.code == ExitCode.BAD_INPUT
    assert said in capsys.readouterr().out
    assert case.attempts() == []
    assert case.claim is None


@pytest.mark.parametrize("name", [name for name in adapter.STEPS if name != "provision"])
def test_a_step_refuses_another_spec_than_the_one_that_provision_found(
    name: str, make_case: MakeCase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    run = create_run(read_spec(str(make_case().spec)))
    with pytest.raises(SystemExit, match="64"):
        adapter.run_step(name, run.uri, "job-1", spec_hash="0" * 64)
    assert f"has the hash {run.spec_hash}, this pipeline started with {'0' * 64}" in last_line(capsys)


def sweep(make_case: MakeCase, output: Path, *names: str) -> list[Case]:
    """Cases whose runs are below one output."""
    cases = [make_case(name=name) for name in names]
    for case in cases:
        case.output = output
        case.write()
    return cases


def test_one_exit_task_gives_back_the_slices_of_all_runs_of_a_sweep(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    output = str(tmp_path / "sweep")
    runs = {case.name: case for case in sweep(make_case, tmp_path / "sweep", "a", "b", "other")}
    for name, case in runs.items():
        adapter.run_step("provision", str(case.spec), "job-2" if name == "other" else "job-1")
    adapter.run_step("release", output, "job-1", last=True)
    assert last_line(capsys) == f"release: 2 runs of job-1 below {output} released"
    states = {name: case.claim.claim.state for name, case in runs.items() if case.claim}
    assert states == {"a": "done", "b": "done", "other": "held"}
    assert {name: len(case.workers()) for name, case in runs.items()} == {"a": 0, "b": 0, "other": 2}


def test_the_exit_task_of_a_sweep_tries_all_runs_and_fails_for_one(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    output = str(tmp_path / "sweep")
    taken, mine = sweep(make_case, tmp_path / "sweep", "a", "b")
    for case in (taken, mine):
        adapter.run_step("provision", str(case.spec), "job-1")
    adapter.open_stage(adapter.STEPS["provision"], taken.uri, "ann", take_over=True, allow_local=True).submit()
    with pytest.raises(SystemExit, match=str(int(ExitCode.HELD_BY_ANOTHER))):
        adapter.run_step("release", output, "job-1")
    assert "nothing was changed for job-1" in capsys.readouterr().out
    assert (len(taken.workers()), len(mine.workers())) == (2, 0)


@pytest.mark.parametrize("variable", ["KFP_POD_NAME", "CLOUD_ML_PROJECT_ID"])
@pytest.mark.parametrize("name", adapter.STEPS)
def test_in_a_container_of_a_backend_no_step_drives_a_local_run(
    name: str,
    variable: str,
    make_case: MakeCase,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Slices would be processes of provision's container, and die with it, whoever allows it."""

    def wait(seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s to try again")

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    monkeypatch.setenv(variable, "a-pod")
    case = make_case()
    run = create_run(read_spec(str(case.spec)))
    with pytest.raises(SystemExit, match="64"):
        adapter.run_step(name, run.uri, "job-1")
    last = last_line(capsys)
    assert last.startswith(
        f"{name}: error: exit code 64 (bad spec or input): platform: 'local', would run the training"
    )
    assert "a container that ends with its step" in last
    assert case.claim is None


# ---- steps as processes, as pods run them


def step(case: Case, name: str, holder: str = "job-1", **env: str) -> subprocess.Popen[bytes]:
    log = (case.folder / "steps.out").open("ab")
    argv = [sys.executable, "-c", STEP, name, str(case.spec), holder]
    return subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, ALLOW_LOCAL: "1", **env})


def test_a_train_step_that_is_drained_is_followed_by_one_and_training_never_noticed(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 600})
    assert step(case, "provision").wait(60) == 0
    drained = step(case, "train")
    case.wait_for_step(5)
    trainer = case.trainer()
    drained.terminate()
    end = time.monotonic() + 1.0
    stopped = until(lambda: case.claim if case.claim and case.claim.claim.state == "stop" else None, "a stop", 1.0)
    assert (stopped.claim.grace, stopped.claim.by, stopped.claim.by_holder) == (300, "SIGTERM", "job-1")
    time.sleep(max(0.0, end - time.monotonic()))
    drained.kill()
    drained.wait()
    rescheduled = step(case, "train")
    until(lambda: case.claim and case.claim.claim.state == "held", "a claim that is held again")
    assert lives(trainer)
    assert rescheduled.wait(60) == 0
    assert case.attempts() == [1]
    assert case.final_state() == expected_state(600)
    assert not case.events("train.restored")
    assert step(case, "release").wait(60) == 0
    case.released()


def test_sigterm_ends_a_step_with_143_and_a_ctrl_c_does_nothing(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000})
    assert step(case, "provision").wait(60) == 0
    train = step(case, "train")
    case.wait_for_step(5)
    train.send_signal(signal.SIGINT)
    reached = case.status.step + 20 if case.status else 20
    case.wait_for_step(reached)
    assert train.poll() is None
    train.terminate()
    assert train.wait(20) == ExitCode.EVICTED
    assert step(case, "release").wait(60) == 0  # the exit task of the same pipeline run
    case.released()


def test_a_pipeline_whose_provision_was_refused_releases_nothing(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000})
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        assert step(case, "provision").wait(60) == ExitCode.HELD_BY_ANOTHER
        assert step(case, "release").wait(60) == ExitCode.HELD_BY_ANOTHER
        assert lives(case.trainer())
        assert len(case.workers()) == 2
        assert not case.events("claim.stopped") + case.events("slice.released")
        assert "nothing was changed for job-1" in (case.folder / "steps.out").read_text()
        launcher.interrupt()
        assert launcher.wait() == ExitCode.INTERRUPTED
    case.released()


# ---- what the components declare


@pytest.mark.parametrize("name", describe.NAMES)
def test_a_component_has_the_two_parameters_and_a_pinned_image(name: str) -> None:
    spec = describe.component(name).component_spec
    last = {"last": "Boolean"} if name == "release_slices" else {}
    pinned = {} if name == "provision_slices" else {"spec_hash": "String"}
    needed = {key: value.type for key, value in spec.inputs.items() if not value.optional}
    assert needed == {"run": "String", "holder": "String"}
    assert {key: value.type for key, value in spec.inputs.items()} == {**needed, **last, **pinned}
    assert spec.implementation.container.image == f"elastic-tpu:{__version__}"
    about = describe.metadata(name)
    assert about["name"] == name
    assert adapter.STEPS[about["step"]]
    assert about["inputs"] == list(spec.inputs)
    assert about["outputs"] == list(spec.outputs or {})


@pytest.mark.parametrize("name", describe.NAMES)
def test_a_component_file_imports_kfp_the_standard_library_and_the_adapter_alone(name: str) -> None:
    tree = ast.parse((describe.COMPONENTS / name / "component.py").read_text())
    allowed = sys.stdlib_module_names | {"kfp", "elastic_tpu.components.kfp_step", "..kfp_step"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert "." * node.level + (node.module or "") in allowed
        elif isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= allowed
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(function.body) == 3  # docstring, import, one call


@pytest.mark.parametrize("name", describe.NAMES)
def test_a_readme_is_what_the_component_says(name: str) -> None:
    there = (describe.COMPONENTS / name / "README.md").read_text(encoding="utf-8")
    assert there == describe.readme(name), "python -m elastic_tpu.pipelines.describe"


def test_a_stale_readme_is_named(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name in describe.NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata.yaml").write_bytes((describe.COMPONENTS / name / "metadata.yaml").read_bytes())
    monkeypatch.setattr(describe, "COMPONENTS", tmp_path)
    assert describe.main([]) == 0
    assert describe.main(["--check"]) == 0
    (tmp_path / "train_elastic" / "README.md").write_text("old")
    assert describe.main(["--check"]) == 1
    assert "train_elastic/README.md is stale" in capsys.readouterr().err


# ---- what is not the stage's own matter


@pytest.mark.parametrize(("stops", "said"), [(True, "stop written"), (False, "nothing is stopped")])
def test_the_log_says_whether_a_stop_was_written(stops: bool, said: str) -> None:
    lines: list[str] = []
    stage = ScriptedStage(adapter.Terminated())
    stage.stops = stops
    with pytest.raises(adapter.Terminated):
        adapter.follow(stage, tell=lines.append, sleep=lambda _: None)
    assert said in lines[-1]
