"""Rehearsed faults (`local.faults`): kills slices at the steps that the spec names, each fault once a run."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...runs.record.run import Run
from ...runs.record.status import read_status
from ...runs.spec.run_spec import Fault
from ...runs.store import records

_EVERY = 0.2  # seconds between two looks at the trainer's step


class RehearsedFaults:
    """The faults of a run that are still to come.

    Args:
      kill: kills the worker of a fault's slice; gets the fault and its number in `local.faults`.
    """

    def __init__(self, run: Run, kill: Callable[[Fault, int], object]) -> None:
        self._run, self._kill = run, kill
        # Recorded in the run directory, since a later supervisor of the same run must not repeat a fault.
        done = {entry.name for entry in run.store.list("local/faults/")}
        self._pending = [i for i in range(len(run.spec.local.faults)) if f"local/faults/{i}.json" not in done]
        self._looked_at = 0.0

    def tick(self) -> None:
        """Carry out what is due at the step in status.json. For a supervisor whose trainer was launched."""
        if not self._pending or time.monotonic() - self._looked_at < _EVERY:
            return
        self._looked_at = time.monotonic()
        status = read_status(self._run)
        if status is None or status.phase not in ("training", "saving"):
            return
        for number in list(self._pending):
            fault = self._run.spec.local.faults[number]
            if status.step >= fault.after_step:
                body = {"time": records.timestamp(), "step": status.step, "slice": fault.slice}
                self._run.store.put(f"local/faults/{number}.json", records.dump(body))
                self._pending.remove(
                    number
                )  # after the write: if the storage does not answer, the fault is tried again
                self._kill(fault, number)
