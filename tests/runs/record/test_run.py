"""The run directory: created once, opened by anybody, and the same one for every caller of one holder."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record.run import Run, create_run, differences, open_run
from elastic_tpu.runs.record.start import find_run, runs_below, start_or_open
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.tests.tools.small import document, inputs_in, run_at, spec


def at(uri: str, **sections: object) -> RunSpec:
    return spec(**sections, run={"name": "small", "output": uri})


def test_a_run_is_created_once_and_adopted_after_that(store_uri: str) -> None:
    first = create_run(at(store_uri))
    generation = first.store.read("spec.yaml").generation
    second = create_run(at(store_uri))
    assert second.spec == first.spec
    assert second.store.read("spec.yaml").generation == generation
    assert open_run(f"{first.uri}/").spec_hash == first.spec_hash == first.spec.hash()


def test_a_run_that_is_opened_again_has_the_same_hash_whatever_is_in_it(tmp_path: Path) -> None:
    run = run_at(
        tmp_path,
        train={"steps": 100, "maxtext": {"profiler": None, "learning_rate": 1e-5}},
        gke={"head": {"affinity": None}},  # a null in a patch removes what it names
        recovery={"wait_for_slices": "2.3s"},
    )
    again = open_run(run.uri)
    assert again.spec == run.spec
    assert again.spec.gke is not None
    assert again.spec.gke.head == {"affinity": None}
    assert again.spec_hash == run.spec_hash


def test_a_name_that_is_taken_lists_every_field_that_differs(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    with pytest.raises(BadInput) as raised:
        create_run(at(str(tmp_path), train={"steps": 200}, checkpoint={"every": 10, "keep": 4}))
    assert str(raised.value).splitlines() == [
        f"run.name (checkpoint.keep): 4, the run {run.uri} was started with 3; take another run.name",
        f"run.name (train.steps): 200, the run {run.uri} was started with 100; take another run.name",
    ]
    assert open_run(run.uri).spec.train.steps == 100


def test_differences_reach_into_sections() -> None:
    old, new = spec(), spec(recovery=False, train={"maxtext": {"learning_rate": 1.0}})
    assert ("train.maxtext.learning_rate", None, 1.0) in differences(old, new)
    assert differences(old, old) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("schema: 2\n", "spec.yaml: schema 2 is newer than 1"),
        ("schema: x\n", "spec.yaml: schema 'x' is not a number"),
        ("- a\n", "spec.yaml: not readable"),
        ("{", "spec.yaml: not readable"),
        ("schema: 1\nrun: {}\n", "spec.yaml: not readable"),
    ],
)
def test_a_spec_that_this_version_cannot_read_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "spec.yaml").write_text(content)
    with pytest.raises(BadInput, match=message):
        open_run(str(tmp_path))


def test_no_run_here(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no run here \(spec.yaml is missing\)"):
        open_run(str(tmp_path))


def test_checkpoints_with_no_spec_beside_them_are_not_taken_for_this_runs_own(tmp_path: Path) -> None:  # B04
    old = tmp_path / "small" / "checkpoints" / "300"
    old.mkdir(parents=True)
    (old / "commit_success.txt").write_text("ok")
    with pytest.raises(BadInput, match=r"checkpoints/300/commit_success.txt but no spec.yaml.*take another run.name"):
        run_at(tmp_path)
    assert not (tmp_path / "small" / "spec.yaml").exists()


# -- names with a template ----------------------------------------------------------------------------------------


def start_run(source: str, holder: str) -> Run:
    """As an orchestrator's stage does, where nobody asks for a login."""
    return start_or_open(source, holder, lambda spec: None)


