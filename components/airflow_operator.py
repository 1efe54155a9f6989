"""The Airflow adapter: one deferrable operator and one trigger for any stage. All decisions are the stage's.

    train = TrainElasticOperator(task_id="train", run="gs://acme-train/runs/qwen3-8b")

The operator submits the stage in a worker and defers. The trigger (airflow_trigger.py) polls it in the triggerer, then
the operator collects the proof in a worker again. Only a user's act cancels the job: a worker that is drained leaves it
to the next try, a triggerer that is restarted to the next triggerer.
"""

from __future__ import annotations

import inspect
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from ..runs.errors import ElasticTPUError, Infrastructure, Unreachable
from ..runs.extras import needed
from ..runs.judge.verdict import Verdict
from ..stages.open import open_stage
from ..stages.progress import ProgressLog
from ..stages.results import StageResult, error_of
from ..stages.stage import Stage, Step
from .airflow_trigger import TELL_EVERY, TEXT, StageTrigger, Submitted, state_of

with needed("airflow", "an operator"):
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

POKE_BEFORE_DEFER = 20.0
"""Default of `poke_before_defer`, in seconds."""

HOLDER = "{{ dag.dag_id }}/{{ run_id }}"
"""Template of the holder: the DAG run, so that all its tasks have the same claim."""

_XCOM_BYTES = 2000
_POKE = 3.0  # seconds, at most, between two looks in the worker
_LAST_SECONDS = 4.0  # Airflow sends SIGKILL 5 s after SIGTERM
_SIGNAL_GRACE = 300.0  # seconds in which the next try can undo the stop of a try that a signal ended


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
        log = ProgressLog(self.log.info, TELL_EVERY)
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
            state = state_of(task)
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


def small(result: StageResult) -> dict[str, Any]:
    """A result for XCom, below 2 KB as JSON. Values that do not fit are only named (`left_in_run`)."""
    record: dict[str, Any] = {"stage": result.stage, "summary": result.summary[:TEXT]}
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
