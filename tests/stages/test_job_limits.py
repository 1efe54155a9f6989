"""A job that waits for too long before it gets going: ended by its launcher on GKE, by its trainer on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from elastic_tpu.runs.errors import ExitCode, LimitSpent
from elastic_tpu.runs.judge.verdict import Observation
from elastic_tpu.runs.record import paths
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.record.status import Status
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.stages.job_stage import JobStage
from elastic_tpu.stages.stage_claim import StageClaim
from elastic_tpu.stages.steps import EXPORT, TRAIN
from elastic_tpu.tests.fakes.platform import FakePlatform
from elastic_tpu.tests.support import Case

MakeStage = Callable[..., tuple[JobStage, FakePlatform]]


@pytest.fixture
def make_stage(make_case: Callable[..., Case]) -> MakeStage:
    """A stage of a run, and the platform that it sees."""

    def make(seen: Observation, platform: str = "gke", step: Any = TRAIN, status: Status | None = None) -> Any:
        limits = {"queue": "1h", "start": "10m", "first_step": "5m"}
        run = create_run(read_spec(str(make_case(limits=limits, export={}).spec)))
        run = replace(run, spec=run.spec.model_copy(update={"platform": platform}))
        if status is not None:
            run.store.put(paths.STATUS, status.dump())
        driver = Driver(run.store, "dag/1", "1", 600)
        driver.take()
        claim = StageClaim(driver, run.store, ("dag/1", "1"), 600, take_over=False)
        shown = FakePlatform(seen)
        return JobStage(step, run, shown, claim, lambda _: None), shown

    return make


def since(minutes: float) -> datetime:
    return datetime.now(UTC) - timedelta(minutes=minutes)


SPENT = [
    (Observation("queued", detail="waits in queue tpu", waited=3601), "limits.queue (1h) is spent: waits in queue tpu"),
    (Observation("starting", detail="no node", waited=601), "limits.start (10m) is spent: no node"),
    (Observation("suspended", waited=3601), "limits.queue (1h) is spent: it ran and was put back"),
    (Observation("over", -9, True, "no node", waited=601), "limits.start (10m) is spent: no node"),
    (Observation("running", running_since=since(6)), "limits.first_step (5m) is spent: all slices are"),
]


@pytest.mark.parametrize(("seen", "reason"), SPENT)
def test_a_spent_limit_ends_the_job_and_says_what_it_waited_for(
    make_stage: MakeStage, seen: Observation, reason: str
) -> None:
    stage, shown = make_stage(seen)
    verdict = stage.poll()
    assert (verdict.phase, verdict.outcome, verdict.act, verdict.code) == ("done", "failed", "user", 77)
    assert verdict.reason.startswith(reason)
    assert reason.startswith(f"{verdict.limit} (")
    assert not shown.cancelled  # a look changes nothing
    with pytest.raises(LimitSpent, match="is spent") as caught:
        stage.collect()
    assert caught.value.code == ExitCode.LIMIT_SPENT
    assert shown.cancelled == ["train"]  # or it would begin later, unwatched


@pytest.mark.parametrize(("seen", "reason"), SPENT)
def test_another_process_collects_the_same(make_stage: MakeStage, seen: Observation, reason: str) -> None:
    stage, shown = make_stage(seen)
    with pytest.raises(LimitSpent) as caught:
        stage.collect()  # without a look of its own before
    assert str(caught.value).startswith(reason)
    assert shown.cancelled == ["train"]


@pytest.mark.parametrize(("seen", "reason"), SPENT)
def test_on_this_machine_the_trainers_own_limits_count(make_stage: MakeStage, seen: Observation, reason: str) -> None:
    del reason
    stage, _ = make_stage(seen, platform="local")
    assert not stage.poll().done


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        (Observation("queued", waited=3599), "queued"),
        (Observation("suspended", waited=3599), "suspended"),
        (Observation("over", -9, relaunching=True, waited=599), "recovering"),
        (Observation("starting", waited=599), "starting"),
    ],
)
def test_a_job_that_still_may_wait(make_stage: MakeStage, seen: Observation, phase: str) -> None:
    stage, _ = make_stage(seen)
    verdict = stage.poll()
    assert (verdict.phase, verdict.done) == (phase, False)


def test_training_that_got_on_has_started(make_stage: MakeStage) -> None:
    status = Status("r-12345678", 1, "n", phase="training", step=3)
    seen = Observation("running", running_since=since(600))
    assert make_stage(seen, status=status)[0].poll().phase == "running"


def test_an_export_that_never_starts_is_ended_and_one_that_runs_is_not(make_stage: MakeStage) -> None:
    assert make_stage(Observation("starting", waited=601), step=EXPORT)[0].poll().code == 77
    assert not make_stage(Observation("running", running_since=since(600)), step=EXPORT)[0].poll().done


@pytest.mark.parametrize(("minutes_before", "spent"), [(4, False), (6, True)])
def test_limits_count_by_the_clusters_clock(make_stage: MakeStage, minutes_before: float, spent: bool) -> None:
    """This machine's clock may be off by hours."""
    seen_at = datetime.now(UTC) + timedelta(hours=9)
    seen = Observation("running", running_since=seen_at - timedelta(minutes=minutes_before), seen_at=seen_at)
    assert make_stage(seen)[0].poll().done is spent


@pytest.mark.parametrize("stuck", [False, True])
def test_a_launcher_that_watches_frees_stuck_pods(make_stage: MakeStage, stuck: bool) -> None:
    stage, shown = make_stage(Observation("running", stuck=stuck))
    stage.submit()
    assert stage.poll().phase == "running"
    assert shown.freed == (["train", "train"] if stuck else [])


@pytest.mark.parametrize("state", ["queued", "suspended"])
def test_a_stop_before_there_is_a_trainer_ends_the_job_at_once(make_stage: MakeStage, state: Any) -> None:
    stage, shown = make_stage(Observation(state))
    stage.submit()
    assert stage.cancel(0.0, "ann")
    assert shown.cancelled == ["train"]


@pytest.mark.parametrize("state", ["queued", "suspended"])
def test_a_drained_step_keeps_its_jobs_place_in_the_queue(make_stage: MakeStage, state: Any) -> None:
    stage, shown = make_stage(Observation(state))
    stage.submit()
    assert stage.cancel(300.0)
    assert not shown.cancelled


def test_the_report_is_written_anew_at_a_recovery_and_a_proven_checkpoint(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("elastic_tpu.stages.job_stage.time.monotonic", lambda: now)
    said = Status("r", 1, "n", phase="training", step=5, steps=60)
    stage, _ = make_stage(Observation("running"), status=said)
    store = stage.run.store

    def report_after(**changes: Any) -> bool:
        nonlocal now
        now += 16.0
        store.put("report.html", b"old")
        store.put(paths.STATUS, replace(said, **changes).dump())
        stage.poll()
        return store.read("report.html").data != b"old"

    assert not report_after(step=6)
    assert report_after(proven_step=10)
    assert not report_after(proven_step=10, step=12)
    assert report_after(proven_step=10, recovery=1)
    now -= 15.0  # so that the next news comes a second later
    assert not report_after(proven_step=20, recovery=1)
    assert report_after(proven_step=20, recovery=1)  # told with the next look, not lost
    assert report_after(attempt=2, proven_step=20)  # a new process counts its recoveries from 0
    assert report_after(attempt=2, proven_step=30)
