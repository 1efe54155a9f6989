"""The Airflow adapter: one deferrable operator and one trigger for any stage. All decisions are the stage's.

    train = TrainElasticOperator(task_id="train", run="gs://acme-train/runs/qwen3-8b")

The operator submits the stage in a worker and defers. The trigger polls it in the triggerer, for days if need be; it
only renews the claim, so two triggerers may run it at the same time. Then the operator collects the proof in a worker
again. `Submitted` is all that a triggerer gets to know. The term of the claim is in it, so an older try can neither
renew nor cancel what a newer try drives. Only a user's act cancels the job: a worker that is drained leaves it to the
next try, a triggerer that is restarted to the next triggerer.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from ..runs.errors import ElasticTPUError, Infrastructure, Unreachable
from ..runs.extras import needed
from ..runs.judge.verdict import Verdict
from ..stages.open import open_stage
from ..stages.progress import ProgressLog, progress_text
from ..stages.results import StageResult, error_of
from ..stages.retry import waiting_text
from ..stages.stage import Stage, Step
from ..stages.steps import STEPS

with needed("airflow", "an operator"):
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
    from airflow.triggers.base import BaseTrigger, TriggerEvent

POKE_BEFORE_DEFER = 20.0
"""Default of `poke_before_defer`, in seconds."""

HOLDER = "{{ dag.dag_id }}/{{ run_id }}"
"""Template of the holder: the DAG run, so that all its tasks have the same claim."""

_XCOM_BYTES = 2000
_TEXT = 1000  # characters of a reason that go into Airflow's database; the log has all of it
_NOT_OPEN = 15.0  # seconds between two tries to open a run
_POKE = 3.0  # seconds, at most, between two looks in the worker
_TELL_EVERY = 300.0  # seconds between two log lines of a stage that just goes on: the log is kept, for weeks
_LAST_SECONDS = 4.0  # Airflow sends SIGKILL 5 s after SIGTERM
_SIGNAL_GRACE = 300.0  # seconds in which the next try can undo the stop of a try that a signal ended


_THREADS = {"looks": 10, "cancels": 4}  # looks: as many as the storage client keeps connections
T = TypeVar("T")


@functools.cache
def _threads(purpose: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS[purpose], thread_name_prefix=f"elastic-tpu {purpose}")


async def _in_thread(purpose: str, call: Callable[[], T]) -> T:
    """Await a call of a stage, which is synchronous, in a thread of our own.

    Asyncio's default threads are few and shared by all triggers: a bucket that hangs would stop foreign DAGs.
    """
    run = contextvars.copy_context().run  # Airflow finds the trigger's log by it
    return await asyncio.get_running_loop().run_in_executor(_threads(purpose), run, call)


@dataclass(frozen=True)
class Submitted:
    """A submitted stage, for the process that goes on with it. All fields are JSON.

    Attributes:
      step: the step's name.
      run: URI of the run directory.
      holder: who drives the run.
      instance: the task and its try.
      term: the claim's term that the try got.
      deadline: when `execution_timeout` is spent, in seconds since the epoch, or None.
      allow_local: the DAG's author allows what `open_stage` says of it.
      spec_hash: of the run that was submitted: each process that goes on with it opens the same spec, or none.
    """

    step: str
    run: str
    holder: str
    instance: str
    term: int | None
    deadline: float | None
    allow_local: bool = False
    spec_hash: str = ""

    def open(self) -> Stage:
        """The stage, in the term in which it was submitted."""
        return open_stage(
            STEPS[self.step],
            self.run,
            self.holder,
            self.instance,
            term=self.term,
            allow_local=self.allow_local,
            spec_hash=self.spec_hash,
        )


class StageTrigger(BaseTrigger):
    """Polls a submitted stage until it is done, then fires one event with the verdict."""

    def __init__(
        self,
        *,
        step: str,
        run: str,
        holder: str,
        instance: str,
        term: int | None,
        deadline: float | None,
        allow_local: bool = False,
        spec_hash: str = "",
    ) -> None:
        """Args: see `Submitted`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.submitted = Submitted(step, run, holder, instance, term, deadline, allow_local, spec_hash)
        self._stage: Stage | None = None
        self._progress = ProgressLog(self.log.info, _TELL_EVERY)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, for Airflow's database."""
        return f"{__name__}.{type(self).__name__}", asdict(self.submitted)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the stage is done or the deadline has passed."""
        while True:
            verdict, wait = await _in_thread("looks", self._look)
            left = float("inf") if self.submitted.deadline is None else self.submitted.deadline - time.time()
            if verdict.done or left <= 0:
                yield TriggerEvent(_event(self.submitted, verdict))  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(min(wait, left))

    def _look(self) -> tuple[Verdict, float]:
        """The verdict, and the seconds until the next look."""
        line = ""
        try:
            if self._stage is None:
                self._stage = self.submitted.open()
            verdict = self._stage.poll()
            line = self._stage.progress()
        except Unreachable as error:
            verdict = Verdict("running", reason=waiting_text(error))
        except ElasticTPUError as error:
            verdict = Verdict.ended(error.code, str(error))
        self._progress.look(verdict, line or progress_text(self.submitted.step, verdict, None))
        return verdict, self._stage.interval if self._stage else _NOT_OPEN

    async def on_kill(self) -> None:
        """Cancel the stage if a user marked or cleared the task, unless a newer try drives the run."""
        await _in_thread("cancels", self._cancel)  # not behind looks: Airflow gives it 30 s

    def _cancel(self) -> None:
        task = self.task_instance
        try:
            state = None if task is None else _state_of(task)
        except Exception:
            # Airflow also calls this in a triggerer whose heartbeats were lost: another one takes over its triggers.
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
    """Submits a stage, defers while it runs, and collects its result.

    `execution_timeout` counts from the start of the try. When it is spent, the stage is cancelled and the task fails.
    Without it only the limits of the spec end a stage. What ends within seconds is awaited in the worker: a busy
    scheduler fails a task whose trigger fires before it knows that the worker deferred (apache/airflow#72716).
    """

    template_fields: Sequence[str] = ("run", "holder", "spec_hash")
    step: Step

    def __init__(
        self,
        *,
        run: str,
        holder: str = HOLDER,
        spec_hash: str = "",
        allow_local: bool = False,
        poke_before_defer: float = POKE_BEFORE_DEFER,
        **kwargs: Any,
    ) -> None:
        """Args:
        run: URI of the run directory, or of a spec.
        holder: who drives the run; the same for all tasks of a DAG run.
        spec_hash: that the run's spec must have; without it any, and from then on that one.
        allow_local: the spec may have programs run on Airflow's machines: platform `local`, `local.trainer`, and the
            kubeconfig and the context that it names. For the DAG's author alone, so it is no template.
        poke_before_defer: seconds for which the worker looks before it defers.
        kwargs: Airflow's own.
        """
        super().__init__(**{"doc_md": inspect.getdoc(type(self)), **kwargs})
        self.run = run
        self.holder = holder
        self.spec_hash = spec_hash
        self.allow_local = allow_local
        self._acting: tuple[Stage, Any, str] | None = None  # stage, task instance, name of this try
        self.poke_before_defer = poke_before_defer
        self._stopped = False
        self._leaves: threading.Event | None = None  # set once this worker is told to end; made in the worker

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the stage and defer; what is complete already, or within seconds, is collected at once."""
        task = context["ti"]
        self._leaves = threading.Event()
        deadline = self._deadline(task.start_date)
        # With the task's id: tries of different tasks have the same numbers.
        instance = f"{task.task_id} try {task.try_number}"
        with airflow_errors():
            stage = open_stage(
                self.step,
                self.run,
                self.holder,
                instance,
                allow_local=self.allow_local,
                spec_hash=self.spec_hash,
                when=context.get("logical_date"),  # a DAG run that an asset or a person triggered may have none
                tell=self.log.info,
            )
            self._acting = stage, task, instance
            stage.submit()
            done = self._await(stage, deadline, self._leaves)
            if self._stopped:
                raise Infrastructure("this worker was told to end; the next try goes on with the run")
            if done:
                return small(stage.collect())
        raise self._deferred(self._submitted(stage, instance, deadline))

    def _await(self, stage: Stage, deadline: float | None, leaves: threading.Event) -> bool:
        """Whether the stage is done now, or within `poke_before_defer`."""
        limit = self.poke_before_defer if deadline is None else min(self.poke_before_defer, deadline - time.time())
        until = time.monotonic() + limit
        log = ProgressLog(self.log.info, _TELL_EVERY)
        while not leaves.is_set():
            verdict = stage.poll()
            log.look(verdict, stage.progress())
            if verdict.done:
                return True
            left = until - time.monotonic()
            if left <= 0:
                break
            leaves.wait(min(stage.interval, _POKE, left))
        return False

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Collect the result, raise the verdict's error, or cancel the stage if `execution_timeout` is spent."""
        del context
        submitted, verdict = Submitted(**event["submitted"]), Verdict(**event["verdict"])
        with airflow_errors():
            if verdict.done and verdict.outcome != "complete":
                if verdict.limit:
                    with suppress(ElasticTPUError):
                        submitted.open().give_up()
                raise error_of(verdict)  # the trigger's verdict: the job may be gone by now
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
        """Cancel the stage if a user ended the task; a worker that is drained leaves the job to the next try."""
        # In a thread: the signal may have interrupted this one while it holds a lock that cancelling needs.
        thread = threading.Thread(target=self._cancel, daemon=True)
        thread.start()
        thread.join(_LAST_SECONDS)

    def _cancel(self) -> None:
        if self._acting is None or self._acting[0].term is None:
            return  # nothing was submitted
        stage, task, instance = self._acting
        try:
            state = _state_of(task)
        except Exception:
            self.log.exception("Airflow does not say why this task is to end")
            state = "unknown"
        if state == "running":
            self.log.info("this worker goes away, the task is still wanted: nothing is cancelled")
            self._leave()
            return
        user = state != "unknown"
        self._stopped = not user
        self._leave()
        submitted = self._submitted(stage, instance, None)
        by = f"a user of Airflow ({self.holder})" if user else f"a signal to {self.holder}"
        try:
            submitted.open().cancel(0.0 if user else _SIGNAL_GRACE, by=by)
        except ElasticTPUError as error:
            self.log.info("nothing was cancelled: %s", error)

    def _leave(self) -> None:
        if self._leaves is not None:
            self._leaves.set()

    def _submitted(self, stage: Stage, instance: str, deadline: float | None) -> Submitted:
        return Submitted(
            self.step.name,
            stage.uri or self.run,  # not the spec: it may be edited while the task is deferred
            self.holder,
            instance,
            stage.term,
            deadline,
            self.allow_local,
            stage.spec_hash,
        )

    def _deferred(self, submitted: Submitted) -> TaskDeferred:
        self._acting = None
        return TaskDeferred(trigger=StageTrigger(**asdict(submitted)), method_name="resume")

    def _deadline(self, started: Any) -> float | None:
        if self.execution_timeout is None:
            return None
        began: float = started.timestamp() if started else time.time()
        return began + self.execution_timeout.total_seconds()


class _Task(Protocol):
    """The parts of a task instance's key."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: Any


def _state_of(task: _Task) -> str | None:
    """The task's state in Airflow's database now; None if it was cleared. Raises what Airflow's client raises."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    index = -1 if task.map_index is None else task.map_index
    states = RuntimeTaskInstance.get_task_states(
        dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=index
    )
    state = next(iter(states.get(task.run_id, {}).values()), None)
    return None if state is None else str(getattr(state, "value", state))


def _event(submitted: Submitted, verdict: Verdict) -> dict[str, Any]:
    """What the trigger fires, without the evidence: the event is kept in Airflow's database."""
    record = {**verdict.record(), "reason": verdict.reason[:_TEXT], "evidence": {}}
    return {"submitted": asdict(submitted), "verdict": record}


def small(result: StageResult) -> dict[str, Any]:
    """A result for XCom, below 2 KB as JSON. Values that do not fit are only named (`left_in_run`)."""
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
def airflow_errors(*, acts: bool = True) -> Iterator[None]:
    """Raise our errors as Airflow's, so that only what a relaunch resumes is retried (docs/contracts.md 8).

    Args:
      acts: the task does something that a new try would do again; otherwise only a look without an answer is repeated.
    """
    try:
        yield
    except ElasticTPUError as error:
        again = error.code.retried and (acts or isinstance(error, Unreachable))
        kind = AirflowException if again else AirflowFailException
        raise kind(f"{error} (code {int(error.code)}, {error.code.words})") from error
