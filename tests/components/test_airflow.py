"""The operator and its trigger as workers and triggerers use them: deferred, cleared, killed, restarted, doubled."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from elastic_tpu import components
from elastic_tpu.platforms.local.platform import LocalPlatform
from elastic_tpu.runs.errors import ExitCode, Unreachable
from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.stages.job_stage import JobStage
from elastic_tpu.stages.progress import ProgressLog
from elastic_tpu.stages.results import StageResult, error_of
from elastic_tpu.tests.dags.airflow_home import airflow  # noqa: F401 - a fixture
from elastic_tpu.tests.support import Case, expected_state, until

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow")]
MakeCase = Callable[..., Case]
HOLDER = "dag/run 1"
LONG = {"train": {"steps": 100_000}}
SHORT = {"train": {"steps": 5}, "checkpoint": {"every": 5}}


@dataclasses.dataclass
class Task:
    """A try of a task: its operator, and what Airflow's worker and triggerer do with it."""

    operator: Any
    instance: Any

    def execute(self) -> Any:
        """The worker's part: a result, or the trigger that the task was deferred to."""
        return self._in_worker(lambda: self.operator.execute({"ti": self.instance}))

    def resume(self, event: Any) -> Any:
        return self._in_worker(lambda: self.operator.resume({"ti": self.instance}, event.payload))

    def _in_worker(self, call: Callable[[], Any]) -> Any:
        from airflow.sdk.bases.operator import ExecutorSafeguard
        from airflow.sdk.exceptions import TaskDeferred

        context = contextvars.copy_context()
        context.run(ExecutorSafeguard.tracker.set, self.operator)
        try:
            return context.run(call)
        except TaskDeferred as deferred:
            return self.in_triggerer(deferred.trigger)

    def in_triggerer(self, trigger: Any) -> Any:
        """The trigger as a triggerer makes it from the database."""
        copied = revived(trigger)
        copied.task_instance = self.instance
        return copied


def revived(trigger: Any) -> Any:
    """A trigger after it went through the database."""
    from airflow.sdk._shared.module_loading import import_string
    from airflow.sdk.serde import deserialize, serialize

    path, kwargs = trigger.serialize()
    return import_string(path)(**deserialize(json.loads(json.dumps(serialize(kwargs)))))


def attempt(case: Case, name: str, number: int = 1, *, run: str = "", **options: Any) -> Task:
    """A try of a task of the DAG run `HOLDER`."""
    from elastic_tpu.components import airflow as operators

    of_step = {kind.step.name: kind for kind in (getattr(operators, kind) for kind in operators.__all__)}
    options = {"allow_local": True, "poke_before_defer": 0, **options}
    operator = of_step[name](task_id=name, run=run or str(case.spec), holder=HOLDER, **options)
    instance = SimpleNamespace(
        dag_id="dag", run_id="run 1", task_id=name, map_index=-1, try_number=number, start_date=datetime.now(UTC)
    )
    return Task(operator, instance)


def event_of(trigger: Any) -> Any:
    """Run a trigger to its event."""

    async def first() -> Any:
        return await anext(trigger.run())

    return asyncio.run(first())


def finish(task: Task) -> Any:
    """Execute, watch and resume, as often as it takes."""
    from airflow.triggers.base import BaseTrigger

    done = task.execute()
    while isinstance(done, BaseTrigger):
        done = task.resume(event_of(done))
    return done


def training(case: Case, **options: Any) -> tuple[Task, Any]:
    """A train task that is deferred while it trains, and its trigger."""
    finish(attempt(case, "provision"))
    task = attempt(case, "train", **options)
    trigger = task.execute()
    case.wait_for_step(3)
    return task, trigger


@contextmanager
def airflow_says(state: str | Exception | None) -> Iterator[None]:
    """What Airflow's API answers when it is asked for the task's state."""
    from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult
    from airflow.sdk.execution_time.supervisor import set_supervisor_comms

    class Comms:
        def send(self, message: Any) -> Any:
            assert isinstance(message, GetTaskStates)
            if isinstance(state, Exception):
                raise state
            names = message.task_ids or []
            return TaskStatesResult(task_states={run: dict.fromkeys(names, state) for run in message.run_ids or []})

    with set_supervisor_comms(Comms()):
        yield


