"""What keeps a run from being gone on with: a spec that was changed, and files of a run with no spec."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record.events import EventReader
from elastic_tpu.runs.record.run import Run, create_run, open_for_work, open_run
from elastic_tpu.runs.record.start import start_or_open
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.runs.store import records
from elastic_tpu.tests.tools import small
from elastic_tpu.tests.tools.small import run_at


def change(run: Run, **train: object) -> None:
    """Change spec.yaml of a run by hand."""
    document = yaml.safe_load(run.store.read("spec.yaml").data)
    document["train"].update(train)
    run.store.put("spec.yaml", yaml.safe_dump(document).encode())


def event_of(run: Run) -> str:
    return next(entry.name for entry in run.store.list("events/"))


def test_a_changed_spec_is_refused_with_its_fields(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    assert open_for_work(run.uri).spec == run.spec
    change(run, steps=200)
    with pytest.raises(BadInput) as raised:
        start_or_open(run.uri, "dag/1", lambda spec: None)
    assert str(raised.value) == (
        f"{run.uri}/spec.yaml (train.steps): 200, the run was started with 100; put spec.yaml back as it was, or start "
        "the changed spec under another run.name"
    )
    with pytest.raises(BadInput, match=r"spec.yaml \(train.steps\): 200"):
        run_at(tmp_path)
    assert open_run(run.uri).spec.train.steps == 200  # to look, or to release


def test_a_stored_spec_that_no_plan_would_let_through_is_not_gone_on_with(tmp_path: Path) -> None:
    forged = RunSpec.model_validate(
        small.document(run={"name": "r", "output": str(tmp_path)}, train={"maxtext": {"elastic_enabled": False}})
    )
    run = create_run(forged)  # as a writer of the directory makes it: spec and hash agree
    with pytest.raises(BadInput, match=r"train\.maxtext\.elastic_enabled: False, is set by the product"):
        start_or_open(run.uri, "dag/1", lambda spec: None)
    assert open_run(run.uri).spec == forged  # to look, or to release


def test_a_spec_that_says_the_same_in_other_words_is_not_changed(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    document = yaml.safe_load(run.store.read("spec.yaml").data)
    run.store.put("spec.yaml", b"# mine\n" + yaml.safe_dump(document, sort_keys=True, indent=8).encode())
    assert open_for_work(run.uri).spec_hash == run.spec_hash


def test_a_run_of_an_older_version_is_refused_with_both_hashes(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    event = records.load(run.store.read(event_of(run)).data, "event")
    del event["data"]["spec"]
    run.store.put(event_of(run), records.dump(event))
    assert open_for_work(run.uri).spec == run.spec
    change(run, steps=200)
    with pytest.raises(BadInput, match=rf"was changed .*its hash is {open_run(run.uri).spec_hash}.*{run.spec_hash}"):
        open_for_work(run.uri)


def test_a_field_that_a_newer_version_added_changes_no_spec(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    event = records.load(run.store.read(event_of(run)).data, "event")
    event["data"]["spec_hash"] = "0" * 64  # as computed without that field
    run.store.put(event_of(run), records.dump(event))
    assert open_for_work(run.uri).spec == run.spec


@pytest.mark.parametrize("damage", [None, b"", b"{}", b'{"schema": 2}'])
def test_without_the_event_the_spec_is_as_it_is(tmp_path: Path, damage: bytes | None) -> None:
    run = run_at(tmp_path)
    name = event_of(run)
    run.store.delete(name) if damage is None else run.store.put(name, damage)
    change(run, steps=200)
    assert open_for_work(run.uri).spec.train.steps == 200


@pytest.mark.parametrize(
    "name",
    [
        *("checkpoints/300/commit_success.txt", "proofs/300.json", "result.json", "export/9/manifest.json"),
        *("evaluation/a.json", "attempts/1/started.json", "claim.json", "status.json", "slices.json"),
    ],
)
def test_files_of_a_run_with_no_spec_are_never_written_over(tmp_path: Path, name: str) -> None:
    there = tmp_path / "small" / name
    there.parent.mkdir(parents=True)
    there.write_text("somebody's")
    with pytest.raises(BadInput, match=rf"holds {name} but no spec.yaml.*back, or take another run.name"):
        run_at(tmp_path)
    assert [path for path in (tmp_path / "small").rglob("*") if path.is_file()] == [there]
    assert there.read_text() == "somebody's"


def test_other_files_are_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "notes.txt").write_text("mine")
    run = run_at(tmp_path)
    assert [event.kind for event in EventReader(run.store).all()] == ["run.created"]
