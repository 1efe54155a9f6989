"""Elastic training: MaxText's own loop inside pathwaysutils' `Manager.elastic_retry`, with our policy around it.

A slice is lost, the step raises, the manager waits for slices, MaxText restores the newest proven checkpoint and goes
on, all in this process. What an error means is decided in failure_policy.py; what may be restored, in checkpoints.py.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax
from pathwaysutils.elastic.manager import ElasticRuntimeError, Manager, ScaleUpSignalError

from ...runs import masking
from ...runs.errors import BadInput, ElasticTPUError, Infrastructure, LimitSpent, Problem
from ...runs.record import slice_counts
from ...runs.record.events import EventReader
from ...runs.record.status import SliceCount
from ...runs.spec.plan import data_kind, global_batches
from ..session import TrainerSession
from . import maxtext_patches
from .bad_input import find_bad_input, may_come_from_input
from .error_chain import SaveFailed, decisive_error, find, own_error, storage_refused
from .failure_policy import Budget, Cause, Failure, classify
from .finite import FiniteLosses, LossNotFinite
from .hardware import Hardware
from .likeness import Likeness
from .loss_writer import LossWriter
from .prover import Prover
from .recovery import Recovering, StepTimes, after_a_dead_process, tell_finished, tell_started

_log = logging.getLogger("elastic_tpu.trainer")


class ElasticTraining:
    """One process of training; the hooks that MaxText calls are its methods."""

    def __init__(self, session: TrainerSession, hardware: Hardware, overrides: Mapping[str, Any]) -> None:
        self._session, self._beat, self._slices = session, session.heartbeat, hardware.slices
        self._spec, self._hardware = session.run.spec, hardware
        self._arguments = maxtext_patches.arguments(overrides)
        self._finite = FiniteLosses(self._spec.recovery_limits.on_nan)
        self._prover = Prover(session, self._spec.beat / 2, self._finite)
        self._losses = LossWriter(session.run, session.attempt.number)
        self._budget = Budget(self._spec.recovery_limits.attempts_without_progress)
        self._manager = Manager()
        self._maxtext = maxtext_patches.install(self, self._manager)
        self._beat.slices_away = self._slices.away
        self._configured: tuple[int, Any, Any] | None = None
        self._checkpointer: Any = None
        self._before: Failure | None = None
        self._times = StepTimes()
        self._recovering: Recovering | None = after_a_dead_process(session.before)
        self._proven: int | None = None
        self._batches, self._training_slices = global_batches(self._spec), self._spec.slices.count
        self._likeness = Likeness(EventReader(session.run.store).all() if session.before else ())
        self._bad_loss: LossNotFinite | None = None  # training goes back because of it
        self._first_of_attempt = True
        self._completed_at, self._suspended_before = time.monotonic(), 0.0
        self.early_stop = False
        # Being done, last one whose save has begun, last one whose save is known to have ended well.
        self._step, self._saved_step, self._saved_well = -1, -1, -1
        if self._recovering is not None:
            tell_started(session, self._recovering, session.before.trained_seconds if session.before else 0.0)

    def run(self) -> None:
        """Train until the last step, the end of the data, or a request to stop.

        Raises:
          BadInput: the data holds no batch.
          Infrastructure: a new process may succeed.
          LimitSpent: too many attempts brought no new proven step.
          EndedOnRequest: the run was lost to another trainer.
          ElasticTPUError: a bug, or an error of the user's code.
        """
        self._beat.update(phase="waiting", slices=SliceCount(0, self._spec.slices.count))
        self._beat.wait_until_held()
        retry = self._manager.elastic_retry(
            minimum_slice_count=self._spec.slices.minimum,
            poll_interval=self._hardware.poll_interval,
            pre_callback=self._slices_ready,
            on_elastic_event_callback=self._slices_lost,
            retry_policy=lambda attempt, error: True,  # `_judge` raises DATA_LOSS only to recover in this process
        )
        try:
            retry(self._attempt)()
        except ElasticRuntimeError as error:
            raise ElasticTPUError(f"pathwaysutils ended its retries: {error}") from error
        finally:
            self._slices.close()
            self._losses.close()

    def settle(self) -> int | None:
        """The newest proven step, with everything newer proven or set aside."""
        return self._prover.settle()

    def close(self) -> None:
        """Stop the threads."""
        self._prover.close()

    @property
    def trained_seconds(self) -> float:
        """Wall seconds in steps since the last recovery."""
        return self._times.total

    # -- around one attempt -----------------------------------------------------------------------------------

    def _slices_ready(self) -> None:
        active = self._manager.active_slice_indices
        if self._slices.hold(active) != active:
            raise jax.errors.JaxRuntimeError("DATA_LOSS: a slice was lost while the slices were taken")
        now = time.monotonic()
        if self._recovering is not None:
            self._recovering.ready = now
        slices = SliceCount(len(active), self._spec.slices.count)
        self._beat.update(phase="restoring", slices=slices, reason="", doing="proving the newest checkpoints")
        self._proven = self._prover.settle()
        self._finite.begin(self._proven)
        self._first_of_attempt = True
        self._times = StepTimes()
        self.early_stop = False
        self._step = self._saved_step = self._saved_well = -1

    def _attempt(self) -> None:
        devices = self._manager.active_slice_count
        if self._proven is not None and self._proven >= self._spec.train.steps - 1:
            self._beat.update(step=self._proven)  # a slice was lost after the last save; nothing is left to train
            return
        self._beat.update(doing="setting up MaxText's model and data")
        try:
            if self._configured is None or self._configured[0] != devices:
                config, recorder = self._maxtext.initialize(list(self._arguments))
                self._configured = (devices, config, recorder)
            self._maxtext.run(self._configured[1], self._configured[2])
        except ScaleUpSignalError:
            self._begin_recovery([], f"slices {sorted(self._slices.alive())} are up: continuing with more slices")
            raise
        except (Exception, SystemExit) as error:
            self._judge(error)

    def _judge(self, error: BaseException) -> None:
        """Raise what the error means: DATA_LOSS to go on in this process, anything else to leave the loop."""
        if (own := own_error(error)) is not None:
            raise own
        if isinstance(bad := find(error, LossNotFinite), LossNotFinite):
            self._judge_loss(bad)
        step = self._beat.status.step + 1
        save = find(error, SaveFailed)
        if save is not None:
            error = save.__cause__ or save
        kind, decisive = decisive_error(error)
        recovering = self._recovering is not None
        slices_lost = self._slices.lost(self._hardware.loss_timeout)
        failure = Failure(kind, str(decisive), step, not self._first_of_attempt, slices_lost, recovering)
        if isinstance(save, SaveFailed) and not slices_lost and (refused := storage_refused(error)) is not None:
            proven = self._beat.status.proven_step
            newest = (
                "no checkpoint is proven" if proven is None else f"the newest proven checkpoint is of step {proven}"
            )
            why = masking.mask(f"{type(refused).__name__}: {refused}")[:300]
            raise Infrastructure(f"{save}: {why}; {newest}") from error
        cause = classify(failure, self._before)
        self._before = failure
        _log.warning("step %d failed (%s): %s", step, cause.value, failure.message.partition("\n")[0])
        if save is None and cause in (Cause.BUG, Cause.INFRASTRUCTURE) and may_come_from_input(kind, decisive):
            self._raise_if_input_is_bad(error)
        if cause is Cause.BUG:
            traceback.print_exception(error)
            where = f"at step {step}, with all slices there"
            raise ElasticTPUError(
                f"{type(decisive).__name__} {where}: {masking.mask(failure.message.strip())[:500]}"
            ) from error
        if cause is Cause.INFRASTRUCTURE or not self._spec.recovery:
            raise Infrastructure(
                f"{type(decisive).__name__} at step {step}: {masking.mask(failure.message.strip())[:500]}"
            ) from error
        if not self._budget.note(cause, self._beat.status.proven_step):
            limit = f"recovery.attempts_without_progress ({self._budget.allowed}) is spent"
            raise LimitSpent(f"{limit}; the last error was: {masking.mask(failure.message.strip())[:300]}") from error
        lost = sorted(failure.slices_lost)
        named = f"slice {', '.join(map(str, lost))} lost"
        self._begin_recovery(lost, named if lost else f"{cause.value}: {masking.mask(failure.message)[:200]}")
        # elastic_retry looks at the text only.
        raise jax.errors.JaxRuntimeError(f"DATA_LOSS: {failure.message}") from error

    def _judge_loss(self, bad: LossNotFinite) -> NoReturn:
        """Stop at a loss that is not finite, or go back to the newest proven step before it."""
        self._end_save()
        proven = self._prover.settle()
        if proven is not None and proven == self._proven == bad.step - 1 and self._finite.on_nan == "restore":
            # Restored, it gave this loss with its first step: with the same data it would do so again.
            self._prover.reject(proven, f"the first loss after it was restored is {bad.loss}")
            proven = self._prover.settle()
        newest = "no checkpoint before it is proven" if proven is None else f"the newest checkpoint is of step {proven}"
        if self._finite.on_nan == "stop":
            raise ElasticTPUError(f"{bad}: training is stopped (recovery.on_nan: stop); {newest}") from bad
        if not self._budget.note(Cause.RETRY, proven):
            limit = f"recovery.attempts_without_progress ({self._budget.allowed}) is spent"
            raise LimitSpent(f"{limit}: {bad}, again (recovery.on_nan: restore); {newest}") from bad
        self._before, self._bad_loss = None, bad
        self._begin_recovery([], str(bad))
        raise jax.errors.JaxRuntimeError(f"DATA_LOSS: {bad}") from bad

    def _raise_if_input_is_bad(self, error: BaseException) -> None:
        try:
            bad = find_bad_input(self._spec)
        except Exception as failed:  # the files cannot be reached: the first error says more
            _log.warning("the input could not be looked into after the failure: %s", failed)
            return
        if bad is not None:
            raise bad from error

    def _begin_recovery(self, lost: list[int], why: str) -> None:
        now = time.monotonic()
        if self._recovering is not None:
            self._recovering.fail_again(why, lost)
            return
        reached = self._beat.status.step
        self._recovering = Recovering(why, lost, reached, now, self._since_completed(now), self._times)
        tell_started(self._session, self._recovering, self._times.total)

    def _slices_lost(self) -> None:
        """Before a recovery: ask for the lost slices back, and wait for the end of a save that is under way."""
        self._slices.ask_back(self._slices.lost())
        self._slices.hold(())  # until they are taken again none is needed, so a save that hangs is a stall
        alive = SliceCount(len(self._slices.alive()), self._spec.slices.count)
        self._beat.update(slices=alive)
        self._end_save()
        self._beat.update(phase="waiting")

    def _end_save(self) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is None:
            return
        self._beat.update(phase="saving")  # so that a save that hangs counts as a stall
        try:
            checkpointer.wait()
            checkpointer.close()
        except Exception as error:  # it failed with its slice; `settle` finds out what is on storage
            _log.warning("the save that was under way failed: %s", error)

    # -- what MaxText calls -----------------------------------------------------------------------------------

    def before_restore(self) -> None:
        """Confirm the fence before anything is read."""
        self._beat.confirm()
        if self._proven is not None:
            self._beat.update(doing=f"restoring step {self._proven}")

    def after_restore(self) -> None:
        """MaxText compiles next."""
        self._beat.update(phase="compiling", doing="reading the first data")

    def iteration(
        self,
        step: int,
        state: dict[str, Any],
        variables: dict[str, Any],
        fixed: dict[str, Any],
        proceed: Callable[[], Any],
    ) -> Any:
        """One step of training."""
        began = time.monotonic()
        self._step = step
        self._checkpointer = variables["checkpoint_manager"]
        if self._first_of_attempt:
            self._begin_training(step, variables, fixed, began)
        self._raise_if_lost(state)
        if self._saved_step > self._saved_well and not self._checkpointer.is_saving_in_progress():
            self.end_save()
        if self._beat.stop is not None:
            fixed["steps"] = step + 1  # MaxText's loop ends after this step, and saves
            self._beat.update(phase="stopping", reason=self._beat.stop.reason)
        try:
            metrics = proceed()
        except self._maxtext.stop_training as stop:
            return self._data_ended(stop, fixed)
        if self._first_of_attempt:
            jax.block_until_ready(metrics)
        self._raise_if_lost(state)
        self._completed(step, began)
        return metrics

    def before_save(self, step: int) -> None:
        """Confirm the fence: a superseded trainer must not save."""
        self._beat.confirm()
        self.end_save()  # as Orbax does, before it saves again
        self._prover.saving(step)

    def end_save(self) -> None:
        """Wait for the save that is under way: Orbax tells a failure in the background only to those who wait.

        Raises:
          SaveFailed: it failed.
        """
        if self._checkpointer is None or self._saved_step <= self._saved_well:
            return
        try:
            self._checkpointer.wait()
        except Exception as error:
            raise SaveFailed(self._saved_step) from error
        self._saved_well = self._saved_step

    def saved(self, step: int) -> None:
        """The save has begun; the prover waits for its end."""
        self._saved_step = step
        self._prover.saved(step)

    def declined(self, step: int) -> None:
        """Orbax did not begin the save."""
        self._prover.declined(step)

    def may_scale_up(self) -> bool:
        """Take more slices only when no step is lost by it: right after a save, and not at the end."""
        return self._saved_step in (self._step, self._step - 1) and 0 <= self._saved_step < self._spec.train.steps - 1

    def metrics(self, step: int, scalars: Mapping[str, Any]) -> None:
        """The loss of a completed step, for the heartbeat and the report; what is saved after it may be proven now.

        Raises:
          LossNotFinite: it is not finite, and the spec does not say to go on.
        """
        if (found := scalars.get("learning/loss")) is None:
            self._beat.update(loss=None)
            return
        loss = float(found)
        self._beat.update(loss=loss)
        self._losses.add(step, loss)
        if self._finite.note(step, loss):
            on_nan, proven = self._finite.on_nan, self._beat.status.proven_step
            self._session.event("train.not_finite", step=step, loss=str(loss), then=on_nan, proven_step=proven)
            if on_nan != "continue":
                raise LossNotFinite(step, loss)

    # -- one step ---------------------------------------------------------------------------------------------

    def _begin_training(self, step: int, variables: dict[str, Any], fixed: dict[str, Any], now: float) -> None:
        expected = 0 if self._proven is None else self._proven + 1
        if step != expected:
            raise Infrastructure(
                f"MaxText starts at step {step}, but the newest proven checkpoint is of {expected - 1}"
            )
        self._tell_slices(step)
        self._likeness.begin(step - 1, self._unlike(step))
        if self._recovering is not None:
            self._recovering.training, self._recovering.restored = now, step - 1
            self._recovering.result = self._likeness.result
        self._session.event("train.restored", step=step - 1) if step else None
        self._beat.update(phase="training", step=step - 1, doing="compiling and running the first step")
        live = sum(len(self._manager.slice_to_devices[i]) for i in self._manager.active_slice_indices)
        maxtext_patches.check_first_batch(variables["data_loader"], fixed["config"], live)
        self._prover.resume()

    def _tell_slices(self, step: int) -> None:
        active = self._manager.active_slice_count
        if active != self._training_slices:
            self._session.event(slice_counts.KIND, step=step, **slice_counts.data(active, self._batches))
        self._training_slices = active

    def _unlike(self, step: int) -> Iterator[str]:
        """Why this attempt, which begins with `step`, trains otherwise than one that nothing interrupts."""
        if self._training_slices != self._spec.slices.count:
            yield slice_counts.batch_words(slice_counts.data(self._training_slices, self._batches))
        if self._bad_loss is not None:
            yield f"it went back because {self._bad_loss}"
            self._bad_loss = None
        if step and data_kind(self._spec.data.train)[0] != "grain":
            yield "its data cannot resume where it stopped"

    def _raise_if_lost(self, state: dict[str, Any]) -> None:
        lost = self._slices.lost() if self._hardware.simulated else frozenset()
        if not lost:
            return
        for array in jax.tree.leaves(state["state"]):  # as if they had been lost with the slice: nothing may use them
            if hasattr(array, "delete"):
                array.delete()
        raise jax.errors.JaxRuntimeError(f"DATA_LOSS: slice {', '.join(map(str, sorted(lost)))} is gone")

    def _data_ended(self, stop: Exception, fixed: dict[str, Any]) -> None:
        """End training if the data ended. MaxText raises StopTraining for that and for a failed read alike."""
        if not isinstance(stop.__context__, StopIteration):
            raise stop.__context__ or stop
        if self._beat.status.step < 0:
            raise BadInput([Problem("data.train", self._spec.data.train, "holds too little text for one batch")])
        _log.warning("the data ended before train.steps: %s", stop)
        self.early_stop = True
        fixed["steps"] = 0  # MaxText's loop ends, and saves the last completed step

    def _completed(self, step: int, began: float) -> None:
        now = time.monotonic()
        seconds = now - began if self._first_of_attempt else self._since_completed(now)
        self._completed_at, self._suspended_before = now, self._beat.suspended_seconds
        self._times.add(step, seconds)
        proven = self._beat.status.proven_step
        if proven is not None and step % 64 == 0:
            self._times.forget_until(proven)
        if self._first_of_attempt:
            self._first_of_attempt = False
            self._after_first_step(step, seconds, now)
            return
        before = self._beat.status.step_seconds
        smooth = seconds if before is None else 0.9 * before + 0.1 * seconds
        eta = round((self._spec.train.steps - step - 1) * smooth, 1)
        self._beat.update(
            step=step, step_seconds=round(smooth, 4), eta=eta, trained_seconds=round(self._times.total, 3)
        )
        if self._before is not None and step >= self._before.step:
            self._before = None  # past the step that failed

    def _since_completed(self, now: float) -> float:
        """Seconds since the last completed step, without those in which slices were away."""
        return max(0.0, now - self._completed_at - (self._beat.suspended_seconds - self._suspended_before))

    def _after_first_step(self, step: int, seconds: float, now: float) -> None:
        self._beat.update(step=step, step_seconds=None, doing="", trained_seconds=round(self._times.total, 3))
        recovering, self._recovering = self._recovering, None
        if recovering is None or recovering.reached < 0:
            self._session.event("train.first_step", step=step, seconds=0.0 if recovering else round(seconds, 3))
        if recovering is not None:
            tell_finished(self._session, recovering, step, now)
