"""The Airflow trigger of any stage: it polls in the triggerer what a worker submitted, for days if need be.

It only renews the claim, so two triggerers may run it at the same time. `Submitted` is all that a triggerer gets to
know. The term of the claim is in it, so an older try can neither renew nor cancel what a newer try drives.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from ..runs.errors import ElasticTPUError, Unreachable
from ..runs.extras import needed
from ..runs.judge.verdict import Verdict
from ..stages.open import open_stage
from ..stages.progress import ProgressLog, progress_text
from ..stages.retry import waiting_text
from ..stages.stage import Stage
from ..stages.steps import STEPS

with needed("airflow", "an operator"):
    from airflow.triggers.base import BaseTrigger, TriggerEvent

TELL_EVERY = 300.0
"""Seconds between two log lines of a stage that just goes on: the log is kept, for weeks."""

TEXT = 1000
"""Characters of a reason that go into Airflow's database; the log has all of it."""

_NOT_OPEN = 15.0  # seconds between two tries to open a run
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
        self._progress = ProgressLog(self.log.info, TELL_EVERY)

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
            state = None if task is None else state_of(task)
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


class _Task(Protocol):
    """The parts of a task instance's key."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: Any


def state_of(task: _Task) -> str | None:
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
    record = {**verdict.record(), "reason": verdict.reason[:TEXT], "evidence": {}}
    return {"submitted": asdict(submitted), "verdict": record}