def kill(trigger: Any, state: str | Exception | None = "failed") -> None:
    """What a triggerer does with a trigger that is to end, while Airflow has the task in that state."""
    with airflow_says(state):
        asyncio.run(trigger.on_kill())


def stops(case: Case) -> list[tuple[Any, Any]]:
    return [(event.data["grace"], event.data["term"]) for event in case.events("claim.stopped")]


# ---- across processes


def test_every_field_reaches_the_triggerer() -> None:
    from elastic_tpu.components.airflow_trigger import StageTrigger, Submitted

    values = {
        "step": "train",
        "run": "gs://b/r",
        "holder": HOLDER,
        "instance": "train try 2",
        "term": 7,
        "deadline": 1.5,
        "allow_local": True,
        "spec_hash": "abc",
    }
    wanted = {name for name in inspect.signature(StageTrigger.__init__).parameters if name != "self"}
    assert wanted == set(values) == {field.name for field in dataclasses.fields(Submitted)}
    assert dataclasses.asdict(revived(StageTrigger(**values)).submitted) == values
    assert (
        dataclasses.asdict(revived(StageTrigger(**values | {"term": None, "deadline": None})).submitted)["term"] is None
    )


def test_both_parameters_are_templates() -> None:
    from elastic_tpu.components.train_elastic.operator import TrainElasticOperator

    operator = TrainElasticOperator(task_id="train", run="gs://b/{{ ds }}")
    operator.render_template_fields(
        {"ds": "2026-01-01", "dag": SimpleNamespace(dag_id="d"), "run_id": "r 1"}  # type: ignore[typeddict-item]
    )
    assert (operator.run, operator.holder) == ("gs://b/2026-01-01", "d/r 1")


def test_the_event_and_the_result_are_small(make_case: MakeCase) -> None:
    case = make_case(**SHORT)
    finish(attempt(case, "provision"))
    task = attempt(case, "train")
    event = event_of(task.execute())
    assert event.payload["verdict"]["outcome"] == "complete"
    assert len(json.dumps(event.payload)) < 2000
    assert task.resume(event)["final_step"] == 4


def test_a_large_result_leaves_its_bulk_in_the_run() -> None:
    from elastic_tpu.components.airflow_operator import small

    metrics = {f"task{i}": {"acc": 0.5} for i in range(5000)}
    values = {"run": "gs://b/r", "metrics": metrics, "key": "k", "slices": ("a", "b")}
    record = small(StageResult("evaluate", "s" * 5000, values))
    assert len(json.dumps(record)) < 2000
    assert (record["key"], record["slices"], record["left_in_run"]) == ("k", ["a", "b"], "metrics")


def test_a_spec_that_is_edited_while_its_run_is_deferred_changes_nothing(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 60})
    finish(attempt(case, "provision"))
    task = attempt(case, "train")
    trigger = task.execute()
    case.spec.write_text("not a spec")
    assert task.resume(event_of(trigger))["final_step"] == 59


def test_a_result_outlives_its_job(make_case: MakeCase) -> None:
    case = make_case(**SHORT)
    finish(attempt(case, "provision"))
    task = attempt(case, "train")
    event = event_of(task.execute())
    LocalPlatform(case.run).release()  # as a TTL, or a colleague, before a worker is free for the task
    case.released()
    assert task.resume(event)["final_step"] == 4
    assert attempt(case, "train", 2).execute()["final_step"] == 4  # not deferred
    assert case.attempts() == [1]


def test_a_failure_is_reported_as_it_was_seen(make_case: MakeCase) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    case = make_case("--exit-at", "3:70")
    finish(attempt(case, "provision"))
    task = attempt(case, "train")
    event = event_of(task.execute())
    LocalPlatform(case.run).release()
    with pytest.raises(AirflowFailException, match=r"told to exit at step 3.*code 70"):
        task.resume(event)