def template(folder: Path, name: str = "q-{run}", **sections: object) -> str:
    path = folder / "spec.yaml"
    content = document(**inputs_in(folder), **sections)
    tiny = {"base_emb_dim": 64, "base_num_decoder_layers": 1, "max_target_length": 64}  # fits into any machine
    content["train"] = {"maxtext": tiny, **content["train"]}
    content["run"]["name"] = name
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_every_caller_of_one_holder_gets_one_run_and_another_holder_another(tmp_path: Path) -> None:
    source = template(tmp_path)
    first, again, other = start_run(source, "dag/1"), start_run(source, "dag/1"), start_run(source, "dag/2")
    assert first.uri == again.uri == str(tmp_path / "out" / "q-dag-1")
    assert other.uri == str(tmp_path / "out" / "q-dag-2")
    for found, wanted in ((find_run(source, "dag/2"), other), (find_run(first.uri, "anybody"), first)):
        assert found is not None
        assert (found.uri, found.spec) == (wanted.uri, wanted.spec)


def test_a_template_is_resolved_once_though_time_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from elastic_tpu.runs.spec import load

    source = template(tmp_path, "q-{datetime}")
    first = start_run(source, "dag/1")
    real = load.expand_name
    monkeypatch.setattr(load, "expand_name", lambda spec, *_: real(spec, *_).model_copy(update={"run": _later(spec)}))
    assert start_run(source, "dag/1").uri == first.uri


def _later(before: RunSpec) -> object:
    return before.run.model_copy(update={"name": "q-later"})


@pytest.mark.parametrize("person", [True, False])
def test_a_name_that_is_another_holders_run_is_refused(tmp_path: Path, person: bool) -> None:
    source = template(tmp_path, "q-{date}")
    day = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def start(holder: str, when: datetime = day) -> Run:
        return start_or_open(source, holder, lambda spec: None, person=person, when=when)

    first = start("dag/1")
    for _ in range(2):  # nothing is on record that a retry would follow
        with pytest.raises(BadInput, match=r"run.name: 'q-{date}', becomes 'q-20260131'.* of dag/1; use {run} in it"):
            start("dag/2")
    assert start("dag/1").uri == first.uri
    assert start("dag/2", day + timedelta(days=1)).uri == str(tmp_path / "out" / "q-20260201")


def test_an_expanded_name_that_a_spec_without_a_template_has_is_refused(tmp_path: Path) -> None:
    start_run(template(tmp_path, "q-dag-1"), "ann@host")
    with pytest.raises(BadInput, match=r"'q-dag-1', which is the run .*/q-dag-1 of another holder"):
        start_run(template(tmp_path), "dag/1")


def test_a_name_whose_run_was_deleted_is_free_again_after_a_minute(tmp_path: Path) -> None:
    source = template(tmp_path, "q-{date}")
    first = start_run(source, "dag/1")
    shutil.rmtree(first.uri)
    with pytest.raises(BadInput, match="of dag/1"):  # its starter may be about to create it
        start_run(source, "dag/2")
    (record,) = (tmp_path / "out" / ".starts" / "names").iterdir()
    os.utime(record, (0, 0))
    assert start_run(source, "dag/2").uri == first.uri


def test_one_holder_starts_a_run_of_each_spec_of_a_sweep(tmp_path: Path) -> None:
    """And finds them below their output again, with a name that is a template or not."""
    output = str(tmp_path / "out")
    assert runs_below(output, "job-1") is None
    made = [start_run(template(tmp_path, name), "job-1").uri for name in ("a-{run}", "b-{datetime}", "c")]
    start_run(template(tmp_path, "a-{run}"), "job-2")
    assert set(runs_below(f"{output}/", "job-1") or []) == set(made)
    assert runs_below(output, "job-3") == []
    assert runs_below(made[0], "job-1") is None
    (Path(made[0]) / "spec.yaml").unlink()  # its starter died before it created the run
    assert len(runs_below(output, "job-1") or []) == 2


