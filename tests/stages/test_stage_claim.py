"""Whether a stage may take a run that somebody has asked to stop."""

from __future__ import annotations

import pytest
from elastic_tpu.runs.errors import EndedOnRequest
from elastic_tpu.runs.record.driver import Driver, stop_by_person
from elastic_tpu.stages.stage_claim import StageClaim
from elastic_tpu.tests.tools.memory_store import MemoryStore


@pytest.mark.parametrize(
    ("by", "grace", "age", "first", "take_over", "goes_on"),
    [
        ("ann@laptop", 0, 1, False, False, False),  # a person cancelled between provision and train
        ("ann@laptop", 0, 1, True, False, True),  # a pipeline that begins anew
        ("ann@laptop", 0, 1, False, True, True),
        ("ann@laptop", 0, 600, False, False, True),  # nobody has carried it out
        ("SIGTERM", 300, 1, False, False, True),  # a drained node
        ("a user of Airflow (dag/1)", 0, 1, False, False, True),  # who cleared the task, and so wants it again
        ("execution_timeout of train try 1 (dag/1)", 0, 1, False, False, True),
    ],
)
def test_which_stop_the_next_instance_of_the_holder_undoes(
    by: str, grace: float, age: float, first: bool, take_over: bool, goes_on: bool
) -> None:
    store = MemoryStore()
    Driver(store, "dag/1", "provision try 1", 600).take()
    stop_by_person(store, by, grace)
    store.advance(age)
    driver = Driver(store, "dag/1", "train try 1", 600)
    claim = StageClaim(driver, store, ("dag/1", "train try 1"), 600, take_over)
    if goes_on:
        claim.take(first)
        assert claim.term == 2
    else:
        with pytest.raises(EndedOnRequest, match=f"stop asked for by {by}.*begin anew with provision"):
            claim.take(first)
        assert claim.term is None
