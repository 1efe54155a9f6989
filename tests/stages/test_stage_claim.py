"""Whether a stage may take a run that somebody has asked to stop."""

from __future__ import annotations

import pytest
from elastic_tpu.runs.errors import EndedOnRequest, Unreachable
from elastic_tpu.runs.record.driver import Driver, stop_by_person
from elastic_tpu.stages.stage_claim import StageClaim
from elastic_tpu.tests.fakes.store import MemoryStore


@pytest.mark.parametrize(
    ("asked_by", "by", "grace", "age", "first", "take_over", "goes_on"),
    [
        ("ann@laptop", "ann@laptop", 0, 1, False, False, False),  # a person cancelled between provision and train
        ("ann@laptop", "ann@laptop", 0, 1, True, False, True),  # the pipeline is run again
        ("ann@laptop", "ann@laptop", 0, 1, False, True, True),
        ("ann@laptop", "ann@laptop", 0, 600, False, False, True),  # nobody has carried it out
        ("dag/1", "SIGTERM", 300, 1, False, False, True),  # a drained node
        ("dag/1", "a user of Airflow (dag/1)", 0, 1, False, False, True),  # who cleared the task, and so wants it again
        ("dag/1", "execution_timeout of train try 1 (dag/1)", 0, 1, False, False, True),
        ("dag/12", "dag/12", 0, 1, False, False, False),  # a name that the holder's is part of
        ("ag/1", "ag/1", 0, 1, False, False, False),  # a part of the holder's name
    ],
)
def test_which_stop_the_next_instance_of_the_holder_undoes(
    asked_by: str, by: str, grace: float, age: float, first: bool, take_over: bool, goes_on: bool
) -> None:
    store = MemoryStore()
    before = Driver(store, "dag/1", "provision try 1", 600)
    before.take()
    if asked_by == "dag/1":
        StageClaim(before, store, ("dag/1", "provision try 1"), 600, False).stop(grace, by)
    else:
        stop_by_person(store, asked_by, grace)
    store.advance(age)
    driver = Driver(store, "dag/1", "train try 1", 600)
    claim = StageClaim(driver, store, ("dag/1", "train try 1"), 600, take_over)
    if goes_on:
        claim.take(first)
        assert claim.term == 2
    else:
        with pytest.raises(EndedOnRequest, match=f"stop asked for by {asked_by};.*run the pipeline from provision"):
            claim.take(first)
        assert claim.term is None


def test_a_persons_cancel_after_the_holders_own_stop_is_not_undone() -> None:
    store = MemoryStore()
    before = Driver(store, "dag/1", "train try 1", 600)
    before.take()
    StageClaim(before, store, ("dag/1", "train try 1"), 600, False).stop(0, "execution_timeout of train try 1 (dag/1)")
    stop_by_person(store, "ann@laptop")
    claim = StageClaim(Driver(store, "dag/1", "train try 2", 600), store, ("dag/1", "train try 2"), 600, False)
    with pytest.raises(EndedOnRequest, match="stop asked for by ann@laptop"):
        claim.take(first=False)


def test_a_claim_that_cannot_be_renewed_is_driven_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: what is there can be read."""
    store = MemoryStore()
    driver = Driver(store, "dag/1", "1", 600)
    claim = StageClaim(driver, store, ("dag/1", "1"), 0.0, False)  # a renewal is due at each look
    claim.take()

    def full(*_: object) -> str:
        raise Unreachable("claim.json: No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(store, "replace", full)
        assert not claim.renew()
        assert claim.unrenewed == "the claim cannot be renewed: claim.json: No space left on device"
        with monkeypatch.context() as more:
            more.setattr(store, "read", full)
            with pytest.raises(Unreachable):
                claim.renew()
    assert not claim.renew()
    assert claim.unrenewed == ""


def test_a_stop_of_what_this_instance_drives_is_not_undone_by_it() -> None:
    store = MemoryStore()
    driver = Driver(store, "ann@pc1", "7:0", 600)
    claim = StageClaim(driver, store, ("ann@pc1", "7:0"), 600, True)
    claim.take()
    stop_by_person(store, "ann@pc1")  # the same person, in another terminal
    with pytest.raises(EndedOnRequest, match=r"stop asked for by ann@pc1; nothing more is started$"):
        claim.take(first=False)
    assert claim.renew()
    assert claim.stopped_by == "ann@pc1"