@pytest.mark.parametrize("run", ["gs://acme/other/q", "/etc/..", "", 7])
def test_a_record_of_a_start_names_a_run_below_its_output_or_none(tmp_path: Path, run: object) -> None:
    started = start_run(template(tmp_path), "dag/1")
    (record,) = (path for path in (tmp_path / "out" / ".starts").glob("*/*.json") if path.parent.name != "names")
    record.write_text(json.dumps({"schema": 1, "run": run, "holder": "dag/1"}))
    if run == "gs://acme/other/q":
        assert runs_below(str(tmp_path / "out"), "dag/1") == []  # it was moved with its output, and is not there
    else:
        with pytest.raises(BadInput, match="names no run; delete it"):
            runs_below(str(tmp_path / "out"), "dag/1")
    assert open_run(started.uri).spec == started.spec


def test_nothing_was_started_so_there_is_nothing_to_release(tmp_path: Path) -> None:
    assert find_run(template(tmp_path), "dag/1") is None
    assert not (tmp_path / "out").exists()


def test_a_release_finds_its_run_though_the_data_is_gone(tmp_path: Path) -> None:
    source = template(tmp_path)
    started = start_run(source, "dag/1")
    document = yaml.safe_load(Path(source).read_text())
    for file in (document["data"]["train"], document["model"]["tokenizer"]):
        path = Path(file)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = find_run(source, "dag/1")
    assert found is not None
    assert found.uri == started.uri


def test_a_template_whose_spec_changed_on_the_way_is_refused(tmp_path: Path) -> None:
    start_run(template(tmp_path), "dag/1")
    with pytest.raises(BadInput, match=r"run.name \(train.steps\): 7"):
        start_run(template(tmp_path, train={"steps": 7}, checkpoint={"every": 5}), "dag/1")


def test_a_starter_that_died_before_it_created_the_run_is_followed(tmp_path: Path) -> None:
    source = template(tmp_path, "q-{datetime}")
    first = start_run(source, "dag/1")
    (tmp_path / "out" / first.spec.run.name / "spec.yaml").unlink()
    assert start_run(source, "dag/1").uri == first.uri
    assert open_run(first.uri).spec == first.spec


def _in_processes(function: Callable[..., str], arguments: list[tuple[str, ...]]) -> list[str]:
    with multiprocessing.get_context("spawn").Pool(len(arguments)) as pool:
        return pool.starmap(function, arguments)


def _start(source: str, holder: str) -> str:
    return start_run(source, holder).uri


def test_processes_that_race_for_a_template_agree(tmp_path: Path) -> None:
    source = template(tmp_path, "q-{datetime}-{run}")
    holders = ["a", "b", "a", "b"]
    found = _in_processes(_start, [(source, holder) for holder in holders])
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert found[0] != found[1]
    records = [json.loads(p.read_bytes()) for p in (tmp_path / "out" / ".starts").glob("*/*.json")]
    records = [record for record in records if "run" in record]  # not those of names
    assert sorted(record["holder"] for record in records) == ["a", "b"]


def test_a_small_file_is_read_or_absent(tmp_path: Path) -> None:
    run = Run(str(tmp_path), open_store(str(tmp_path)), spec())
    assert run.read("slices.json") is None
    run.store.put("slices.json", b'{"schema": 9}')
    with pytest.raises(BadInput, match=r"slices.json: schema 9 is newer than 1"):
        run.read("slices.json")


def test_the_record_of_a_starter_that_died_is_no_run_yet(tmp_path: Path) -> None:
    source = template(tmp_path)
    first = start_run(source, "dag/1")
    (tmp_path / "out" / first.spec.run.name / "spec.yaml").unlink()
    assert find_run(source, "dag/1") is None


def test_a_run_of_another_spec_is_found_only_by_who_drives_it(tmp_path: Path) -> None:
    run = start_run(template(tmp_path, "q"), "dag/1")
    edited = template(tmp_path, "q", train={"steps": 7}, checkpoint={"every": 5})
    assert find_run(edited, "dag/1") is None
    run.store.put("claim.json", b'{"schema": 1, "holder": "dag/1"}')
    assert find_run(edited, "dag/2") is None
    found = find_run(edited, "dag/1")
    assert found is not None
    assert found.spec == run.spec
