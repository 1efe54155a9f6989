"""Proves checkpoints while training goes on: a thread computes the digests, so that no step waits for them.

Only what this process saved itself is proven here, after storage shows it finished. A later step that it did not save
was saved by a superseded trainer and is set aside (docs/contracts.md 6 and 7).
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from ...runs.errors import ElasticTPUError, NotFound
from ...runs.record import proof
from ...runs.record.run import Run
from ..session import TrainerSession, patiently
from . import checkpoints
from .finite import FiniteLosses

_log = logging.getLogger("elastic_tpu.trainer")


class Prover:
    """Watches `checkpoints/` from its own thread; `settle` is the blocking form for recoveries and the end."""

    def __init__(self, session: TrainerSession, interval: float, losses: FiniteLosses) -> None:
        self._session, self._interval, self._losses = session, interval, losses
        self._run: Run = session.run
        self._lock = threading.Lock()
        self._saving: set[int] = set()
        self._saved: set[int] = set()
        self._foreign: set[int] = set()
        self._closed = threading.Event()
        self._paused = True
        self._thread = threading.Thread(target=self._loop, name="prover", daemon=True)
        self._thread.start()

    def saving(self, step: int) -> None:
        """This process is about to save a step: a checkpoint that appears under that name is its own."""
        self._saving.add(step)

    def declined(self, step: int) -> None:
        """Orbax did not begin that save: no save is due, or there is one already, perhaps another trainer's."""
        self._saving.discard(step)

    def saved(self, step: int) -> None:
        """The save has begun in the background."""
        self._saved.add(step)
        self._saving.discard(step)
        self._session.event("checkpoint.saved", step=step)

    def resume(self) -> None:
        """Look at `checkpoints/` every `interval` seconds again, after `settle`: training goes on."""
        self._paused = False

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._thread.join(10.0)

    def settle(self) -> int | None:
        """Prove or set aside everything newer than the newest proven step; returns that step.

        Call it when no save is under way, or when it is given up: an unfinished checkpoint is set aside.

        Raises:
          Unreachable: the storage was away for longer than `recovery.storage_timeout`.
          Infrastructure: a checkpoint cannot be set aside.
        """
        self._paused = True
        return patiently(self._run, self._settle, self._session.heartbeat.confirm)

    def reject(self, step: int, why: str) -> None:
        """Set a checkpoint aside although its proof holds."""
        with self._lock:
            checkpoints.reject(self._run.store, self._run.uri, step, [why], self._session)

    def _settle(self) -> int | None:
        with self._lock:
            self._prove_older()
            return self._record(
                checkpoints.settle(self._run.store, self._run.uri, self._good(), self._session, self._losses)
            )

    def _own(self) -> set[int]:
        return self._saving | self._saved

    def _good(self) -> set[int]:
        """Steps that this process saved after a loss that is known to be finite."""
        return {step for step in self._own() if self._losses.allows(step)}

    def _prove_older(self) -> None:
        """Prove what this process saved before the newest step: a fallback, should the newest be damaged."""
        store = self._run.store
        finished = checkpoints.finished_steps(store)
        unproven = (finished & self._good()) - set(proof.recorded_steps(store)) - {max(finished, default=-1)}
        for step in sorted(unproven):
            with suppress(NotFound):
                checkpoints.prove(store, step, self._session)

    def _loop(self) -> None:
        while not self._closed.wait(self._interval):
            if self._paused:
                continue
            try:
                with self._lock:
                    self._look()
            except ElasticTPUError as error:
                _log.warning("checkpoints could not be proven now: %s", error)
            except Exception:
                _log.exception("a bug in the prover; it looks again")

    def _look(self) -> None:
        store = self._run.store
        recorded = set(proof.recorded_steps(store))
        for step in recorded - checkpoints.all_steps(store):
            store.delete(f"proofs/{step}.json")  # retention removed the checkpoint
            recorded.discard(step)
        new = checkpoints.finished_steps(store) - recorded
        own = self._own()
        foreign = {step for step in new - own if step > max(recorded, default=-1)}
        for step in sorted(new & self._good()):
            with suppress(NotFound):
                checkpoints.prove(store, step, self._session)
                recorded.add(step)
        # Set aside only if seen in two looks: a save of our own may be finished a moment before `saved` is called.
        for step in sorted(foreign & self._foreign):
            why = "it was saved by another trainer"
            checkpoints.reject(store, self._run.uri, step, [why], self._session)
        self._foreign = foreign
        self._record(max(recorded, default=None))

    def _record(self, step: int | None) -> int | None:
        self._session.heartbeat.update(proven_step=step)
        return step
