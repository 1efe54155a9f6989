"""Starts, watches and restarts the workers of a run's slices, in the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ...runs.record.events import EventLog
from .processes import spawn_child
from .slices import worker_socket


@dataclass
class _Worker:
    process: subprocess.Popen[bytes] | None = None
    generation: int = 0
    ready: bool = False
    lost: bool = False
    back_at: float | None = 0.0  # monotonic seconds; None: never
    down: float | None = None  # seconds that the loss ordered by `kill` shall last; None: restart_delay


class Workers:
    """One worker a slice. No call blocks.

    Args:
      folder: of the sockets.
      restart_delay: seconds that a slice stays lost after its worker died.
      events: gets slice.lost, slice.back and slice.ready (once, when all are ready for the first time).
      log: gets the workers' output.
    """

    def __init__(self, folder: Path, count: int, restart_delay: float, events: EventLog, log: Path) -> None:
        self._folder, self._restart_delay, self._events = folder, restart_delay, events
        self._log = log.open("ab")
        self._workers = [_Worker() for _ in range(count)]
        self._announced = False

    def tick(self) -> bool:
        """Look at each worker once: record losses, restart. Returns whether slices.json has to be written again.

        An event is written before the state changes, so that it is tried again if the storage does not answer.
        """
        changed = False
        for index, worker in enumerate(self._workers):
            changed |= self._look(index, worker)
        if self.ready == len(self._workers) and not self._announced and self._workers:
            self._events.write("slice.ready", all=True, slices=list(range(len(self._workers))))
            self._announced = changed = True
        return changed

    def _look(self, index: int, worker: _Worker) -> bool:
        if worker.process is not None and worker.process.poll() is not None:
            code, pid = worker.process.returncode, worker.process.pid
            worker_socket(self._folder, index).unlink(missing_ok=True)
            down = self._restart_delay if worker.down is None else worker.down
            forever = down == float("inf")
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._events.write("slice.lost", slice=index, pid=pid, how=how, back_in=None if forever else down)
            worker.back_at = None if forever else time.monotonic() + down
            worker.process, worker.ready, worker.lost, worker.down = None, False, True, None
            return True
        if worker.process is None:
            if worker.back_at is None or time.monotonic() < worker.back_at:
                return False
            worker.generation += 1
            argv = [sys.executable, str(Path(__file__).with_name("worker.py")), "--socket"]
            argv += [str(worker_socket(self._folder, index)), "--slice", str(index)]
            worker.process = spawn_child([*argv, "--generation", str(worker.generation)], self._log)
            return True
        if not worker.ready and worker_socket(self._folder, index).exists():
            if worker.lost:
                self._events.write("slice.back", slice=index, pid=worker.process.pid, generation=worker.generation)
            worker.ready, worker.lost = True, False
            return True
        return False

    @property
    def ready(self) -> int:
        """How many slices are ready."""
        return sum(w.ready for w in self._workers)

    def kill(self, index: int, down: float | None) -> int | None:
        """SIGKILL a slice's worker.

        Args:
          down: seconds until it is restarted, inf for never; None for `restart_delay`.

        Returns:
          The worker's pid; None if the slice has no worker now.
        """
        worker = self._workers[index]
        if worker.process is None:
            return None
        worker.down = down
        pid = worker.process.pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def records(self) -> list[dict[str, object]]:
        """The workers as `slices` of slices.json: index, state (ready, lost, starting), pid, generation."""
        return [
            {
                "index": i,
                "state": "ready" if w.ready else "lost" if w.back_at is None else "starting",
                "pid": w.process.pid if w.process else None,
                "generation": w.generation,
            }
            for i, w in enumerate(self._workers)
        ]

    def end(self) -> None:
        """Kill and reap all workers at once: they have nothing to save."""
        for worker in self._workers:
            if worker.process is not None:
                worker.process.kill()
        for index, worker in enumerate(self._workers):
            if worker.process is not None:
                worker.process.wait()
                worker.process = None
            worker_socket(self._folder, index).unlink(missing_ok=True)
        self._log.close()
