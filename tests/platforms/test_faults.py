"""Rehearsed faults: each happens at its step, once a run, whichever supervisor looks."""

from __future__ import annotations

import pytest
from elastic_tpu.platforms.local import faults
from elastic_tpu.platforms.local.faults import RehearsedFaults
from elastic_tpu.runs.errors import Unreachable
from elastic_tpu.runs.record import paths
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.record.status import Phase, Status
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.run_spec import Fault
from elastic_tpu.tests.fakes.store import MemoryStore
from elastic_tpu.tests.tools import small


@pytest.fixture(autouse=True)
def at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_EVERY", 0.0)


@pytest.fixture
def run() -> Run:
    store = MemoryStore()
    local = {"faults": [{"slice": 1, "after_step": 10}, {"slice": 0, "after_step": 20, "down": "forever"}]}
    return Run(store.uri, store, check(small.document(local=local)))


def reaches(run: Run, step: int, phase: Phase = "training") -> None:
    run.store.put(paths.STATUS, Status(run.run_id, 1, "n", phase=phase, step=step).dump())


def test_a_fault_kills_its_slice_once_its_step_is_done(run: Run) -> None:
    killed: list[tuple[int, object]] = []
    rehearsed = RehearsedFaults(run, lambda fault, number: killed.append((fault.slice, fault.down)))
    rehearsed.tick()
    for step in (9, 10, 11, 25):
        reaches(run, step)
        rehearsed.tick()
        rehearsed.tick()
    assert killed == [(1, 3.0), (0, "forever")]


@pytest.mark.parametrize("phase", ["starting", "waiting", "restoring", "compiling", "stopping", "ended"])
def test_no_fault_happens_unless_the_trainer_trains(run: Run, phase: Phase) -> None:
    reaches(run, 30, phase)
    RehearsedFaults(run, lambda fault, number: pytest.fail("a slice was killed")).tick()


def test_a_later_supervisor_repeats_no_fault(run: Run) -> None:
    killed: list[int] = []
    reaches(run, 10)
    for _ in range(2):
        RehearsedFaults(run, lambda fault, number: killed.append(number)).tick()
    assert killed == [0]


def test_a_fault_that_could_not_be_recorded_is_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[Fault] = []
    rehearsed = RehearsedFaults(run, lambda fault, number: killed.append(fault))
    reaches(run, 10)

    def fail(name: str, data: bytes) -> None:
        raise Unreachable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(run.store, "put", fail)
        with pytest.raises(Unreachable):
            rehearsed.tick()
    assert not killed
    rehearsed.tick()
    assert [fault.slice for fault in killed] == [1]
