"""The trainer's heartbeat and fence: a thread that writes where training is, and ends the process when it must stop.

One write a beat, conditional on the generation of the last one: if status.json was written by another process, another
trainer runs and this one exits without a further write. The claim is read at each beat. While there is no live state
(waiting, suspended, compiling) the thread itself ends the process: a library may block for hours (docs/contracts.md 6).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from ..runs.errors import Changed, Damaged, ElasticTPUError, EndedOnRequest, Exists, ExitCode, NotFound, Unreachable
from ..runs.record import paths
from ..runs.record.attempts import Rebuilt, set_aside
from ..runs.record.claim import load_claim
from ..runs.record.run import Run
from ..runs.record.status import Status, load_status
from ..runs.store import records
from ..runs.store.base import Item
from .limits import Watch, overdue
from .suspension import Suspension, is_late

_log = logging.getLogger("elastic_tpu.trainer")
_RECORD_END = 10.0  # seconds to record the end in; Kubernetes gives a process 30 to end
_NO_LIVE_STATE = ("starting", "waiting", "restoring", "compiling", "suspended")
_ON_SLICES = ("restoring", "compiling", "training", "saving", "stopping")


@dataclass(frozen=True)
class Stop:
    """A request to end training after the current step: the exit code, and why."""

    code: ExitCode
    reason: str


class Heartbeat:
    """The thread that writes status.json. Training calls `update`, and ends when `stop` is set.

    Args:
      run: the run.
      attempt: number of this process start.
      nonce: names this process in status.json.
      interval: seconds between beats.
      leave: ends the process at once with an exit code (`os._exit`).
      elapsed: seconds since the run's first attempt began.
      clock: monotonic seconds.
      pause: sleeps for a number of seconds.
      record_end: records exit code and reason when the thread itself ends the process; may fail or hang.
      tell_rebuilt: called when status.json is damaged, before it is replaced.
      tell: records an event (kind, step, **data); must not block.

    Attributes:
      slices_away: asked when a step is late: slices that training holds and that are not up, each with what is known of
        it. While there are some the status says suspended, and no stall counts.
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
        record_end: Callable[[ExitCode, str], None] = lambda code, reason: None,
        tell_rebuilt: Callable[[Rebuilt], None] = lambda rebuilt: None,
        tell: Callable[..., None] = lambda kind, **data: None,
    ) -> None:
        self._run, self._interval, self._leave, self._clock, self._pause = run, interval, leave, clock, pause
        self._status = Status(run.run_id, attempt, nonce, steps=run.spec.train.steps)
        self._elapsed, self._record_end, self._tell_rebuilt = elapsed, record_end, tell_rebuilt
        self._tell = tell
        self.slices_away: Callable[[], Mapping[int, str]] = dict
        self._suspension = Suspension()
        self._unknown_before = False  # status.json was damaged at the start: an earlier trainer may still run
        self._generation: str | None = None
        self._state = threading.Lock()  # training takes it at every step, so it is never held during a write
        self._lock = threading.RLock()
        self._wake: SimpleQueue[None] = SimpleQueue()  # unlike an Event, a signal handler may put into it at any moment
        self._closed = self._left = False
        self._thread = threading.Thread(target=self._loop, name="heartbeat", daemon=True)
        self._reached_at = clock()
        self._phase_since = self._doing_since = clock()
        self._progress_at = clock()
        self._stop_seen: tuple[str, float] | None = None
        self._took_at = clock()
        self.held = threading.Event()
        self.stop: Stop | None = None

    @property
    def status(self) -> Status:
        """Where training is, as of the last `update`; the next beat writes it."""
        return self._status

    def start(self) -> Status | None:
        """Take the fence over and start beating; returns the last status of an earlier trainer, if there was one.

        Raises:
          Unreachable: the storage was away for longer than `recovery.storage_timeout`.
        """
        before = self._take_over()
        self._reached_at = self._took_at = self._clock()
        if not self._unknown_before and (before is None or before.phase == "ended"):
            self.held.set()  # no earlier trainer is left that must first notice this one
        self._look_at_claim(starting=True)
        self._thread.start()
        return before

    def update(self, **changes: Any) -> None:
        """Say where training is; a change of phase is written at once, all else with the next beat."""
        with self._state:
            phase = changes.get("phase", self._status.phase)
            if phase != self._status.phase or changes.get("step", self._status.step) != self._status.step:
                self._note_away({})
            if phase != self._status.phase:
                self._phase_since = self._progress_at = self._clock()
                self._wake.put(None)
                changes.setdefault("doing", "")
            if changes.get("doing", self._status.doing) != self._status.doing:
                self._doing_since = self._clock()
            if changes.get("step", self._status.step) != self._status.step:
                self._progress_at = self._clock()
            self._status = dataclasses.replace(self._status, **changes)

    def evicted(self) -> None:
        """Ask training to save and end on SIGTERM. Takes no lock, since a handler may run inside `update`."""
        self.request_stop(Stop(ExitCode.EVICTED, "SIGTERM: this process is being evicted"))

    def request_stop(self, stop: Stop) -> None:
        """Ask training to end after the current step; only the first request counts."""
        self.stop = self.stop or stop
        self._wake.put(None)

    def confirm(self) -> None:
        """Make sure that this process still holds the run, before it saves, restores, proves or records an event.

        Blocks while the storage is away: the heartbeat ends the process when that lasts too long.

        Raises:
          EndedOnRequest: the run was lost, or the end of this process is written: another trainer may run.
        """
        while not self._closed:
            if self._clock() - self._reached_at <= 2 * self._interval:
                return
            self.beat()
            if self._clock() - self._reached_at > 2 * self._interval:
                self._pause(self._interval)
        raise EndedOnRequest("this trainer has ended or lost the run; it saves, proves and records nothing more")

    def wait_until_held(self) -> None:
        """Block until the fence was held for two intervals: an earlier trainer has noticed it by then."""
        while not self.held.wait(0.05):
            if self._clock() - self._took_at >= 2 * self._interval:
                self._wake.put(None)

    def finish(self, code: int, reason: str, tell: Callable[[], None] = lambda: None, **changes: Any) -> None:
        """Write the last status, phase ended with the exit code; nothing if the run was lost, or twice.

        Args:
          tell: called just before, if the run is still held.
        """
        with self._lock:
            if not self._closed and self._clock() - self._reached_at > 2 * self._interval:
                self._write()  # a superseded trainer finds out here
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
                _log.exception("a bug in the heartbeat: exiting, since nothing would enforce fence and limits")
                self._leave(ExitCode.BUG)

    def beat(self) -> None:
        """One beat: read the claim, write the status, enforce the limits."""
        with self._lock:
            if self._closed:
                return
            self._look_at_claim()
            self._look_at_slices()
            self._write()
            if not self._closed:
                self._enforce()

    def _take_over(self) -> Status | None:
        store, timeout, before = self._run.store, self._run.spec.recovery_limits.storage_timeout, None
        while True:
            try:
                try:
                    item = store.read(paths.STATUS)
                except NotFound:
                    self._generation = store.create(paths.STATUS, self._dump())
                    return before
                there = self._load(item)
                if there is not None and there.nonce == self._status.nonce:  # our own write, whose answer was lost
                    self._generation = item.generation
                    return before
                self._unknown_before |= there is None
                before = there or before
                self._generation = store.replace(paths.STATUS, self._dump(), item.generation)
                return before
            except (Exists, Changed):
                continue  # a beat of an earlier trainer, or the start of another one: read again
            except Unreachable:
                if self._clock() - self._reached_at > timeout:
                    raise
                self._pause(self._interval)

    def _load(self, item: Item) -> Status | None:
        """The status in the file; None if it is damaged: no trainer wrote that, so it is kept aside and replaced."""
        try:
            return load_status(records.load(item.data, self._run.path(paths.STATUS)))
        except Damaged:
            aside = set_aside(self._run.store, paths.STATUS, item)
            self._tell_rebuilt(Rebuilt(paths.STATUS, aside, "this process's own status"))
            return None

    def _write(self) -> None:
        try:
            self._generation = self._replace()
        except (Changed, NotFound):
            _log.error("another trainer writes status.json of this run: exiting without a further write")
            self._exit(ExitCode.ENDED_ON_REQUEST)
            return
        except ElasticTPUError as error:  # no answer, an unreadable one, or no right to write: not yet lost
            silent = self._clock() - self._reached_at
            _log.warning("status.json could not be written for %.0f s: %s", silent, error)
            if silent > self._run.spec.recovery_limits.storage_timeout:
                _log.error("recovery.storage_timeout is spent: exiting without a save")
                self._exit(ExitCode.INFRASTRUCTURE)
            return
        self._reached_at = self._clock()
        if self._reached_at - self._took_at >= 2 * self._interval:
            self.held.set()

    def _replace(self) -> str:
        """Replace our own last write, also one whose answer was lost. Raises Changed: another process wrote it."""
        assert self._generation is not None
        store = self._run.store
        try:
            return store.replace(paths.STATUS, self._dump(), self._generation)
        except Changed:
            item = store.read(paths.STATUS)
            there = self._load(item)
            if there is not None and there.nonce != self._status.nonce:
                raise
            return store.replace(paths.STATUS, self._dump(), item.generation)

    def _dump(self) -> bytes:
        seconds = self._clock() - self._doing_since if self._status.doing else 0.0
        said = dataclasses.replace(self._status, doing_seconds=round(seconds, 1))
        if away := self._suspension.away:
            there = dataclasses.replace(said.slices, active=max(0, said.slices.active - len(away)))
            said = dataclasses.replace(said, phase="suspended", reason=self._suspension.reason, slices=there)
        return said.dump()

    def _exit(self, code: ExitCode) -> None:
        self._closed = self._left = True
        self._leave(code)

    def _look_at_claim(self, starting: bool = False) -> None:
        try:
            claim = load_claim(self._run.store.read(paths.CLAIM).data)
        except ElasticTPUError:
            return  # no claim or no answer is no request to stop
        if starting and claim.state == "done":
            # Its launcher was cut off while this was being created, and gave the run and its slices up.
            self.request_stop(
                Stop(ExitCode.ENDED_ON_REQUEST, f"{claim.holder} gave the run up before this trainer began")
            )
        if claim.state != "stop":
            self._stop_seen = None
            return
        if self._stop_seen is None or self._stop_seen[0] != claim.nonce:
            self._stop_seen = (claim.nonce, self._clock())
        if self._clock() - self._stop_seen[1] >= claim.grace:
            self.request_stop(Stop(ExitCode.ENDED_ON_REQUEST, f"stopped by {claim.asked_by}"))

    def _look_at_slices(self, always: bool = False) -> None:
        """Ask whether slices are away if a step is late; a step that ends meanwhile counts for more."""
        with self._state:
            status, since = self._status, self._progress_at
        late = always or is_late(self._clock() - since, self._interval, status.step_seconds)
        away = self.slices_away() if late and status.phase in _ON_SLICES else {}
        with self._state:
            if since == self._progress_at:
                self._note_away(away)

    def _note_away(self, away: Mapping[int, str]) -> None:
        """Take in which slices are away; once they are back, the limits of a step count anew."""
        now, step = self._clock(), self._status.step
        if away and not self._suspension.away:
            self._tell("train.suspended", step=step, slices=sorted(away), why="; ".join(sorted({*away.values()})))
        over = self._suspension.note(away, now)
        if over is not None:
            self._tell("train.resumed", step=step, seconds=round(over, 3))
            self._phase_since = self._progress_at = now

    @property
    def suspended_seconds(self) -> float:
        """Seconds so far in which training stood still because slices were away."""
        return self._suspension.total(self._clock())

    def _watch(self) -> Watch:
        now, away = self._clock(), self._suspension.away
        phase = "suspended" if away else self._status.phase
        in_phase = self._suspension.lasts(now) if away else now - self._phase_since
        return Watch(phase, in_phase, now - self._progress_at, self._elapsed())

    def _enforce(self) -> None:
        watch = self._watch()
        spent = overdue(watch, self._run.spec)
        if spent is not None and spent.code == ExitCode.INFRASTRUCTURE:  # a stall, unless slices are away
            self._look_at_slices(always=True)
            watch = self._watch()
            spent = overdue(watch, self._run.spec)
        if spent is not None and spent.now:
            self._end_now(spent.code, spent.reason)
        elif spent is not None:
            self.request_stop(Stop(spent.code, spent.reason))
        if self.stop is not None and watch.phase in _NO_LIVE_STATE:
            self._end_now(self.stop.code, self.stop.reason)

    def _end_now(self, code: ExitCode, reason: str) -> None:
        _log.error("ending now: %s", reason)
        self._closed = True  # before `ended` is written, after which a new trainer takes over at once
        self._end_status(code, reason)
        self._write()
        if not self._left:
            self._try_record_end(code, reason)
            self._exit(code)

    def _try_record_end(self, code: ExitCode, reason: str) -> None:
        """Call `record_end`; an error is logged, and a hang is abandoned after `_RECORD_END` seconds."""

        def record() -> None:
            try:
                self._record_end(code, reason)
            except Exception as error:
                _log.warning("the end of the attempt could not be recorded completely: %s", error)

        recording = threading.Thread(target=record, name="record-end", daemon=True)
        recording.start()
        recording.join(_RECORD_END)

    def _end_status(self, code: int, reason: str, **changes: Any) -> None:
        with self._state:
            self._suspension.note({}, self._clock())
            self._status = dataclasses.replace(
                self._status, phase="ended", exit=int(code), reason=reason, doing="", **changes
            )
