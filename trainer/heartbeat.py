"""The trainer's heartbeat and fence: a thread that says where training is, and ends the process when it must not go on.

One write a beat, conditional on the generation of the last one: if somebody else wrote status.json, another trainer
runs and this one leaves without a further write. The claim is read at each beat. While there is no live state (waiting,
restoring, compiling) the thread itself ends the process, since a library may block for hours (contracts.md 6).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from ..runs.errors import Changed, ElasticTPUError, EndedOnRequest, Exists, ExitCode, NotFound, Unreachable
from ..runs.record import paths
from ..runs.record.claim import load_claim
from ..runs.record.run import Run
from ..runs.record.status import Status, load_status
from ..runs.store import records
from ..runs.store.base import Item
from .limits import Watch, overdue

_log = logging.getLogger("elastic_tpu.trainer")
_LAST_WORDS = 10.0  # seconds; of the 30 that Kubernetes gives a process to end
_NO_LIVE_STATE = ("starting", "waiting", "restoring", "compiling")


@dataclass(frozen=True)
class Stop:
    """Why training is to end after the step that runs, and with which exit code."""

    code: ExitCode
    reason: str


class Heartbeat:
    """The thread. `update` tells it where training is; `stop` tells training what it learned.

    Args:
      run: the run.
      attempt: this process start.
      nonce: names this process in status.json.
      interval: seconds between beats.
      leave: ends the process at once with an exit code (`os._exit`).
      elapsed: seconds since the run's first attempt began.
      clock: monotonic seconds.
      pause: sleeps so many seconds.
      last_words: tells the exit code and the reason when the thread itself ends the process; may fail or hang.
    """

    def __init__(
        self,
        run: Run,
        attempt: int,
        nonce: str,
        interval: float,
        leave: Callable[[int], None],
        elapsed: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        last_words: Callable[[ExitCode, str], None] = lambda code, reason: None,
    ) -> None:
        self._run, self._interval, self._leave, self._clock, self._pause = run, interval, leave, clock, pause
        self._status = Status(run.run_id, attempt, nonce, steps=run.spec.train.steps)
        self._elapsed, self._last_words = elapsed, last_words
        self._generation: str | None = None
        self._state = threading.Lock()  # never held during a write: training updates it at every step
        self._lock = threading.RLock()
        self._wake: SimpleQueue[None] = SimpleQueue()  # unlike an Event, a signal handler may put into it at any moment
        self._closed = self._left = False
        self._thread = threading.Thread(target=self._loop, name="heartbeat", daemon=True)
        self._reached_at = clock()
        self._phase_since = clock()
        self._progress_at = clock()
        self._stop_seen: tuple[str, float] | None = None
        self._took_at = clock()
        self.held = threading.Event()
        self.stop: Stop | None = None

    @property
    def status(self) -> Status:
        """What the last beat said, and what the next one will."""
        return self._status

    def start(self) -> Status | None:
        """Take the fence over and start beating; returns what the trainer before this one said last.

        Raises:
          Unreachable: the storage was away for longer than `recovery.storage_timeout`.
        """
        before = self._take_over()
        self._reached_at = self._took_at = self._clock()
        if before is None or before.phase == "ended":
            self.held.set()  # there is nobody who would have to notice first
        self._look_at_claim()
        self._thread.start()
        return before

    def update(self, **changes: Any) -> None:
        """Say where training is; a change of phase is written at once."""
        with self._state:
            phase = changes.get("phase", self._status.phase)
            if phase != self._status.phase:
                self._phase_since = self._progress_at = self._clock()
                self._wake.put(None)
            if changes.get("step", self._status.step) != self._status.step:
                self._progress_at = self._clock()
            self._status = dataclasses.replace(self._status, **changes)

    def evicted(self) -> None:
        """SIGTERM arrived: save and leave. Takes no lock, since a handler may run inside `update`."""
        self.request_stop(Stop(ExitCode.EVICTED, "SIGTERM: this process is being evicted"))

    def request_stop(self, stop: Stop) -> None:
        """Ask training to end after the step that runs; the first reason counts."""
        self.stop = self.stop or stop
        self._wake.put(None)

    def confirm(self) -> None:
        """Make sure that this process still holds the run, before it saves, restores, proves or tells.

        Blocks while the storage is away: the heartbeat ends the process when that lasts too long.

        Raises:
          EndedOnRequest: the process has said its last word, and another may have begun.
        """
        while not self._closed:
            if self._clock() - self._reached_at <= 2 * self._interval:
                return
            self.beat()
            if self._clock() - self._reached_at > 2 * self._interval:
                self._pause(self._interval)
        raise EndedOnRequest("this trainer has ended or lost the run; it saves, proves and tells nothing more")

    def wait_until_held(self) -> None:
        """Block until the fence was held for two intervals: whoever held it before has noticed by then."""
        while not self.held.wait(0.05):
            if self._clock() - self._took_at >= 2 * self._interval:
                self._wake.put(None)

    def finish(self, code: int, reason: str, tell: Callable[[], None] = lambda: None, **changes: Any) -> None:
        """The last word: phase ended, with the exit code. `tell` is called just before, if the run is still held."""
        with self._lock:
            if not self._closed and self._clock() - self._reached_at > 2 * self._interval:
                self._write()  # a zombie learns here that it is one
            if not self._closed:
                self._closed = True
                self._wake.put(None)
                tell()
                self._end_status(code, reason, **changes)
                self._write()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    # -- the thread -------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._closed:
            with suppress(Empty):
                self._wake.get(timeout=self._interval)
            with suppress(Empty):
                while True:
                    self._wake.get_nowait()
            if self._closed:
                return
            try:
                self.beat()
            except Exception:
                _log.exception("a bug in the heartbeat; training would go on blind, so it ends")
                self._leave(ExitCode.BUG)

    def beat(self) -> None:
        """One beat: read the claim, write the status, enforce the limits."""
        with self._lock:
            if self._closed:
                return
            self._look_at_claim()
            self._write()
            if not self._closed:
                self._enforce()

    def _take_over(self) -> Status | None:
        store, patience, before = self._run.store, self._run.spec.patience.storage_timeout, None
        while True:
            try:
                try:
                    item = store.read(paths.STATUS)
                except NotFound:
                    self._generation = store.create(paths.STATUS, self._status.dump())
                    return before
                there = self._load(item)
                if there.nonce == self._status.nonce:  # our own write, whose answer was lost
                    self._generation = item.generation
                    return before
                before = there
                self._generation = store.replace(paths.STATUS, self._status.dump(), item.generation)
                return before
            except (Exists, Changed):
                continue  # a beat of the trainer before this one, or another one that starts: read again
            except Unreachable:
                if self._clock() - self._reached_at > patience:
                    raise
                self._pause(self._interval)

    def _load(self, item: Item) -> Status:
        status = load_status(records.load(item.data, self._run.path(paths.STATUS)))
        assert status is not None
        return status

    def _write(self) -> None:
        try:
            self._generation = self._replace()
        except (Changed, NotFound):
            _log.error("another trainer writes status.json of this run: leaving without a further write")
            self._gone(ExitCode.ENDED_ON_REQUEST)
            return
        except ElasticTPUError as error:  # no answer, none that can be read, or no right to write: unknown, not lost
            silent = self._clock() - self._reached_at
            _log.warning("status.json could not be written for %.0f s: %s", silent, error)
            if silent > self._run.spec.patience.storage_timeout:
                _log.error("recovery.storage_timeout is spent: leaving without a save")
                self._gone(ExitCode.INFRASTRUCTURE)
            return
        self._reached_at = self._clock()
        if self._reached_at - self._took_at >= 2 * self._interval:
            self.held.set()

    def _replace(self) -> str:
        """Write over our own last write, also over one whose answer was lost. Raises Changed: it is another's."""
        assert self._generation is not None
        store = self._run.store
        try:
            return store.replace(paths.STATUS, self._status.dump(), self._generation)
        except Changed:
            item = store.read(paths.STATUS)
            if self._load(item).nonce != self._status.nonce:
                raise
            return store.replace(paths.STATUS, self._status.dump(), item.generation)

    def _gone(self, code: ExitCode) -> None:
        self._closed = self._left = True
        self._leave(code)

    def _look_at_claim(self) -> None:
        try:
            claim = load_claim(self._run.store.read(paths.CLAIM).data)
        except ElasticTPUError:
            return  # no claim, or no answer: unknown is not a stop
        if claim.state != "stop":
            self._stop_seen = None
            return
        if self._stop_seen is None or self._stop_seen[0] != claim.nonce:
            self._stop_seen = (claim.nonce, self._clock())
        if self._clock() - self._stop_seen[1] >= claim.grace:
            self.request_stop(Stop(ExitCode.ENDED_ON_REQUEST, f"stopped by {claim.by or claim.holder}"))

    def _enforce(self) -> None:
        now = self._clock()
        watch = Watch(self._status.phase, now - self._phase_since, now - self._progress_at, self._elapsed())
        spent = overdue(watch, self._run.spec)
        if spent is not None and spent.now:
            self._end_now(spent.code, spent.reason)
        elif spent is not None:
            self.request_stop(Stop(spent.code, spent.reason))
        if self.stop is not None and self._status.phase in _NO_LIVE_STATE:
            self._end_now(self.stop.code, self.stop.reason)

    def _end_now(self, code: ExitCode, reason: str) -> None:
        _log.error("ending now: %s", reason)
        self._closed = True  # before the status says so: a successor need not wait for this process
        self._end_status(code, reason)
        self._write()
        if not self._left:
            self._say(code, reason)
            self._gone(code)

    def _say(self, code: ExitCode, reason: str) -> None:
        """The last words, as far as they can be said in time."""

        def say() -> None:
            try:
                self._last_words(code, reason)
            except Exception as error:
                _log.warning("the end of the attempt could not be told whole: %s", error)

        saying = threading.Thread(target=say, name="last-words", daemon=True)
        saying.start()
        saying.join(_LAST_WORDS)

    def _end_status(self, code: int, reason: str, **changes: Any) -> None:
        with self._state:
            self._status = dataclasses.replace(self._status, phase="ended", exit=int(code), reason=reason, **changes)
