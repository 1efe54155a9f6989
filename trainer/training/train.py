"""`train`: from a process start to an exit code that says who must act (docs/contracts.md 8)."""

from __future__ import annotations

import logging
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from ...runs.errors import ElasticTPUError, ExitCode, Infrastructure, LimitSpent
from ...runs.judge import goodput
from ...runs.record import paths, proof
from ...runs.record.events import EventReader
from ...runs.record.result import TrainingResult, proven_result
from ...runs.record.run import Run
from ...runs.spec.plan import maxtext_overrides
from ..session import TrainerSession, patiently
from .failure_policy import starts_without_progress
from .hardware import Hardware

_log = logging.getLogger("elastic_tpu.trainer")


def train(session: TrainerSession) -> int:
    """Train the session's run to its end; always returns an exit code, with the status written."""
    try:
        return _train(session)
    except ElasticTPUError as error:
        _log.error("%s", error)
        return session.end(error.code, str(error))
    except OSError as error:  # a disk or a mount failed: a new process may succeed
        traceback.print_exception(error)
        return session.end(ExitCode.INFRASTRUCTURE, f"{type(error).__name__}: {error}"[:500])
    except BaseException as error:
        traceback.print_exception(error)
        return session.end(ExitCode.BUG, f"{type(error).__name__}: {error}"[:500])


def _train(session: TrainerSession) -> int:
    run = session.run
    result, _ = patiently(run, lambda: proven_result(run))
    if result is not None:
        return session.end(
            0, f"already complete: step {result.final_step} is proven; nothing was done", step=result.final_step
        )
    before = session.before
    if before is not None and before.step >= 0:  # for the next process, should this one die before a step
        session.heartbeat.update(step=before.step, step_seconds=before.step_seconds)
    if session.proven_step is not None and session.proven_step >= run.spec.train.steps - 1:
        return _only_the_result_is_missing(session, session.proven_step)
    allowed = run.spec.recovery_limits.attempts_without_progress
    if starts_without_progress(session.attempt.proven_at_start, session.proven_step) >= allowed:
        raise LimitSpent(
            f"recovery.attempts_without_progress ({allowed}) is spent: so many starts of the trainer brought no new "
            f"proven checkpoint; the logs are in {run.path(paths.attempts('train'))}"
        )
    began = time.monotonic()
    session.heartbeat.update(doing="importing JAX and looking for its devices")
    from . import hardware

    slices = hardware.prepare(run, session.event)
    session.heartbeat.update(doing="importing MaxText")
    from . import maxtext_patches
    from .elastic import ElasticTraining

    version = maxtext_patches.check()
    _log.info("MaxText %s is ready after %.1f s", version, time.monotonic() - began)
    training = ElasticTraining(session, slices, maxtext_overrides(run.spec) | _cpu_keys(run, slices))
    try:
        training.run()
        return finish(session, training)
    finally:
        training.close()


def _only_the_result_is_missing(session: TrainerSession, step: int) -> int:
    """The last process died between the proof of the last step and result.json."""
    session.heartbeat.update(phase="saving", step=step)
    session.heartbeat.wait_until_held()
    return finish(session, _Trained(step))


@dataclass
class _Trained:
    step: int
    early_stop: bool = False
    trained_seconds: float = 0.0

    def settle(self) -> int:
        return self.step


def _cpu_keys(run: Run, slices: Hardware) -> dict[str, Any]:
    """MaxText keys that simulated slices need, being CPU devices; without those that the spec sets itself."""
    from .local_pathways import cache_folder

    if not slices.simulated:
        return {}
    keys = {"hardware": "cpu", "attention": "dot_product", "jax_cache_dir": str(cache_folder())}
    return {key: value for key, value in keys.items() if key not in run.spec.train.maxtext}


class Training(Protocol):
    """A training that ended in order, as `finish` needs it."""

    early_stop: bool

    def settle(self) -> int | None:
        """The newest proven step, with everything newer proven or set aside."""

    @property
    def trained_seconds(self) -> float:
        """Wall seconds in steps since the last recovery."""


def finish(session: TrainerSession, training: Training) -> int:
    """Prove what training saved, record its end, and write the result if it is complete; returns the exit code.

    Raises:
      Infrastructure: the last step is not proven.
      ElasticTPUError: MaxText ended its loop early without a request to stop.
    """
    run, beat = session.run, session.heartbeat
    step, stop = beat.status.step, beat.stop
    beat.update(phase="saving" if stop is None else "stopping")
    proven = training.settle()
    last = run.spec.train.steps - 1
    whole = step >= last or training.early_stop
    why = "complete" if whole else stop.reason if stop else "MaxText ended early"
    session.event("train.stopped", step=step, why=why, trained_seconds=round(training.trained_seconds, 3))
    beat.update(trained_seconds=0.0)  # recorded now; a later process must not record it again
    if proven != step:
        raise Infrastructure(f"training ended at step {step}, but the newest proven checkpoint is of {proven}")
    if not whole:
        if stop is None:
            raise ElasticTPUError(f"MaxText ended its loop at step {step} of {last} without a reason")
        return session.end(stop.code, f"{stop.reason}; step {step} is saved and proven")
    write_result(session, step, training.early_stop)
    return session.end(0, f"complete at step {step}" + (" (the data ended)" if training.early_stop else ""))


def write_result(session: TrainerSession, step: int, early_stop: bool) -> TrainingResult:
    """Write result.json, once the final checkpoint is proven.

    Raises:
      Infrastructure: its proof is gone.
    """
    run = session.run
    recorded = proof.read_proof(run.store, step)
    if recorded is None:
        raise Infrastructure(f"the proof of step {step} is gone")
    spent = goodput.measure(EventReader(run.store).all(), datetime.now(UTC))
    result = TrainingResult(
        final_step=step,
        checkpoint=run.path(paths.checkpoint(step)),
        proof_digest=recorded.digest,
        spec_hash=run.spec_hash,
        attempts=session.attempt.number,
        recoveries=len(spent.recoveries),
        steps_lost=spent.steps_lost,
        goodput=None if spent.ratio is None else round(spent.ratio, 4),
        seconds_by_kind=spent.seconds_by_kind,
        early_stop=early_stop,
    )
    session.heartbeat.confirm()
    run.store.put(paths.RESULT, result.dump())
    return result