def test_a_job_whose_limit_is_spent_is_ended(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    case = make_case(**LONG)
    task, trigger = training(case)
    spent = Verdict.ended(ExitCode.LIMIT_SPENT, "limits.start is spent: no node", {"uid": "1"}, limit="limits.start")
    monkeypatch.setattr(JobStage, "_limited", lambda *_: spent)
    event = event_of(trigger)
    event.payload = json.loads(json.dumps(event.payload))  # through Airflow's database
    assert event.payload["verdict"] == {**spent.record(), "evidence": {}}
    assert case.processes("train --run")  # a trigger only looks
    with pytest.raises(AirflowFailException, match=r"limits.start is spent: no node.*code 77"):
        task.resume(event)
    until(lambda: not case.processes("train --run"), "the end of training")


def test_storage_that_does_not_answer_is_waited_for(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(**SHORT)
    finish(attempt(case, "provision"))
    task = attempt(case, "train")
    trigger = task.execute()
    poll, failures = JobStage.poll, [Unreachable("no answer")] * 3

    def unreachable_at_first(job: JobStage) -> Verdict:
        if failures:
            raise failures.pop()
        return poll(job)

    monkeypatch.setattr(JobStage, "poll", unreachable_at_first)
    assert event_of(trigger).payload["verdict"]["outcome"] == "complete"
    assert not failures


@pytest.mark.parametrize("code", [64, 65, 69, 70, 75, 76, 77])
def test_only_what_a_new_try_cures_is_retried(code: int) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
    from elastic_tpu.components.airflow_operator import airflow_errors

    error = error_of(Verdict("done", "failed", code=code, reason="dag/other drives it"))
    with pytest.raises(AirflowException, match=f"dag/other drives it.*{code}") as raised, airflow_errors():
        raise error
    assert isinstance(raised.value, AirflowFailException) == (code != ExitCode.INFRASTRUCTURE)


# ---- cleared, killed, restarted, doubled


def test_cleared_while_deferred_the_old_trigger_ends_after_the_new_try_took_over(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 400})
    _, old = training(case)
    trainer = case.trainer().pid
    new = attempt(case, "train", 2)
    trigger = new.execute()
    for state in ("deferred", "running", "scheduled", None):
        kill(old, state)
    assert stops(case) == []
    assert case.trainer().pid == trainer
    assert event_of(old).payload["verdict"]["code"] == ExitCode.ENDED_ON_REQUEST  # nor does it renew
    assert new.resume(event_of(trigger))["final_step"] == 399
    assert case.attempts() == [1]  # training never noticed
    assert case.final_state() == expected_state(400)


def test_cleared_while_deferred_the_old_trigger_ends_before_the_new_try_takes_over(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 400})
    _, old = training(case)
    kill(old, None)
    assert len(stops(case)) == 1
    assert finish(attempt(case, "train", 2))["final_step"] == 399
    assert case.final_state() == expected_state(400)
    assert len(case.events("slice.requested")) == 2


def test_train_that_is_cleared_alone_after_a_release_takes_slices_again(make_case: MakeCase) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    case = make_case("--exit-at", "3:70", **SHORT)
    finish(attempt(case, "provision"))
    with pytest.raises(AirflowFailException, match="code 70"):
        finish(attempt(case, "train"))
    finish(attempt(case, "release"))
    case.released()
    with pytest.raises(AirflowFailException, match="told to exit at step 3"):  # it trains, on slices
        finish(attempt(case, "train", 2))
    assert case.attempts() == [1, 2]
    assert len(case.events("slice.requested")) == 4


def test_a_late_trigger_of_a_task_cleared_with_its_provision_stops_nothing(make_case: MakeCase) -> None:
    # `train` was cleared once already, so its second try and the second one of `provision` have the same number.
    case = make_case(**LONG)
    _, old = training(case, number=2)
    finish(attempt(case, "provision", 2))
    kill(old, None)
    assert stops(case) == []
    assert case.trainer().is_running()


def test_two_triggerers_come_to_one_verdict(make_case: MakeCase) -> None:
    case = make_case("--step-seconds", "0.03")
    task, trigger = training(case)
    taken = len(case.events("claim.taken"))

    async def both() -> list[Any]:
        return list(await asyncio.gather(anext(trigger.run()), anext(task.in_triggerer(trigger).run())))

    first, second = asyncio.run(both())
    assert first.payload == second.payload
    assert first.payload["verdict"]["outcome"] == "complete"
    assert task.resume(first)["final_step"] == 59
    assert len(case.events("claim.taken")) == taken
    assert stops(case) == []
    assert case.attempts() == [1]


def test_a_user_who_ends_a_deferred_task_stops_training_once(make_case: MakeCase) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    case = make_case(**LONG)
    task, trigger = training(case)
    again = task.in_triggerer(trigger)

    async def both() -> None:
        await asyncio.gather(trigger.on_kill(), again.on_kill())

    with airflow_says("failed"):
        asyncio.run(both())
    assert [grace for grace, _ in stops(case)] == [0]
    with pytest.raises(AirflowFailException, match="code 76"):
        task.resume(event_of(trigger))
    status = case.status
    assert status is not None
    assert status.proven_step == status.step  # it saved


