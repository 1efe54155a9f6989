"""Keeps the loss of every step in the run directory, for the report (runs/record/loss_log.py).

Training only appends to a list; a thread of its own writes the file, so a slow storage delays no step. Each attempt
writes a file of its own, so no fence is needed. The file is bounded: when there are too many points, only every second
one is kept, and from then on only every second step.
"""

from __future__ import annotations

import logging
import math
import threading
import time

from ...runs.errors import ElasticTPUError
from ...runs.record import loss_log
from ...runs.record.loss_log import Loss
from ...runs.record.run import Run

_log = logging.getLogger("elastic_tpu.trainer")


class LossWriter:
    """Writes the losses of one attempt.

    Args:
      run: the run.
      attempt: number of this process start.
      interval: seconds between two writes; the platform's `loss_interval` if None.
      limit: points that are kept at most.
    """

    def __init__(
        self,
        run: Run,
        attempt: int,
        interval: float | None = None,
        limit: int = 2000,
    ) -> None:
        self._store, self._name, self._limit = run.store, loss_log.file_name(attempt), limit
        self._interval = interval or run.spec.traits.loss_interval
        self._lock = threading.Lock()
        self._points: list[Loss] = []
        self._newest: Loss | None = None
        self._written: Loss | None = None
        self._every = 1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="losses", daemon=True)
        self._thread.start()

    def add(self, step: int, loss: float) -> None:
        """Add the loss of a completed step."""
        point = Loss(step, loss if math.isfinite(loss) else None, time.time())
        with self._lock:
            self._newest = point
            if step % self._every == 0:
                self._points.append(point)
            while len(self._points) > self._limit and self._every <= max(p.step for p in self._points):
                self._every *= 2
                self._points = [p for p in self._points if p.step % self._every == 0]
            del self._points[: -self._limit]  # thinning does not help if only step 0 comes, again and again

    def close(self) -> None:
        """Write what is left; does not wait long for a storage that is away."""
        self._over.set()
        self._thread.join(10.0)

    def _write_often(self) -> None:
        while not self._over.wait(self._interval):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            points, newest, every = list(self._points), self._newest, self._every
        if newest is None or newest is self._written:
            return
        if not points or points[-1] is not newest:
            points.append(newest)
        try:
            self._store.put(self._name, loss_log.dump(points, every))
            self._written = newest
        except ElasticTPUError as error:
            _log.warning("the losses could not be written; the next write includes them: %s", error)
