"""A person who runs the same spec again: when that is the same run, and when it is a new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record import paths
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.result import TrainingResult
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.record.start import Started, start
from elastic_tpu.runs.record.status import Status
from elastic_tpu.tests.support import Case

TEMPLATE = {"name": "r-{datetime}"}


def _driven(run: Run) -> Driver:
    driver = Driver(run.store, "ann@host", "1:1.0", 60.0)
    driver.take()
    return driver


def _ended(run: Run, code: int | None) -> None:
    run.store.put(paths.STATUS, Status(run.run_id, 1, "n", phase="ended", exit=code).dump())


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Started]:
    """Starts from a spec with a template in its name; each new name differs, however fast they come."""
    case = Case(tmp_path, run=TEMPLATE)
    seconds = iter(range(100))

    def expand(spec, who):  # type: ignore[no-untyped-def]
        return spec.model_copy(update={"run": spec.run.model_copy(update={"name": f"r-{next(seconds)}"})})

    monkeypatch.setattr("elastic_tpu.runs.spec.load.expand_name", expand)

    def begin(who: str = "ann@host", **sections: object) -> Started:
        return start(str(case.write(**sections)), who)

    return begin


def test_a_run_that_is_driven_or_was_being_stopped_is_found_again(begin: Callable[..., Started]) -> None:
    first = begin()
    assert not first.resumed
    driver = _driven(first.run)
    again = begin()
    assert (again.run.uri, again.resumed) == (first.run.uri, True)
    driver.stop(0.0, "ann")
    assert begin().run.uri == first.run.uri


@pytest.mark.parametrize(
    ("code", "same"), [(None, True), (75, True), (76, True), (143, True), (70, False), (77, False), (64, False)]
)
def test_a_run_that_is_over_goes_on_if_that_is_what_running_again_means(
    begin: Callable[..., Started], code: int | None, same: bool
) -> None:
    first = begin()
    _driven(first.run).done()
    _ended(first.run, code)
    again = begin()
    assert (again.run.uri == first.run.uri) is same
    assert again.resumed is same


def test_a_complete_run_and_one_that_never_trained_are_followed_by_a_new_one(begin: Callable[..., Started]) -> None:
    first = begin()
    _driven(first.run).done()
    second = begin()
    assert second.run.uri != first.run.uri
    _driven(second.run).done()
    _ended(second.run, 0)
    second.run.store.put(paths.RESULT, TrainingResult(1, "c", "p", "s", 1, 0, 0, None, {}, False).dump())
    assert begin().run.uri not in (first.run.uri, second.run.uri)


def test_another_spec_and_another_person_get_a_run_of_their_own(begin: Callable[..., Started]) -> None:
    first = begin()
    _driven(first.run)
    assert begin(train={"steps": 61}).run.uri != first.run.uri
    assert begin(who="bob@host").run.uri != first.run.uri


def test_a_run_whose_folder_is_gone_is_forgotten(begin: Callable[..., Started]) -> None:
    first = begin()
    _driven(first.run)
    Path(first.run.uri, "spec.yaml").unlink()
    assert begin().run.uri != first.run.uri


def test_a_file_that_is_neither_a_spec_nor_a_run(tmp_path: Path) -> None:
    path = tmp_path / "spec.txt"
    path.write_text("run: {}")
    with pytest.raises(BadInput, match=r"ends in \.yaml"):
        start(str(path), "ann@host")