def test_a_restarted_triggerer_cancels_nothing(make_case: MakeCase) -> None:
    case = make_case("--step-seconds", "0.03")
    task, trigger = training(case)

    async def shut_down() -> None:
        watching = asyncio.create_task(anext(trigger.run()))
        await asyncio.sleep(0.3)  # in the middle of its watch
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        await trigger.cleanup()

    asyncio.run(shut_down())
    assert stops(case) == []
    assert task.resume(event_of(task.in_triggerer(trigger)))["final_step"] == 59
    assert case.attempts() == [1]


@pytest.mark.parametrize("state", ["deferred", ConnectionError("the API server is away")])
def test_a_trigger_that_is_given_to_another_triggerer_cancels_nothing(make_case: MakeCase, state: Any) -> None:
    # A triggerer whose heartbeat was late loses its triggers, and ends them as if a user had asked for it.
    case = make_case(**LONG)
    _, trigger = training(case)
    kill(trigger, state)
    assert stops(case) == []
    assert case.trainer().is_running()


def test_looks_that_hang_stop_neither_a_foreign_trigger_nor_a_cancel(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(**LONG)
    task, trigger = training(case)
    answers, hang = threading.Event(), JobStage.poll

    def hanging(stage: JobStage) -> Verdict:
        assert answers.wait(60)
        return hang(stage)

    monkeypatch.setattr(JobStage, "poll", hanging)

    async def triggerer() -> None:
        watched = [asyncio.create_task(anext(task.in_triggerer(trigger).run())) for _ in range(40)]
        await asyncio.sleep(0)  # all of them look now
        try:
            await asyncio.wait_for(asyncio.to_thread(lambda: None), 10)  # a trigger of another provider
            await asyncio.wait_for(trigger.on_kill(), 10)
        finally:
            answers.set()
            for one in watched:
                one.cancel()
            await asyncio.gather(*watched, return_exceptions=True)

    with airflow_says("failed"):
        asyncio.run(triggerer())
    assert [grace for grace, _ in stops(case)] == [0]


def test_the_log_of_a_task_says_how_far_its_training_is(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(**LONG)
    finish(attempt(case, "provision"))
    task = attempt(case, "train")
    said: list[str] = []
    monkeypatch.setattr(task.operator.log, "info", lambda text, *args: said.append(text % args))
    trigger = task.execute()
    case.wait_for_step(3)
    monkeypatch.setattr(
        "elastic_tpu.components.airflow_trigger.ProgressLog", lambda _, every: ProgressLog(said.append, every)
    )
    task.in_triggerer(trigger)._look()
    assert re.match(r"train: (starting|running)", said[-2])
    assert re.match(r"train: training, step \d+ of 100000, loss \d\.\d+, .*slices 2 of 2$", said[-1])


def test_a_look_logs_where_airflow_looks_for_it(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(**SHORT)
    finish(attempt(case, "provision"))
    trigger, poll = attempt(case, "train").execute(), JobStage.poll
    whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody's")
    seen = []

    def look(stage: JobStage) -> Verdict:
        seen.append(whose.get())
        return poll(stage)

    monkeypatch.setattr(JobStage, "poll", look)
    contextvars.copy_context().run(lambda: (whose.set("the trigger's"), event_of(trigger)))
    assert set(seen) == {"the trigger's"}


# ---- a worker that is told to end while it submits


def killed_in_launch(case: Case, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A train task whose worker gets SIGTERM while it launches the job."""
    finish(attempt(case, "provision"))
    task, launch = attempt(case, "train"), LocalPlatform.launch

    def launch_and_get_sigterm(self: LocalPlatform, job: Any, waiting: Any = None) -> None:
        launch(self, job)
        task.operator.on_kill()

    monkeypatch.setattr(LocalPlatform, "launch", launch_and_get_sigterm)
    return task


def test_a_drained_worker_leaves_the_job_alone(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case()
    task = killed_in_launch(case, monkeypatch)
    with airflow_says("running"):
        trigger = task.execute()
    assert stops(case) == []
    assert task.resume(event_of(trigger))["final_step"] == 59


def test_a_user_who_ends_a_task_that_submits_stops_training(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(**LONG)
    task = killed_in_launch(case, monkeypatch)
    with airflow_says("failed"):
        trigger = task.execute()
    assert [grace for grace, _ in stops(case)] == [0]
    assert event_of(trigger).payload["verdict"]["outcome"] == "cancelled"
    assert case.attempts() == [1]


def test_a_signal_that_nobody_explains_is_undone_by_the_next_try(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    case = make_case(train={"steps": 400})
    task = killed_in_launch(case, monkeypatch)
    with airflow_says(ConnectionError("the API server is away")), pytest.raises(AirflowException) as raised:
        task.execute()
    assert not isinstance(raised.value, AirflowFailException)
    assert [grace for grace, _ in stops(case)] == [300]
    assert finish(attempt(case, "train", 2))["final_step"] == 399
    assert case.attempts() == [1]


def test_a_kill_before_anything_was_taken_changes_nothing(make_case: MakeCase) -> None:
    case = make_case()
    task = attempt(case, "provision")
    with airflow_says("failed"):
        task.operator.on_kill()
    assert not case.output.exists()


# ---- what ends within seconds


def test_what_ends_within_seconds_is_never_deferred(make_case: MakeCase) -> None:
    from elastic_tpu.components.airflow_operator import POKE_BEFORE_DEFER as DEFAULT

    case = make_case(**SHORT)
    done = [attempt(case, name, poke_before_defer=DEFAULT).execute() for name in ("provision", "train", "release")]
    assert [result["stage"] for result in done] == ["provision", "train", "release"]
    assert done[1]["final_step"] == 4


@pytest.mark.parametrize("ends", ["poke_before_defer", "execution_timeout", "a drained worker"])
def test_what_takes_long_is_awaited_in_the_worker_no_longer_than_it_may(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    from airflow.triggers.base import BaseTrigger

    case = make_case(**LONG)
    finish(attempt(case, "provision"))
    options: dict[str, Any] = {"poke_before_defer": 0.1 if ends == "poke_before_defer" else 3600}
    if ends == "execution_timeout":
        options["execution_timeout"] = timedelta(seconds=0.2)
    task, looks, poll = attempt(case, "train", **options), list[int](), JobStage.poll

    def look(stage: JobStage) -> Verdict:
        looks.append(1)
        if ends == "a drained worker" and len(looks) == 2:
            with airflow_says("running"):
                task.operator.on_kill()
        return poll(stage)

    monkeypatch.setattr(JobStage, "poll", look)
    assert isinstance(task.execute(), BaseTrigger)
    assert looks
    assert stops(case) == []


# ---- execution_timeout


def test_the_deadline_is_the_same_however_often_a_task_is_deferred(make_case: MakeCase) -> None:
    from airflow.triggers.base import BaseTrigger

    case = make_case(**LONG)
    task, trigger = training(case, execution_timeout=timedelta(seconds=120))
    deadline = trigger.submitted.deadline
    assert deadline == task.instance.start_date.timestamp() + 120
    event = SimpleNamespace(
        payload={
            "submitted": dataclasses.asdict(trigger.submitted),
            "verdict": Verdict("done", "complete").record(),  # of a job that is relaunched by now
        }
    )
    for _ in range(3):
        task.instance.start_date += timedelta(seconds=50)  # what a resumed task has
        trigger = task.resume(event)
        assert isinstance(trigger, BaseTrigger)
        assert trigger.submitted.deadline == deadline  # type: ignore[attr-defined]


def test_a_task_whose_time_is_up_is_stopped_and_says_so(make_case: MakeCase) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    case = make_case(**LONG)
    task, trigger = training(case, execution_timeout=timedelta(seconds=1))
    event = event_of(trigger)
    assert stops(case) == []  # a trigger only looks
    with pytest.raises(AirflowFailException, match="execution_timeout is spent"):
        task.resume(event)
    assert [grace for grace, _ in stops(case)] == [0]
    until(lambda: (status := case.status) is not None and status.phase == "ended", "the end of training")


# ---- what is imported


def test_operators_need_airflow_and_none_of_its_providers() -> None:
    room = Path(components.__file__).parent
    files = [*room.glob("airflow*.py"), *room.glob("*/operator.py"), *(room.parent / "dags").glob("*.py")]
    assert len(files) >= 8
    assert [path.name for path in files if "airflow.providers" in path.read_text()] == []
