"""A run directory that was copied, moved or reached by another path: everything is read where it was opened."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from elastic_tpu.platforms.local.runtime_folder import runtime_folder
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record.proof import Proof, files_of
from elastic_tpu.runs.record.result import TrainingResult, proven_result, read_result
from elastic_tpu.runs.record.run import Run, create_run, open_for_work, open_run
from elastic_tpu.runs.record.slices import are_elsewhere, read_slices
from elastic_tpu.runs.spec.plan import make_plan, maxtext_overrides
from elastic_tpu.runs.store import records
from elastic_tpu.stages.results import RESULTS
from elastic_tpu.tests.tools.small import checkpoint, run_at, spec
from elastic_tpu.trainer import jobs


def complete(run: Run) -> None:
    """A proven checkpoint of the last step, and the result."""
    checkpoint(run, 99)
    proven = Proof(99, files_of(run.store, 99))
    run.store.put("proofs/99.json", proven.dump())
    place = run.path("checkpoints/99")
    result = TrainingResult(99, place, proven.digest, run.spec_hash, 1, 0, 0, 1.0, {"training": 1.0}, False)
    run.store.put("result.json", result.dump())


def copy_of(run: Run, to: Path) -> Run:
    shutil.copytree(run.uri, to)
    return open_run(str(to))


def test_a_copy_is_read_where_it_is_and_keeps_its_hash(tmp_path: Path) -> None:
    run = run_at(tmp_path / "out")
    complete(run)
    copy = copy_of(run, tmp_path / "elsewhere" / "copy")
    assert (run.copied_from, copy.copied_from) == ("", run.uri)
    assert copy.spec_hash == run.spec_hash == make_plan(copy.spec).spec_hash
    assert (copy.spec.uri, make_plan(copy.spec).uri) == (copy.uri, copy.uri)
    keys = maxtext_overrides(copy.spec)
    assert f"{keys['base_output_directory']}/{keys['run_name']}" == copy.uri
    result, why = proven_result(copy)
    assert result is not None, why
    assert result.checkpoint == f"{copy.uri}/checkpoints/99"
    assert RESULTS["train"](copy, result).values["checkpoint"] == f"{copy.uri}/checkpoints/99"


def test_an_export_takes_its_bytes_from_the_directory_that_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_at(tmp_path / "out")
    complete(run)
    copy = copy_of(run, tmp_path / "copy")
    taken: list[tuple[Any, ...]] = []

    def export_checkpoint(*places: str, **_: object) -> None:
        taken.append(places)
        raise InterruptedError

    monkeypatch.setattr("elastic_tpu.trainer.export.export.export_checkpoint", export_checkpoint)
    monkeypatch.setattr("elastic_tpu.trainer.export.qwen3.architecture_from_maxtext", lambda keys: None)
    monkeypatch.setattr(jobs.maxtext_config, "base", lambda: {"a": 1})
    with pytest.raises(InterruptedError):
        jobs.export(copy, None, Mock())  # type: ignore[arg-type]
    assert taken == [(f"{copy.uri}/checkpoints/99", f"{copy.uri}/export/99")]


def test_a_copy_has_processes_of_its_own_and_a_link_has_not(tmp_path: Path) -> None:
    run = run_at(tmp_path / "out")
    copy = copy_of(run, tmp_path / "copy")
    (tmp_path / "link").symlink_to(run.uri)
    link = open_run(str(tmp_path / "link"))
    assert runtime_folder(copy.run_id) != runtime_folder(run.run_id) == runtime_folder(link.run_id)
    assert link.copied_from == ""
    (tmp_path / "to_copy").symlink_to(copy.uri)
    assert open_run(str(tmp_path / "to_copy")).run_id == copy.run_id


def test_slices_of_the_run_that_was_copied_are_not_the_copys(tmp_path: Path) -> None:
    run = run_at(tmp_path / "out")
    record = {"run_id": run.run_id, "state": "ready", "slices": []}
    run.store.put("slices.json", records.dump(record))
    copy = copy_of(run, tmp_path / "copy")
    assert (read_slices(copy), are_elsewhere(copy), are_elsewhere(run)) == (None, True, False)
    assert (read_slices(run) or {})["state"] == "ready"
    copy.store.put("slices.json", records.dump({**record, "run_id": copy.run_id}))
    assert (read_slices(copy) or {})["state"] == "ready"


def test_a_moved_run_is_gone_on_with_by_its_directory_or_a_spec_that_names_it(tmp_path: Path) -> None:
    run = run_at(tmp_path / "out")
    complete(run)
    Path(run.uri).rename(tmp_path / "small")
    shutil.copytree(tmp_path / "small", tmp_path / "copy")
    with pytest.raises(BadInput, match=f"is a copy of the run {run.uri}, or was moved .* run --moved {tmp_path}/small"):
        open_for_work(str(tmp_path / "small"))
    moved = open_for_work(str(tmp_path / "small"), moved=True)
    assert proven_result(moved)[0] is not None
    assert open_for_work(str(tmp_path / "small")).spec_hash == run.spec_hash
    shutil.copytree(tmp_path / "small", tmp_path / "copy again")  # what was said of the place is not said of its copies
    for copy in ("copy", "copy again"):
        with pytest.raises(BadInput, match="is a copy of the run"):
            open_for_work(str(tmp_path / copy))
    again = create_run(spec(run={"name": "small", "output": str(tmp_path)}))
    assert (again.uri, again.spec_hash) == (moved.uri, run.spec_hash)
    with pytest.raises(BadInput, match=r"run.name \(train.steps\)"):
        create_run(spec(run={"name": "small", "output": str(tmp_path)}, train={"steps": 200}))


def test_a_copy_of_a_bucket_is_read_where_it_is(store_uri: str) -> None:
    run = run_at(f"{store_uri}/out")
    complete(run)
    there = run_at(f"{store_uri}/other")
    for entry in run.store.list():
        there.store.put(entry.name, run.store.read(entry.name).data)
    copy = open_run(there.uri)
    assert (copy.copied_from, copy.spec.uri, copy.spec_hash) == (run.uri, there.uri, run.spec_hash)
    assert copy.run_id != run.run_id
    assert (read_result(copy) or run).checkpoint == f"{there.uri}/checkpoints/99"  # type: ignore[union-attr]
