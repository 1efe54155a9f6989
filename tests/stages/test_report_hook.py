"""Every stage leaves the report behind, and no report fails a stage."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_tpu.runs.errors import ElasticTPUError, HeldByAnother, Unreachable
from elastic_tpu.runs.record.run import Run
from elastic_tpu.stages.report_hook import reported
from elastic_tpu.tests.fakes.store import MemoryStore
from elastic_tpu.tests.tools import small


class Stage:
    def __init__(self, run: Run, outcome: Any) -> None:
        self.run, self.outcome, self.told = run, outcome, list[str]()
        self._tell = self.told.append

    @reported
    def collect(self) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_a_stage_that_is_complete_leaves_a_report() -> None:
    store = MemoryStore()
    assert Stage(small.run_in(store), "result").collect() == "result"
    assert b"Training has not started" in store.read("report.html").data


def test_a_stage_that_failed_leaves_a_report_and_its_own_error() -> None:
    store = MemoryStore()
    with pytest.raises(ElasticTPUError, match="why it failed"):
        Stage(small.run_in(store), ElasticTPUError("why it failed")).collect()
    assert store.list("report.html")


def test_a_stage_that_was_refused_writes_nothing() -> None:
    store = MemoryStore()
    with pytest.raises(HeldByAnother):
        Stage(small.run_in(store), HeldByAnother("another drives")).collect()
    assert store.list() == []


@pytest.mark.parametrize("error", [Unreachable("no answer"), RuntimeError("a bug in the report")])
@pytest.mark.parametrize("outcome", ["result", ElasticTPUError("why it failed")])
def test_a_report_that_cannot_be_written_is_said_and_changes_nothing(error: Exception, outcome: Any) -> None:
    class Broken(MemoryStore):
        def put(self, name: str, data: bytes) -> str:
            raise error

    stage = Stage(small.run_in(Broken()), outcome)
    if isinstance(outcome, Exception):
        with pytest.raises(ElasticTPUError, match="why it failed"):
            stage.collect()
    else:
        assert stage.collect() == "result"
    assert stage.told == [f"warning: report.html could not be written: {type(error).__name__}: {error}"]
