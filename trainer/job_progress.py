"""Tells what a job on CPU does and how far it is, in a file that is written every few seconds while it goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ..runs.errors import ElasticTPUError
from ..runs.record import paths
from ..runs.record.job_progress import JobProgress
from ..runs.record.run import Run

_log = logging.getLogger("elastic_tpu.trainer")
_EVERY = 3.0  # seconds between two writes: a bucket takes about one a second of an object
_LOG_EVERY = 2.0


class ProgressRecord:
    """The progress of one process of a job. A thread writes it, so that no storage holds the job up.

    Args:
      every: seconds between two writes.
    """

    def __init__(
        self, run: Run, job: str, attempt: int, every: float = _EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._name, self._every, self._clock = run.store, paths.job_progress(job), every, clock
        self._now = JobProgress(attempt=attempt, doing="starting")
        self._since = self._logged = clock()
        self._done = threading.Event()
        self._writing = threading.Lock()
        threading.Thread(target=self._write_often, name="job-progress", daemon=True).start()

    def doing(self, what: str) -> None:
        """Say what the job does now, in words; nothing of it is counted yet."""
        _log.info("%s", what)
        self._since = self._clock()
        self._now = JobProgress(attempt=self._now.attempt, doing=what)

    def counter(self, unit: str) -> Callable[[int, int], None]:
        """A function that takes how much is done, and how much there is in all."""

        def count(done: int, total: int) -> None:
            self._now = self._now.model_copy(update={"done": done, "total": total, "unit": unit})
            if self._clock() - self._logged > _LOG_EVERY or done == total:
                self._logged = self._clock()
                _log.info("%s: %d of %d %s (%.0f %%)", self._now.doing, done, total, unit, 100 * done / max(total, 1))

        return count

    def close(self) -> None:
        """Stop, and remove the file: what is over has no progress."""
        self._done.set()
        if self._writing.acquire(timeout=self._every):  # a write that hangs is left to the thread
            with suppress(ElasticTPUError):
                self._store.delete(self._name)
            self._writing.release()

    def _write_often(self) -> None:
        warned = False
        while True:
            with self._writing:
                if self._done.is_set():
                    return
                seconds = round(self._clock() - self._since, 1)
                try:
                    self._store.put(self._name, self._now.model_copy(update={"doing_seconds": seconds}).dump())
                except ElasticTPUError as error:
                    if not warned:
                        _log.warning("%s could not be written: %s", self._name, error)
                    warned = True
            if self._done.wait(self._every):
                return
