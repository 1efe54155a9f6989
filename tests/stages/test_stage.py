"""Stages as an orchestrator calls them: separate steps that share a holder, and drivers that are not alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest
from elastic_tpu.runs.errors import ElasticTPUError, EndedOnRequest, ExitCode, HeldByAnother, Infrastructure
from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.runs.record.run import open_run
from elastic_tpu.runs.record.status import Status
from elastic_tpu.runs.store import records
from elastic_tpu.stages.open import open_stage
from elastic_tpu.stages.stage import Stage, Step
from elastic_tpu.stages.steps import EVALUATE, EXPORT, PROVISION, RELEASE, RELEASE_AT_END, TRAIN
from elastic_tpu.tests.support import Case, expected_state, until

MakeCase = Callable[..., Case]
DATA = {"eval": "valid.parquet"}


def stage(case: Case, step: Step, holder: str = "dag/1", instance: str = "try 1", **more: object) -> Stage:
    return open_stage(step, str(case.spec), holder, instance, allow_local=True, **more)  # type: ignore[arg-type]


def end(opened: Stage, seconds: float = 60.0) -> Verdict:
    deadline = time.monotonic() + seconds
    while not (verdict := opened.poll()).done:
        assert time.monotonic() < deadline, verdict
        time.sleep(0.05)
    return verdict


def provisioned(case: Case, holder: str = "dag/1") -> None:
    opened = stage(case, PROVISION, holder)
    opened.submit()
    assert end(opened).outcome == "complete"


def training(case: Case, holder: str = "dag/1") -> Stage:
    provisioned(case, holder)
    opened = stage(case, TRAIN, holder)
    opened.submit()
    case.wait_for_step(3)
    return opened


def released(case: Case, holder: str = "dag/1") -> Verdict:
    opened = stage(case, RELEASE, holder)
    opened.submit()
    return end(opened)


def test_all_stages_of_a_pipeline(make_case: MakeCase) -> None:
    evaluate = {"gate": ["heldout.loss <= 1.5"]}
    case = make_case(train={"steps": 10}, export={}, evaluate=evaluate, data={"eval": "valid.parquet"})
    results = {}
    for step in (PROVISION, TRAIN, RELEASE, EXPORT, EVALUATE, RELEASE):
        opened = stage(case, step)
        opened.submit()
        opened.submit()  # safe to call twice
        assert end(opened).outcome == "complete"
        results[step.name] = opened.collect()
    assert results["train"].values["final_step"] == 9
    assert results["export"].values["model"] == f"{case.uri}/export/9"
    assert results["evaluate"].values["metrics"]["heldout"]["loss"] == 1.0
    assert case.final_state() == expected_state(10)
    assert case.claim is not None
    assert case.claim.claim.state == "done"
    assert [case.attempts(job) for job in ("train", "export", "evaluate")] == [[1], [1], [1]]
    case.released()


def test_a_new_trainer_is_not_described_by_what_the_last_one_wrote(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 10})
    provisioned(case)
    run = open_run(case.uri)
    run.store.put("status.json", Status(run.run_id, 0, "old", phase="training", step=7, steps=10, loss=9.876).dump())
    opened = stage(case, TRAIN)
    opened.submit()
    told = [opened.progress()]
    while not opened.poll().done:
        told.append(opened.progress())
    assert not [line for line in told if "9.876" in line]
    assert [line for line in told if "step" in line], told


def test_a_later_try_adopts_and_a_finished_one_takes_the_result(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 150})
    training(case)
    second = stage(case, TRAIN, instance="try 2")
    second.submit()
    assert end(second).outcome == "complete"
    assert released(case).outcome == "complete"  # the job and all its processes are gone now
    third = stage(case, TRAIN, instance="try 3")
    third.submit()
    assert end(third).outcome == "complete"
    assert third.collect().values["final_step"] == 149
    assert case.attempts() == [1]


def test_a_try_that_was_replaced_cancels_nothing(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000})
    first = training(case)
    first.poll()
    second = stage(case, TRAIN, instance="try 2")
    second.submit()
    for act in (first.poll, lambda: first.cancel(0.0, "an old worker")):
        with pytest.raises((EndedOnRequest, HeldByAnother)):
            act()
    assert not case.events("claim.stopped")
    assert second.poll().phase in ("running", "starting")
    second.cancel(0.0, "ann")
    verdict = end(second)
    assert (verdict.outcome, verdict.code) == ("cancelled", ExitCode.ENDED_ON_REQUEST)
    assert "stopped by ann" in verdict.reason
    assert released(case).outcome == "complete"
    case.released()


def test_another_pipeline_run_is_refused_and_its_exit_handler_releases_nothing(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000})
    training(case)
    for step in (PROVISION, TRAIN, EXPORT):
        with pytest.raises(HeldByAnother, match="is driven by dag/1"):
            stage(case, step, "dag/2").submit()
    verdict = released(case, "dag/2")  # runs though its provision was refused
    assert (verdict.outcome, verdict.code) == ("superseded", ExitCode.HELD_BY_ANOTHER)
    assert "nothing was changed for dag/2" in verdict.reason
    with pytest.raises(HeldByAnother):
        stage(case, TRAIN, "dag/2").cancel(0.0)
    assert len(case.workers()) == 2
    assert len(case.processes("train --run")) == 1
    taken = stage(case, PROVISION, "dag/2", take_over=True)
    taken.submit()
    assert end(taken).outcome == "complete"
    assert len(case.events("slice.requested")) == 2  # adopted
    assert released(case, "dag/1").outcome == "superseded"
    assert released(case, "dag/2").outcome == "complete"
    case.released()


def test_a_stop_is_not_undone_by_the_instance_that_was_told(make_case: MakeCase) -> None:
    case = make_case()
    provision = stage(case, PROVISION)
    provision.submit()
    stage(case, PROVISION).cancel(0.0, "ann")
    verdict = end(provision)
    assert (verdict.outcome, verdict.code) == ("cancelled", ExitCode.ENDED_ON_REQUEST)
    with pytest.raises(EndedOnRequest, match="stop asked for by ann"):
        stage(case, TRAIN).submit()
    assert released(case).outcome == "complete"
    assert case.attempts() == []
    case.released()


def test_a_new_try_undoes_the_stop_of_a_drained_worker(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 200})
    training(case).cancel(300.0, "SIGTERM")  # a signal: the trainer waits
    again = stage(case, TRAIN, instance="try 2")
    again.submit()
    assert end(again).outcome == "complete"
    assert case.attempts() == [1]
    assert released(case).outcome == "complete"


def test_a_release_of_a_run_that_was_never_started(make_case: MakeCase) -> None:
    case = make_case(run={"name": "r-{run}"})
    opened = stage(case, RELEASE)
    opened.submit()
    assert end(opened).outcome == "complete"
    assert "no run was started" in opened.collect().summary
    assert not case.output.exists()


def test_results_are_not_collected_before_the_end_nor_from_a_failure(make_case: MakeCase) -> None:
    case = make_case("--exit-at", "5:70")
    opened = stage(case, TRAIN)
    provisioned(case)
    opened.submit()
    with pytest.raises(ElasticTPUError, match="train is not over"):
        opened.collect()
    assert end(opened).code == ExitCode.BUG
    with pytest.raises(ElasticTPUError, match="told to exit at step 5") as caught:
        opened.collect()
    assert caught.value.code == ExitCode.BUG
    assert released(case).outcome == "complete"
    until(lambda: not case.processes())


def failed_export(case: Case) -> None:
    """A pipeline whose export fails, to the end of its last release."""
    provisioned(case)
    for step in (TRAIN, RELEASE):
        opened = stage(case, step)
        opened.submit()
        assert end(opened).outcome == "complete"
        opened.collect()
    with pytest.raises(HeldByAnother):  # the run is not given up between two stages
        stage(case, PROVISION, "dag/2").submit()
    export = stage(case, EXPORT)
    export.submit()
    assert end(export).outcome == "failed"
    last = stage(case, RELEASE_AT_END)
    last.submit()
    assert end(last).outcome == "complete"
    last.collect()


def state_of(case: Case) -> tuple[str, int, str]:
    assert case.claim is not None
    return case.claim.claim.holder, case.claim.claim.term, case.claim.claim.state


def test_a_rerun_takes_what_a_failed_pipeline_gave_up(make_case: MakeCase) -> None:
    case = make_case("--fail-job", "export", train={"steps": 10}, export={}, evaluate={}, data=DATA)
    failed_export(case)
    assert state_of(case) == ("dag/1", 1, "done")
    provisioned(case, "dag/2")
    assert state_of(case) == ("dag/2", 2, "held")
    with pytest.raises(HeldByAnother):
        stage(case, EXPORT).submit()  # of the pipeline that gave the run up


def test_a_retry_takes_again_what_its_last_release_gave_up(make_case: MakeCase) -> None:
    """As a user of Airflow who clears the failed export."""
    case = make_case("--fail-job", "export", train={"steps": 10}, export={}, evaluate={}, data=DATA)
    failed_export(case)
    again = stage(case, EXPORT, instance="try 2")
    again.submit()
    assert state_of(case) == ("dag/1", 2, "held")
    with pytest.raises(HeldByAnother):
        stage(case, PROVISION, "dag/2").submit()
    assert end(again).outcome == "failed"  # and not ended by its supervisor, as the job of a run that is over
    assert len(case.attempts("export")) == 2


@pytest.mark.parametrize("step", [PROVISION, TRAIN])
def test_a_launcher_on_the_wrong_host_leaves_a_healthy_run_alone(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    """A run directory on a shared disk: another worker of the same pipeline run, or a user with --take-over."""
    case = make_case(train={"steps": 100_000})
    first = training(case)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "elsewhere")
        with pytest.raises(Infrastructure, match=r"processes of host .* go there"):
            stage(case, step, instance="try 2", take_over=True).submit()
    assert first.poll().phase in ("running", "starting")
    assert state_of(case) == ("dag/1", 1, "held")
    assert released(case).outcome == "complete"


def test_a_launcher_takes_slices_anew_where_their_host_is_gone(make_case: MakeCase) -> None:
    case = make_case(local={"unclaimed": "1s"})
    provisioned(case)
    case.supervisor().kill()
    record = {**(case.json("slices.json") or {}), "host": "elsewhere"}
    case.run.store.put("slices.json", records.dump(record))
    time.sleep(1.1)
    provisioned(case, "dag/2")
    assert (case.json("slices.json") or {})["host"] == socket.gethostname()
    assert released(case, "dag/2").outcome == "complete"
