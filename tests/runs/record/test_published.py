"""Export and evaluation in the run directory: what holds, what is another's, and the gate that fails closed."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record import published
from elastic_tpu.runs.record.result import TrainingResult
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.store import records
from elastic_tpu.tests.tools.small import run_at

FILES = {"model.safetensors": {"size": 7, "sha256": "x"}}
BAD_FILES = {"model.safetensors": 7}
DIGEST = published.export_digest(FILES)


def with_result(folder: Path, **sections: Any) -> Run:
    run = run_at(folder, **sections)
    result = TrainingResult(99, "x", "digest of the proof", run.spec_hash, 1, 0, 0, None, {}, False)
    run.store.put("result.json", result.dump())
    return run


def export(run: Run, **changes: Any) -> dict[str, Any]:
    run.store.put("export/99/model.safetensors", b"weights")
    files = changes.get("files", FILES)
    manifest = {
        "step": 99,
        "spec_hash": run.spec_hash,
        "proof_digest": "digest of the proof",
        "files": files,
        "export_digest": published.export_digest(files) if isinstance(files, dict) and files != BAD_FILES else "x",
        **changes,
    }
    run.store.put("export/99/manifest.json", records.seal(manifest))
    return manifest


def evaluate(run: Run, name: str, **changes: Any) -> None:
    """An evaluation as another writer's: with no digest."""
    record = {"key": name, "export_digest": DIGEST, "metrics": {"heldout": {"loss": 1.5}}, **changes}
    run.store.put(f"evaluation/{name}.json", records.dump(record))


def evaluated(run: Run, **changes: Any) -> str:
    """An export and its evaluation as this product writes it; returns the name of the evaluation's file."""
    heldout = {"loss": 2.94, "perplexity": math.exp(2.94), "step": 99, "tokens": 10, **changes}
    return f"evaluation/{published.write_evaluation(run, export(run), 'data', ['heldout'], {'heldout': heldout})}.json"


def test_an_export_of_this_runs_checkpoint(tmp_path: Path) -> None:
    run = with_result(tmp_path)
    export(run)
    manifest, why = published.export_of(run)
    assert manifest is not None
    assert (manifest["export_digest"], why) == (DIGEST, "")


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
        ({"export_digest": "0" * 64}, "export/99/manifest.json: export_digest is 000000000000, its files give"),
        ({"step": 98}, "export/99/manifest.json: step is 98, the folder's is 99"),
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
    run.store.put("evaluation/settings.json", b'{"batch": 8}')  # whatever else an evaluator writes
    assert published.evaluation_of(run) == (None, "there is no evaluation of this export")
    evaluate(run, "b", metrics={"heldout": {"loss": 2}})
    evaluate(run, "a", metrics={"heldout": {"loss": 1}})
    for seconds, name in enumerate(["b", "other", "a"]):  # clocks of filesystems tick coarsely: not in one tick
        os.utime(f"{run.uri}/evaluation/{name}.json", (seconds, seconds))
    found, _ = published.evaluation_of(run)
    assert found is not None
    assert found["metrics"]["heldout"]["loss"] == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "evaluation/new.json: not valid JSON"),
        (b"[]", "evaluation/new.json: a JSON object was expected"),
        ({"key": "new", "export_digest": DIGEST, "metrics": 3}, "evaluation/new.json: metrics is 3, must be"),
        ({"export_digest": DIGEST, "metrics": {"a": 1}}, "evaluation/new.json: key is None, must be text"),
        ({"key": "new", "metrics": {"a": 1}}, "evaluation/new.json: export_digest is None, must be text"),
    ],
)
def test_a_newer_file_that_cannot_be_read_stands_in_the_way(
    tmp_path: Path, data: bytes | dict[str, Any], said: str
) -> None:
    run = with_result(tmp_path)
    evaluated(run)
    run.store.put("evaluation/new.json", data if isinstance(data, bytes) else records.dump(data))
    os.utime(f"{run.uri}/evaluation/new.json", (2**32, 2**32))
    found, why = published.evaluation_of(run)
    assert found is None
    assert said in why
    assert why.endswith("; delete the file and evaluate again")


