"""One process of a job in the run directory: its attempt, its log, its heartbeat, its events, its end.

Uses neither MaxText nor JAX, so it starts before they are imported and serves any trainer that keeps the run contract.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_fixed

from ..runs import masking
from ..runs.errors import ElasticTPUError, Exists, ExitCode, Unreachable
from ..runs.record import paths, proof
from ..runs.record.attempts import Attempt, Rebuilt, read_attempts
from ..runs.record.events import EventLog
from ..runs.record.run import Run, local_folder
from ..runs.record.status import Status
from ..runs.store import records
from .event_queue import EventQueue
from .heartbeat import Heartbeat

_log = logging.getLogger("elastic_tpu.trainer")
_UPLOAD_LOG = 30.0  # seconds between uploads of the log to a bucket
_AGAIN = 1.0  # seconds until a storage that did not answer is asked again
_Found = TypeVar("_Found")


def leave(code: int) -> None:
    """End the process at once: threads of grain, Orbax and gRPC may block an orderly exit for minutes."""
    flush = threading.Thread(target=_flush, daemon=True)  # a pipe that nobody reads would block it for ever
    flush.start()
    flush.join(2.0)
    os._exit(int(code))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


class ProcessAttempt:
    """A process start of a job, registered by create-if-absent in `attempts/<n>/`."""

    def __init__(self, run: Run, job: str, newest_proven: int | None) -> None:
        self.run, self.job, self.nonce = run, job, secrets.token_hex(8)
        self.folder = paths.attempts(job)
        masking.remember(os.environ.get(name, "") for name in run.spec.secrets)
        events = EventLog(run.store, "trainer" if job == "train" else job)
        earlier = patiently(run, lambda: read_attempts(run, job, partial(tell_rebuilt, events)))
        self.number = max(earlier, default=0) + 1
        body = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "time": records.timestamp(),
            "nonce": self.nonce,
            "proven_step": newest_proven,
        }
        while not patiently(run, lambda: self._register(records.dump(body))):
            self.number += 1
        self.proven_at_start = [
            started.proven_step
            for _, attempt in sorted(earlier.items())
            # The supervisor registers an attempt that died too early to do so, and writes no proven step.
            if (started := attempt.started) is not None
            and "proven_step" in started.model_fields_set
            and not _ended_on_request(attempt)
        ]
        first = earlier[min(earlier)].started if earlier else None
        self._began = first.began.timestamp() if first else time.time()
        self._began_monotonic = time.monotonic() - max(0.0, time.time() - self._began)

    def _register(self, body: bytes) -> bool:
        name = f"{self.folder}/{self.number}/started.json"
        try:
            self.run.store.create(name, body)
        except Exists:
            return self.run.store.read(name).data == body  # our own, written by a call whose answer was lost
        return True

    def elapsed(self) -> float:
        """Seconds since the first attempt of this run began."""
        return time.monotonic() - self._began_monotonic


def tell_rebuilt(events: EventLog, rebuilt: Rebuilt) -> None:
    """Record that a damaged file was replaced."""
    _log.warning("%s was damaged and is rebuilt (%s); the damaged one is %s", rebuilt.file, rebuilt.how, rebuilt.aside)
    events.write("record.rebuilt", file=rebuilt.file, aside=rebuilt.aside, how=rebuilt.how)


def _ended_on_request(attempt: Attempt) -> bool:
    return attempt.ended is not None and attempt.ended.exit_code == ExitCode.ENDED_ON_REQUEST


class AttemptLog:
    """Copies stdout and stderr of this process to `attempts/<n>/<name>.log`, by a `tee` child that outlives it."""

    def __init__(self, run: Run, name: str) -> None:
        folder = local_folder(run)
        self._run, self._name = run, name
        self.path = Path(folder) / name if folder else Path(tempfile.mkdtemp(prefix="elastic-tpu-log-")) / "log"
        self._uploads = folder is None
        self._uploaded = -1
        self._done = threading.Event()
        tee = shutil.which("tee")
        if tee is None:
            self._tee = None
            return
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640))  # as every file of a run
        self._tee = subprocess.Popen([tee, "-i", "-a", str(self.path)], stdin=subprocess.PIPE, start_new_session=True)
        assert self._tee.stdin is not None
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (1, 2):
            os.dup2(self._tee.stdin.fileno(), stream)
        if self._uploads:
            threading.Thread(target=self._upload_often, name="upload-log", daemon=True).start()

    def close(self) -> None:
        """Flush, and upload what is left."""
        self._done.set()
        if self._tee is None or self._tee.stdin is None:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(null, stream)
        self._tee.stdin.close()
        try:
            self._tee.wait(5.0)
        except subprocess.TimeoutExpired:
            self._tee.kill()
        if self._uploads:
            self._upload()

    def _upload_often(self) -> None:
        while not self._done.wait(_UPLOAD_LOG):
            self._upload()

    def _upload(self) -> None:
        try:
            size = self.path.stat().st_size
            if size != self._uploaded:
                self._run.store.put(self._name, self.path.read_bytes())
                self._uploaded = size
        except (ElasticTPUError, OSError):
            _log.warning("the log could not be uploaded; it is in %s", self.path)


class TrainerSession:
    """A training process: registered as an attempt, with its heartbeat, and the only one of its run."""

    def __init__(self, run: Run, *, exit_process: Callable[[int], None] = leave, capture_log: bool = True) -> None:
        self.run = run
        self.proven_step = patiently(run, lambda: proof.newest_proven(run.store))
        self.attempt = ProcessAttempt(run, "train", self.proven_step)
        name = f"{self.attempt.folder}/{self.attempt.number}/trainer.log"
        self.log = AttemptLog(run, name) if capture_log else None
        self.events = EventLog(run.store, "trainer", self.attempt.number)
        self.heartbeat = Heartbeat(
            run,
            self.attempt.number,
            self.attempt.nonce,
            run.spec.beat,
            exit_process,
            self.attempt.elapsed,
            record_end=self._record_end_by_heartbeat,
            tell_rebuilt=partial(tell_rebuilt, self.events),
            tell=EventQueue(self.event).put,
        )
        self.heartbeat.update(proven_step=self.proven_step)
        self.before: Status | None = self.heartbeat.start()
        self.events.write("attempt.started", pid=os.getpid(), proven_step=self.proven_step)

    def catch_sigterm(self) -> None:
        """Let SIGTERM ask training to save and end; Python allows it in the main thread only."""
        signal.signal(signal.SIGTERM, lambda *_: self.heartbeat.evicted())

    def event(self, kind: str, *, step: int | None = None, **data: Any) -> None:
        """Record an event, once sure that this process still holds the run; waits for a storage that is away.

        Raises:
          Unreachable: it was away for longer than `recovery.storage_timeout`.
        """
        since = time.monotonic()

        def wait(error: Unreachable) -> None:
            if time.monotonic() - since > self.run.spec.recovery_limits.storage_timeout:
                raise error
            time.sleep(1.0)
            self.heartbeat.confirm()

        self.heartbeat.confirm()
        self.events.write(kind, step=step, on_unreachable=wait, **data)

    def end(self, code: int, reason: str = "", **changes: Any) -> int:
        """Record the end of the process; returns the exit code. Writes nothing if the run was lost, or twice."""
        self.heartbeat.finish(int(code), reason, lambda: self._record_end(code, reason), **changes)
        _log.info("exit code %d%s", code, f": {reason}" if reason else "")
        if self.log is not None:
            self.log.close()
        return int(code)

    def _record_end(self, code: int, reason: str) -> None:
        try:
            self.events.write("attempt.ended", code=int(code), reason=reason)
        except ElasticTPUError as error:
            _log.warning("the end of the attempt could not be recorded: %s", error)

    def _record_end_by_heartbeat(self, code: ExitCode, reason: str) -> None:
        """The heartbeat ends the process: it does so with 75 only for a stall, whose stacks go into the log first."""
        if code == ExitCode.INFRASTRUCTURE:
            faulthandler.dump_traceback(file=2)  # all threads; takes no lock that a thread which hangs may hold
            self.events.write("train.stalled", step=self.heartbeat.status.step, reason=reason)
        self._record_end(code, reason)
        if self.log is not None:
            self.log.close()


def patiently(run: Run, look: Callable[[], _Found], between: Callable[[], None] = lambda: None) -> _Found:
    """Call `look` until the storage answers: a starting trainer waits for it as long as a running one would.

    Args:
      run: its spec says how long.
      look: called again after each `Unreachable`; must be safe to repeat.
      between: called before each repetition.
    Raises:
      Unreachable: the storage was away for longer than `recovery.storage_timeout`.
    """
    limit, failures = run.spec.recovery_limits.storage_timeout, list[float]()

    def spent(state: RetryCallState) -> bool:
        failures.append(time.monotonic())
        return failures[-1] - failures[0] > limit

    def warn(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _log.warning("the storage does not answer; asking again: %s", error)

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        between()

    return Retrying(
        retry=retry_if_exception_type(Unreachable),
        stop=spent,
        wait=wait_fixed(_AGAIN),
        before_sleep=warn,
        sleep=pause,
        reraise=True,
    )(look)
