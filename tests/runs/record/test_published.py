"""Export and evaluation in the run directory: what holds, what is another's, and the gate that fails closed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.runs.record import published
from elastic_tpu.runs.record.result import TrainingResult
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.store import records
from elastic_tpu.tests.tools.small import run_at


def with_result(folder: Path, **sections: Any) -> Run:
    run = run_at(folder, **sections)
    result = TrainingResult(99, "x", "digest of the proof", run.spec_hash, 1, 0, 0, None, {}, False)
    run.store.put("result.json", result.dump())
    return run


def export(run: Run, **changes: Any) -> dict[str, Any]:
    run.store.put("export/99/model.safetensors", b"weights")
    manifest = {
        "spec_hash": run.spec_hash,
        "proof_digest": "digest of the proof",
        "files": {"model.safetensors": {"size": 7, "sha256": "x"}},
        "export_digest": "digest of the export",
        **changes,
    }
    run.store.put("export/99/manifest.json", records.dump(manifest))
    return manifest


def evaluate(run: Run, name: str, **changes: Any) -> None:
    record = {"export_digest": "digest of the export", "metrics": {"heldout": {"loss": 1.5}}, **changes}
    run.store.put(f"evaluation/{name}.json", records.dump(record))


def test_an_export_of_this_runs_checkpoint(tmp_path: Path) -> None:
    run = with_result(tmp_path)
    export(run)
    manifest, why = published.export_of(run)
    assert manifest is not None
    assert (manifest["export_digest"], why) == ("digest of the export", "")


def test_before_training_is_over_nothing_is_an_export(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    assert published.export_of(run) == (None, "training has no result yet")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spec_hash": "other"}, "export/99 is the export of another spec or checkpoint"),
        ({"proof_digest": "other"}, "export/99 is the export of another spec or checkpoint"),
        ({"files": {"model.safetensors": {"size": 8}}}, "export/99/model.safetensors has 7 bytes, its manifest says 8"),
        ({"files": {"gone": {"size": 8}}}, "export/99/gone has no bytes, its manifest says 8"),
        ({"files": {}}, "export/99/manifest.json is not a manifest"),
        ({"files": None}, "export/99/manifest.json is not a manifest"),
        ({"files": {"model.safetensors": 7}}, "export/99/manifest.json is not a manifest"),
        ({"export_digest": None}, "export/99/manifest.json is not a manifest"),
    ],
)
def test_an_export_that_does_not_hold(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    run = with_result(tmp_path)
    export(run, **changes)
    manifest, told = published.export_of(run)
    assert manifest is None
    assert told.startswith(why)


@pytest.mark.parametrize(
    ("data", "why"), [(None, "was never published"), (b"{", "not valid JSON"), (b'{"schema": 2}', "is newer than 1")]
)
def test_a_set_of_files_without_its_manifest_is_not_published(tmp_path: Path, data: bytes | None, why: str) -> None:
    run = with_result(tmp_path)
    export(run)
    run.store.delete("export/99/manifest.json")
    if data is not None:
        run.store.put("export/99/manifest.json", data)
    manifest, told = published.export_of(run)
    assert manifest is None
    assert why in told


def test_the_newest_evaluation_of_this_export(tmp_path: Path) -> None:
    run = with_result(tmp_path)
    export(run)
    assert published.evaluation_of(run) == (None, "there is no evaluation of this export")
    evaluate(run, "other", export_digest="of another export")
    run.store.put("evaluation/garbage.json", b"{")
    run.store.put("evaluation/shape.json", records.dump({"export_digest": "digest of the export", "metrics": 3}))
    assert published.evaluation_of(run) == (None, "there is no evaluation of this export")
    evaluate(run, "b", metrics={"heldout": {"loss": 2}})
    os.utime(f"{run.uri}/evaluation/b.json", (0, 0))  # clocks of filesystems tick coarsely: not in one tick
    evaluate(run, "a", metrics={"heldout": {"loss": 1}})
    found, _ = published.evaluation_of(run)
    assert found is not None
    assert found["metrics"]["heldout"]["loss"] == 1


def test_an_evaluation_is_named_for_all_that_it_depends_on() -> None:
    key = published.evaluation_key("e", "d", ["b", "a"])
    assert key == published.evaluation_key("e", "d", ["a", "b"])
    others = {
        published.evaluation_key(*args) for args in (("x", "d", ["a", "b"]), ("e", "x", ["a", "b"]), ("e", "d", []))
    }
    assert key not in others
    assert len(others) == 3
    assert len(key) == 16


@pytest.mark.parametrize(
    ("loss", "passed"),
    [
        (1.85, True),
        (1.8500001, False),
        (0, True),
        (None, False),
        ("1.0", False),
        (True, False),
        (float("nan"), False),
        (float("inf"), False),
        (-float("inf"), False),
    ],
)
def test_the_gate_fails_closed(tmp_path: Path, loss: object, passed: bool) -> None:  # F08
    run = with_result(tmp_path, evaluate={"gate": ["heldout.loss <= 1.85"]})
    assert published.judge_gate(run, {"metrics": {"heldout": {"loss": loss, "tokens": 10}}}).passed is passed


@pytest.mark.parametrize(
    "metrics", [{}, {"heldout": {}}, {"other": {"loss": 1}}, {"heldout": {"loss": 1, "tokens": 0}}]
)
def test_a_gate_on_what_was_not_measured_fails(tmp_path: Path, metrics: dict[str, Any]) -> None:
    run = with_result(tmp_path, evaluate={"gate": ["heldout.loss <= 1.85"]})
    assert not published.judge_gate(run, {"metrics": metrics}).passed


def test_no_gate_no_condition(tmp_path: Path) -> None:
    assert published.judge_gate(with_result(tmp_path / "a"), {"metrics": {"heldout": {"loss": 9}}}).passed
    assert published.judge_gate(with_result(tmp_path / "b", evaluate=False), {"metrics": {}}).passed
