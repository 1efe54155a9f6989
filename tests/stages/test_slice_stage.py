"""How long slices are waited for, whichever process looks, and what is no result yet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from elastic_tpu.platforms.base import SliceState
from elastic_tpu.runs.errors import ElasticTPUError, ExitCode
from elastic_tpu.runs.judge.verdict import Observation
from elastic_tpu.runs.record.claim import read_claim
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.events import EventLog
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.stages.slice_stage import SliceStage
from elastic_tpu.stages.stage import SliceStep
from elastic_tpu.stages.stage_claim import StageClaim
from elastic_tpu.stages.steps import PROVISION, RELEASE, RELEASE_AT_END
from elastic_tpu.tests.fakes.platform import FakePlatform
from elastic_tpu.tests.support import Case

COMING = SliceState("requested", 0, 2, "0 of 2")


@pytest.fixture
def waiting(make_case: Callable[..., Case]) -> Callable[..., SliceStage]:
    """A provision in a new process, of slices about which these things happened so many seconds ago."""

    def make(seen: SliceState = COMING, **ago: float) -> SliceStage:
        run = create_run(read_spec(str(make_case(limits={"start": "10m"}).spec)))
        for kind, seconds in ago.items():
            then = datetime.now(UTC) - timedelta(seconds=seconds)
            EventLog(run.store, "local", clock=lambda then=then: then).write(f"slice.{kind}")  # type: ignore[misc]
        driver = Driver(run.store, "dag/1", "1", 600)
        driver.take()
        claim = StageClaim(driver, run.store, ("dag/1", "1"), 600, take_over=False)
        return SliceStage(PROVISION, run, FakePlatform(slice_state=seen), claim, lambda _: None)

    return make


@pytest.mark.parametrize(
    ("ago", "spent"),
    [
        ({}, False),
        ({"requested": 590}, False),
        ({"requested": 610}, True),  # by a process before this one
        ({"requested": 9000, "ready": 8000}, False),  # they were there, and some are lost now
        ({"requested": 610, "ready": 8000}, True),
    ],
)
def test_limits_start_counts_from_the_request(
    waiting: Callable[..., SliceStage], ago: dict[str, float], spent: bool
) -> None:
    verdict = waiting(**ago).poll()
    assert (verdict.code == ExitCode.LIMIT_SPENT) is spent
    assert verdict.limit == ("limits.start" if spent else "")
    assert verdict.done is spent


@pytest.mark.parametrize(
    ("seen", "summary"),
    [
        (SliceState("requested", 0, 2, "waits in queue tpu", with_job=True), "waits in queue tpu"),
        (SliceState("partly", 0, 2, with_job=True), "the run's job is there"),  # recovering
    ],
)
def test_slices_of_a_job_that_is_there_are_the_next_stages_to_wait_for(
    waiting: Callable[..., SliceStage], seen: SliceState, summary: str
) -> None:
    """As a launcher finds them that goes on with the run of one that was lost."""
    stage = waiting(seen, requested=900000)
    verdict = stage.poll()
    assert (verdict.phase, verdict.outcome, verdict.code) == ("done", "complete", 0)
    assert stage.collect().summary == summary


def test_what_is_not_over_has_no_result(waiting: Callable[..., SliceStage]) -> None:
    stage = waiting()
    stage.poll()
    with pytest.raises(ElasticTPUError, match="provision is not over"):
        stage.collect()


def test_a_release_that_takes_long_keeps_the_claim_and_says_what_it_waits_for(
    make_case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an exit handler's, which is a process of its own: it never took the claim."""
    monkeypatch.setattr("elastic_tpu.stages.slice_stage._QUIET", 0.0)
    run = create_run(read_spec(str(make_case().spec)))
    Driver(run.store, "dag/1", "1", 600).take()
    before = read_claim(run.store)
    claim = StageClaim(Driver(run.store, "dag/1", "2", 600), run.store, ("dag/1", "2"), 600, take_over=False)
    told: list[str] = []
    SliceStage(RELEASE, run, FakePlatform(waits_for="waiting until its pods are gone"), claim, told.append).submit()
    after = read_claim(run.store)
    assert before is not None
    assert after is not None
    assert after.claim.nonce != before.claim.nonce
    assert told == ["giving the slices back", "waiting until its pods are gone"]


@pytest.mark.parametrize(
    ("step", "stopped", "job", "state"),
    [
        (RELEASE, False, "absent", "held"),  # between train and export: nobody else may take the run there
        (RELEASE_AT_END, False, "absent", "done"),  # the pipeline failed before its export began
        (RELEASE_AT_END, False, "over", "done"),  # the export failed
        (RELEASE_AT_END, False, "running", "held"),  # its step was evicted, and the job goes on
        (RELEASE_AT_END, False, "queued", "held"),
        (RELEASE_AT_END, True, "over", "done"),  # the stop is carried out
    ],
)
def test_the_last_release_gives_the_claim_up_when_nothing_runs(
    make_case: Callable[..., Case],
    monkeypatch: pytest.MonkeyPatch,
    step: SliceStep,
    stopped: bool,
    job: str,
    state: str,
) -> None:
    monkeypatch.setattr("elastic_tpu.stages.slice_stage.nothing_left_to_do", lambda run: False)  # trained, no export
    run = create_run(read_spec(str(make_case().spec)))
    driver = Driver(run.store, "dag/1", "export", 600)
    driver.take()
    if stopped:
        driver.stop(0, "ann")
    claim = StageClaim(Driver(run.store, "dag/1", "2", 600), run.store, ("dag/1", "2"), 600, take_over=False)
    stage = SliceStage(step, run, FakePlatform(Observation(job)), claim, lambda _: None)  # type: ignore[arg-type]
    stage.submit()
    assert stage.poll().outcome == "complete"
    stage.collect()
    after = read_claim(run.store)
    assert after is not None
    assert after.claim.state == state
