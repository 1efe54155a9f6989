"""The Airflow adapter: ONE deferrable operator and ONE trigger for every stage. Nothing is decided here.

    train = TrainElasticOperator(task_id="train", run="gs://acme-train/runs/qwen3-8b")

The operator submits the stage in a worker and defers; the trigger looks at it from the triggerer, for days if need be,
and changes nothing but the claim's renewal, so that two triggerers may run it at once. Back in a worker, the operator
collects the proof. What a triggerer must know goes through `Submitted`, the term of the claim included: what is left of
an older try can neither renew nor cancel what a newer try drives. Only a user's act cancels: a worker that is drained
leaves its job to the next try, a triggerer that is restarted to the next triggerer.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.triggers.base import BaseTrigger, TriggerEvent

from ..runs.errors import ElasticTPUError, ExitCode, Infrastructure, Unreachable
from ..runs.judge.verdict import Verdict
from ..stages.open import open_stage
from ..stages.results import StageResult, error_of
from ..stages.stage import Stage, Step
from ..stages.steps import STEPS

HOLDER = "{{ dag.dag_id }}/{{ run_id }}"
"""Who drives a run, as a template: the DAG run, so all tasks of it act as one."""

_RETRIED = (ExitCode.INFRASTRUCTURE, ExitCode.EVICTED)
_XCOM_BYTES = 2000
_TEXT = 1000  # characters of a reason that go through Airflow's database; whole in the run directory and the log
_NOT_OPEN = 15.0  # seconds between two tries to open a run
_LAST_SECONDS = 4.0  # Airflow kills a task 5 s after it told it to end
_SIGNAL_GRACE = 300.0  # seconds in which the next try's take undoes the stop of a try that a signal ended


@dataclass(frozen=True)
class Submitted:
    """A submitted stage, as another process goes on with it. All of it is JSON.

    Attributes:
      step: the step's name.
      run: URI of the run directory.
      holder: who drives the run.
      instance: the task and its try.
      term: the term of the claim that the try got.
      deadline: when `execution_timeout` is spent, in seconds since the epoch, or None.
    """

    step: str
    run: str
    holder: str
    instance: str
    term: int | None
    deadline: float | None

    def open(self) -> Stage:
        """The stage, in the term that it was submitted in."""
        return open_stage(STEPS[self.step], self.run, self.holder, self.instance, term=self.term)


class StageTrigger(BaseTrigger):
    """Looks at a submitted stage until it is done, and fires one event: the verdict."""

    def __init__(
        self, *, step: str, run: str, holder: str, instance: str, term: int | None, deadline: float | None
    ) -> None:
        """Args: see `Submitted`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.submitted = Submitted(step, run, holder, instance, term, deadline)
        self._stage: Stage | None = None
        self._told = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """For Airflow's database."""
        return f"{__name__}.{type(self).__name__}", asdict(self.submitted)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the stage is done or the time is up."""
        while True:
            # A stage's work is synchronous; a thread keeps the other triggers going.
            verdict, wait = await asyncio.to_thread(self._look)
            left = float("inf") if self.submitted.deadline is None else self.submitted.deadline - time.time()
            if verdict.done or left <= 0:
                yield TriggerEvent(_event(self.submitted, verdict))  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(min(wait, left))

    def _look(self) -> tuple[Verdict, float]:
        """The verdict, and the seconds to wait if it is not done."""
        try:
            if self._stage is None:
                self._stage = self.submitted.open()
            verdict = self._stage.poll()
        except Unreachable as error:
            verdict = Verdict("running", reason=f"waiting for an answer: {error}")
        except ElasticTPUError as error:
            verdict = Verdict("done", "failed", code=int(error.code), reason=str(error))
        if (told := f"{self.submitted.step}: {verdict.phase} {verdict.reason}".rstrip()) != self._told:
            self._told = told
            self.log.info(told)
        return verdict, self._stage.interval if self._stage else _NOT_OPEN

    async def on_kill(self) -> None:
        """A user marked or cleared the task: ask the trainer to save and end, unless a newer try drives the run."""
        await asyncio.to_thread(self._cancel)

    def _cancel(self) -> None:
        task = self.task_instance
        try:
            state = None if task is None else _state_of(task)
        except Exception:
            # A triggerer that the database lost sight of gives its triggers away and is told so in the same way.
            self.log.exception("Airflow does not say why this trigger ends; nothing is cancelled")
            return
        if state == "deferred":
            self.log.info("the task is still deferred: another triggerer watches it; nothing is cancelled")
            return
        try:
            self.submitted.open().cancel(0.0, by=f"a user of Airflow ({self.submitted.holder})")
        except ElasticTPUError as error:
            self.log.info("nothing was cancelled: %s", error)


class StageOperator(BaseOperator):
    """Submits a stage, defers while it goes on, and collects its proof.

    `execution_timeout` counts from the start of the try; when it is spent the stage is cancelled and the task fails.
    Without it a stage is bound by the limits of the spec alone.
    """

    template_fields: Sequence[str] = ("run", "holder")
    step: Step

    def __init__(self, *, run: str, holder: str = HOLDER, **kwargs: Any) -> None:
        """Args:
        run: URI of the run directory, or of a spec.
        holder: who drives the run; the same for all tasks of a DAG run.
        kwargs: Airflow's own.
        """
        super().__init__(**kwargs)
        self.run = run
        self.holder = holder
        self._acting: tuple[Stage, Any, str] | None = None  # stage, task instance, name of this try
        self._stopped = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Create or adopt. What is done already is collected at once."""
        task = context["ti"]
        # Each try of each task is an instance of its own: tries of different tasks may have the same number.
        instance = f"{task.task_id} try {task.try_number}"
        with airflow_errors():
            stage = open_stage(self.step, self.run, self.holder, instance, tell=self.log.info)
            self._acting = stage, task, instance
            stage.submit()
            if self._stopped:
                raise Infrastructure("this worker was told to end; the next try goes on with the run")
            if stage.poll().done:
                return small(stage.collect())
        uri = stage.uri or self.run  # not the spec's own: it may be edited while the task is deferred
        raise self._deferred(
            Submitted(self.step.name, uri, self.holder, instance, stage.term, self._deadline(task.start_date))
        )

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Collect what the trigger saw done; a job that Airflow's user has limited in time is ended."""
        del context
        submitted, verdict = Submitted(**event["submitted"]), Verdict(**event["verdict"])
        with airflow_errors():
            if verdict.done and verdict.outcome != "complete":
                if verdict.code == ExitCode.LIMIT_SPENT:
                    with suppress(ElasticTPUError):
                        submitted.open().give_up()
                raise error_of(verdict)  # not what a look says now: the job itself may be gone
            stage = submitted.open()
            if stage.poll().done:
                return small(stage.collect())
            if not verdict.done:
                stage.cancel(0.0, by=f"execution_timeout of {submitted.instance} ({self.holder})")
                raise AirflowFailException(
                    f"execution_timeout is spent; {self.step.name} was asked to save and end. Clear the task to go on "
                    "from the newest proven checkpoint, with a longer execution_timeout"
                )
        raise self._deferred(submitted)

    def on_kill(self) -> None:
        """Airflow ends this process: a user's act cancels, a worker that is drained leaves the job to the next try."""
        # A thread, since the signal may have hit this one while it held a lock that the work here needs.
        thread = threading.Thread(target=self._cancel, daemon=True)
        thread.start()
        thread.join(_LAST_SECONDS)

    def _cancel(self) -> None:
        if self._acting is None or self._acting[0].term is None:
            return  # nothing was begun
        stage, task, instance = self._acting
        try:
            state = _state_of(task)
        except Exception:
            self.log.exception("Airflow does not say why this task is to end")
            state = "unknown"
        if state == "running":
            self.log.info("this worker goes away, the task is still wanted: nothing is cancelled")
            return
        user = state != "unknown"
        self._stopped = not user
        submitted = Submitted(self.step.name, stage.uri or self.run, self.holder, instance, stage.term, None)
        by = f"a user of Airflow ({self.holder})" if user else f"a signal to {self.holder}"
        try:
            submitted.open().cancel(0.0 if user else _SIGNAL_GRACE, by=by)
        except ElasticTPUError as error:
            self.log.info("nothing was cancelled: %s", error)

    def _deferred(self, submitted: Submitted) -> TaskDeferred:
        self._acting = None
        return TaskDeferred(trigger=StageTrigger(**asdict(submitted)), method_name="resume")

    def _deadline(self, started: Any) -> float | None:
        if self.execution_timeout is None:
            return None
        began: float = started.timestamp() if started else time.time()
        return began + self.execution_timeout.total_seconds()


