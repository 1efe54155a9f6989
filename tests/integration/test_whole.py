"""Whole runs from the command line with the real trainer: what a user types, and what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml
from elastic_tpu.runs.record.events import EventReader
from elastic_tpu.runs.record.result import proven_result
from elastic_tpu.runs.record.run import open_run

from .conftest import ROOT, tiny_spec, wait_for

pytestmark = [pytest.mark.maxtext, pytest.mark.full]
COMMAND = [str(Path(sys.executable).with_name("elastic-tpu"))]


def write_spec(folder: Path, data: Path, output: str, **changes: object) -> Path:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(tiny_spec(output, data, **changes)))
    return path


def run_command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def events_of(uri: str, kind: str) -> list[int | None]:
    return [event.step for event in EventReader(open_run(uri).store).all() if event.kind == kind]


def left_over(uri: str) -> list[str]:
    """Command lines of processes that belong to a run."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if uri in line and process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            found.append(line)
    return found


def test_a_bucket_run_through_a_slice_loss_to_an_evaluated_model(
    tmp_path: Path, data: Path, gcs_bucket: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fault = {"slice": 1, "after_step": 12, "down": "1s"}
    output = f"gs://{gcs_bucket}/runs"
    local = {"restart_delay": "500ms", "faults": [fault]}
    spec = write_spec(tmp_path, data, output, local=local, evaluate={"gate": ["heldout.loss <= 5.6"]})
    done = run_command("run", spec)
    assert done.returncode == 0, done.stdout + done.stderr
    run = open_run(f"{output}/r")
    result, why = proven_result(run)
    assert result is not None, why
    assert (result.attempts, result.recoveries) == (1, 1)
    assert "slices released: 3 of 3" in done.stdout
    assert run.store.read(f"export/{result.final_step}/manifest.json").data
    (evaluation,) = run.store.list("evaluation/")
    heldout = json.loads(run.store.read(evaluation.name).data)["metrics"]["heldout"]
    assert heldout["loss"] < heldout["uniform_loss"], "it learned something"
    assert b"completed step" in run.store.read("attempts/1/trainer.log").data
    verified = run_command("verify", run.uri)
    assert verified.returncode == 0, verified.stdout
    assert left_over(run.uri) == []


def test_a_slice_that_never_comes_back_ends_the_run_with_its_limit(tmp_path: Path, data: Path) -> None:
    fault = {"slice": 2, "after_step": 10, "down": "forever"}
    spec = write_spec(
        tmp_path, data, str(tmp_path / "out"), local={"faults": [fault]}, recovery={"wait_for_slices": "3s"}
    )
    done = run_command("run", spec)
    assert done.returncode == 77, done.stdout + done.stderr
    assert "recovery.wait_for_slices (3s) is spent" in done.stdout + done.stderr
    assert "slices released: 3 of 3" in done.stdout
    assert not (tmp_path / "out" / "r" / "result.json").exists()
    assert left_over(str(tmp_path / "out" / "r")) == []


def test_a_killed_launcher_is_followed_by_another_that_adopts_and_stops(
    tmp_path: Path, data: Path, spawn: Callable[[Path], subprocess.Popen[str]]
) -> None:
    spec = write_spec(tmp_path, data, str(tmp_path / "out"), train={"steps": 100_000, "maxtext": {"num_epoch": 1000}})
    uri = str(tmp_path / "out" / "r")
    first = spawn(spec)
    wait_for(lambda: (tmp_path / "out" / "r" / "spec.yaml").exists() and 10 in events_of(uri, "checkpoint.proven"))
    first.kill()
    first.wait()
    second = spawn(spec)
    wait_for(lambda: len(events_of(uri, "claim.taken")) == 2)
    proven = len(events_of(uri, "checkpoint.proven"))
    wait_for(lambda: len(events_of(uri, "checkpoint.proven")) > proven)
    second.send_signal(signal.SIGINT)
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 130, output
    assert len(events_of(uri, "attempt.started")) == 1, "one trainer, ever"
    (stopped,) = events_of(uri, "train.stopped")
    assert stopped == max(step for step in events_of(uri, "checkpoint.proven") if step is not None)
    assert left_over(uri) == []


@pytest.fixture
def spawn(tmp_path: Path) -> Callable[[Path], subprocess.Popen[str]]:
    """Starts `elastic-tpu run` in a session of its own."""

    def start(spec: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, "run", str(spec)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=tmp_path,
        )

    return start


def test_the_demo_spec_is_what_the_readme_says(tmp_path: Path, data: Path) -> None:
    document = yaml.safe_load((ROOT / "examples" / "local.yaml").read_text())
    document["run"]["output"] = str(tmp_path / "out")
    document["model"]["tokenizer"] = str(data / "tokenizer")
    document["data"] = {"train": str(data / "train.parquet"), "eval": str(data / "valid.parquet")}
    spec = tmp_path / "local.yaml"
    spec.write_text(yaml.safe_dump(document))
    done = run_command("run", spec)
    assert done.returncode == 0, done.stdout + done.stderr
    end = done.stdout[done.stdout.rindex("\nrun ") :].strip().splitlines()
    assert len(end) <= 25
    text = "\n".join(end)
    for word in ("killed at step", "restored", "lost", "in the same process", "goodput", "held-out", "model"):
        assert word in text
    assert "slices released: 3 of 3" in text