def test_no_bit_of_an_evaluation_can_be_flipped_unnoticed(tmp_path: Path) -> None:
    run = with_result(tmp_path)
    name = evaluated(run)
    whole = run.store.read(name).data
    for at in range(len(whole)):  # a bit of each byte
        Path(run.uri, name).write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            found, why = published.evaluation_of(run)
        except BadInput as error:  # as if a newer version had written it
            found, why = None, str(error)
        assert found is None
        assert name in why


def test_a_flipped_bit_of_the_loss_is_named(tmp_path: Path) -> None:
    run = with_result(tmp_path)
    name = evaluated(run)
    run.store.put(name, run.store.read(name).data.replace(b'"loss": 2.94', b'"loss": 0.94'))
    found, why = published.evaluation_of(run)
    assert found is None
    assert f"{name}: record_digest is " in why
    assert why.endswith("it was changed or damaged; delete the file and evaluate again")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"key": "0" * 16}, "key is 0000000000000000, its export_digest, data_digest and tasks give"),
        ({"data_digest": "other"}, "its export_digest, data_digest and tasks give"),
        ({"tasks": "heldout"}, "tasks is 'heldout', must be a list"),
        ({"step": 98}, "step is 98, but metrics.heldout.step is 99"),
        ({"record_digesu": "x"}, "record_digest is missing, and 'record_digesu' is no field of it"),
    ],
)
def test_fields_of_an_evaluation_agree(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    run = with_result(tmp_path)
    name = evaluated(run)
    record = {key: value for key, value in (run.read(name) or {}).items() if key != records.DIGEST}
    run.store.put(name, records.dump({**record, **changes}))
    found, why = published.evaluation_of(run)
    assert found is None
    assert said in why


def test_an_evaluation_of_a_version_without_digests_counts(tmp_path: Path) -> None:
    run = with_result(tmp_path)
    name = evaluated(run)
    record = {key: value for key, value in (run.read(name) or {}).items() if key != records.DIGEST}
    run.store.put(name, records.dump(record))
    assert published.evaluation_of(run) == (record, "")


def test_a_figure_that_is_not_finite_is_written_as_null_and_invalid(tmp_path: Path) -> None:
    run = with_result(tmp_path)
    evaluated(run, loss=math.nan, perplexity=math.inf)
    found, _ = published.evaluation_of(run)
    assert found is not None
    assert published.judge_gate(run, found).invalid[:2] == (
        "heldout.loss is null: it was not finite, or not measured",
        "heldout.perplexity is null: it was not finite, or not measured",
    )


def test_what_the_spec_measures_must_be_there(tmp_path: Path) -> None:
    run = with_result(tmp_path, evaluate={})
    assert published.judge_gate(run, {"metrics": {"mine": {"score": 1.0}}}).outcome == "invalid"


def test_gate_json_holds_what_was_judged(tmp_path: Path) -> None:
    run = with_result(tmp_path, evaluate={})
    export(run)
    evaluate(run, "mine", version=2)
    found, _ = published.evaluation_of(run)
    assert found is not None
    report = published.judge_gate(run, found)
    assert published.check_gate(run, found, report)[1].startswith("no gate.json (written by an older version")
    published.record_gate(run, found, report)
    assert published.check_gate(run, found, report) == ("", "")
    why, _ = published.check_gate(run, {**found, "metrics": {"heldout": {"loss": 0.94}}}, report)
    assert "its figures were changed after they were judged" in why
    run.store.put("gate.json", run.store.read("gate.json").data.replace(b'"none"', b'"gone"'))
    why, _ = published.check_gate(run, found, report)
    assert "gate.json: record_digest is " in why


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
    for folder, sections in (("a", {}), ("b", {"evaluate": False})):
        report = published.judge_gate(with_result(tmp_path / folder, **sections), {"metrics": {"heldout": {"loss": 9}}})
        assert (report.outcome, report.problems) == ("none", ())