class _Task(Protocol):
    """What names a task instance."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: Any


def _state_of(task: _Task) -> str | None:
    """The state that Airflow has of a task now: None when it was cleared. Raises whatever Airflow's client does."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    index = -1 if task.map_index is None else task.map_index
    states = RuntimeTaskInstance.get_task_states(
        dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=index
    )
    state = next(iter(states.get(task.run_id, {}).values()), None)
    return None if state is None else str(getattr(state, "value", state))


def _event(submitted: Submitted, verdict: Verdict) -> dict[str, Any]:
    """What the trigger fires; its evidence stays behind, since the event goes through Airflow's database."""
    record = {**verdict.record(), "reason": verdict.reason[:_TEXT], "evidence": {}}
    return {"submitted": asdict(submitted), "verdict": record}


def small(result: StageResult) -> dict[str, Any]:
    """A result for XCom, below 2 KB as JSON: values that do not fit are named and stay in the run directory."""
    record: dict[str, Any] = {"stage": result.stage, "summary": result.summary[:_TEXT]}
    left: list[str] = []
    for key, value in result.values.items():
        plain = json.loads(json.dumps(value))  # tuples become lists; Airflow wraps them otherwise
        if len(json.dumps({**record, key: plain})) > _XCOM_BYTES - 300:
            left.append(key)
        else:
            record[key] = plain
    return {**record, "left_in_run": ", ".join(left)[:200]} if left else record


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Our errors as Airflow's: only what a relaunch resumes is retried (contracts.md 8)."""
    try:
        yield
    except ElasticTPUError as error:
        kind = AirflowException if error.code in _RETRIED else AirflowFailException
        raise kind(f"{error} (code {int(error.code)}, {error.code.name.lower().replace('_', ' ')})") from error
