"""How a run is started: by a person who runs the same spec again, and what all who start a run have in common."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record import paths
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.result import TrainingResult
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.record.start import is_spec, start_or_open
from elastic_tpu.runs.record.status import Status
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.tests.support import Case

TEMPLATE = {"name": "r-{datetime}"}


def _driven(run: Run) -> Driver:
    driver = Driver(run.store, "ann@host", "1:1.0", 60.0)
    driver.take()
    return driver


def _ended(run: Run, code: int | None) -> None:
    run.store.put(paths.STATUS, Status(run.run_id, 1, "n", phase="ended", exit=code).dump())


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Starts from a spec with a template in its name; each new name differs, however fast they come."""
    case = Case(tmp_path, run=TEMPLATE)
    seconds = iter(range(100))

    def expand(spec, who, when):  # type: ignore[no-untyped-def]
        return spec.model_copy(update={"run": spec.run.model_copy(update={"name": f"r-{next(seconds)}"})})

    monkeypatch.setattr("elastic_tpu.runs.spec.load.expand_name", expand)

    def begin(who: str = "ann@host", **sections: object) -> Run:
        return start_or_open(str(case.write(**sections)), who, lambda spec: None, person=True)

    return begin


def test_a_run_that_is_driven_or_was_being_stopped_is_found_again(begin: Callable[..., Run]) -> None:
    first = begin()
    driver = _driven(first)
    assert begin().uri == first.uri
    driver.stop(0.0, "ann")
    assert begin().uri == first.uri


@pytest.mark.parametrize(
    ("code", "same"), [(None, True), (75, True), (76, True), (143, True), (70, False), (77, False), (64, False)]
)
def test_a_run_that_is_over_goes_on_if_that_is_what_running_again_means(
    begin: Callable[..., Run], code: int | None, same: bool
) -> None:
    first = begin()
    _driven(first).done()
    _ended(first, code)
    assert (begin().uri == first.uri) is same


def test_a_complete_run_and_one_that_never_trained_are_followed_by_a_new_one(begin: Callable[..., Run]) -> None:
    first = begin()
    _driven(first).done()
    second = begin()
    assert second.uri != first.uri
    _driven(second).done()
    _ended(second, 0)
    second.store.put(paths.RESULT, TrainingResult(1, "c", "p", "s", 1, 0, 0, None, {}, False).dump())
    assert begin().uri not in (first.uri, second.uri)


def test_another_spec_and_another_person_get_a_run_of_their_own(begin: Callable[..., Run]) -> None:
    first = begin()
    _driven(first)
    assert begin(train={"steps": 61}).uri != first.uri
    assert begin(who="bob@host").uri != first.uri


def test_a_run_whose_folder_is_gone_is_forgotten(begin: Callable[..., Run]) -> None:
    first = begin()
    _driven(first)
    Path(first.uri, "spec.yaml").unlink()
    assert begin().uri != first.uri


@pytest.mark.parametrize(
    ("source", "spec"),
    [
        ("spec.yaml", True),
        ("gs://bucket/specs/a.yml", True),
        ("runs-demo/my-run", False),
        ("gs://bucket/runs/my-run", False),
        ("my.yaml.d/run", False),
        ("", False),
    ],
)
def test_what_names_a_spec_and_what_a_run_directory(source: str, spec: bool) -> None:
    assert is_spec(source) is spec


def test_what_is_there_tells_a_spec_from_a_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.yaml").mkdir()
    (tmp_path / "spec.YAML").touch()
    os.mkfifo(tmp_path / "fifo")
    found = {name: is_spec(f"~/{name}") for name in ("run.yaml", "spec.YAML", "fifo", "gone", "gone.yml")}
    assert found == {"run.yaml": False, "spec.YAML": True, "fifo": True, "gone": False, "gone.yml": True}


@pytest.mark.parametrize("source", ["a\0b.yaml", "x" * 5000 + ".yml", "~nobody-at-all/x.yaml"])
def test_any_text_may_be_asked_whether_it_is_a_spec(source: str) -> None:
    assert is_spec(source)
    assert not is_spec(source.rpartition(".")[0])


@pytest.mark.parametrize("person", [True, False])
def test_a_file_that_is_neither_a_spec_nor_a_run(tmp_path: Path, person: bool) -> None:
    path = tmp_path / "spec.txt"
    path.write_text("run: {}")
    with pytest.raises(BadInput, match=r"ends in \.yaml"):
        start_or_open(str(path), "ann@host", lambda spec: None, person=person)


# -- the login, and the one reading of the spec ---------------------------------------------------------------------

NAMES = pytest.mark.parametrize("name", ["r", "r-{run}"])
WHO = pytest.mark.parametrize("person", [True, False])


@NAMES
@WHO
def test_without_a_login_nothing_is_written(tmp_path: Path, name: str, person: bool) -> None:
    case = Case(tmp_path, run={"name": name})

    def refuse(spec: RunSpec) -> None:
        raise BadInput("no login")

    with pytest.raises(BadInput, match="no login"):
        start_or_open(str(case.spec), "ann@host", refuse, person=person)
    assert not case.output.exists()


@NAMES
@WHO
def test_a_platform_is_asked_before_a_new_run_is_written_and_only_then(tmp_path: Path, name: str, person: bool) -> None:
    case = Case(tmp_path, run={"name": name})

    def refuse(spec: RunSpec) -> None:
        raise BadInput("no rights")

    def started(admit: Callable[[RunSpec], None]) -> Run:
        return start_or_open(str(case.spec), "ann@host", lambda spec: None, admit, person=person)

    with pytest.raises(BadInput, match="no rights"):
        started(refuse)
    assert not case.output.exists()
    first = started(lambda spec: None)
    assert started(refuse).uri == first.uri  # its stages ask for themselves


@NAMES
@WHO
def test_a_spec_that_is_edited_during_the_login_starts_as_it_was_read(tmp_path: Path, name: str, person: bool) -> None:
    case = Case(tmp_path, run={"name": name})
    asked = list[int]()

    def edit(spec: RunSpec) -> None:
        asked.append(spec.train.steps)
        case.write(run={"name": "other"}, train={"steps": 61})

    run = start_or_open(str(case.spec), "ann@host", edit, person=person)
    assert asked == [run.spec.train.steps] == [60]
    assert run.spec.run.name != "other"


def test_a_run_directory_is_opened_as_it_is(tmp_path: Path) -> None:
    case = Case(tmp_path)
    first = start_or_open(str(case.spec), "dag/1", lambda spec: None)

    def refuse(spec: RunSpec) -> None:
        raise AssertionError("a run that is there is not started")

    assert start_or_open(first.uri, "dag/2", refuse).spec == first.spec
