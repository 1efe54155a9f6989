"""One process of a job in the run directory: its attempt, its log, its heartbeat, its events, its end.

Knows nothing of MaxText or JAX, so it can begin before they are imported; whoever speaks the run contract uses it.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import Any, TypeVar

from ..runs.errors import ElasticTPUError, Exists, ExitCode, Unreachable
from ..runs.record import paths, proof
from ..runs.record.events import EventLog
from ..runs.record.run import Run, local_folder
from ..runs.record.status import Status
from ..runs.store import records
from .heartbeat import Heartbeat

_log = logging.getLogger("elastic_tpu.trainer")
_SHIP_LOG = 30.0  # seconds between uploads of the log to a bucket
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


class Attempt:
    """A process start of a job, registered by create-if-absent in `attempts/<n>/`."""

    def __init__(self, run: Run, job: str, newest_proven: int | None) -> None:
        self.run, self.job, self.nonce = run, job, secrets.token_hex(8)
        self.folder = paths.attempts(job)
        earlier = patiently(run, self._earlier)
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
            earlier[n]["proven_step"]
            for n in sorted(earlier)
            # One that died before it could register is entered by the supervisor, who knows of no step.
            if "proven_step" in earlier[n] and not _ended_on_request(earlier[n])
        ]
        first = earlier.get(min(earlier)) if earlier else None
        self._began = records.parse_time(first["time"]).timestamp() if first and "time" in first else time.time()
        self._began_monotonic = time.monotonic() - max(0.0, time.time() - self._began)

    def _register(self, body: bytes) -> bool:
        name = f"{self.folder}/{self.number}/started.json"
        try:
            self.run.store.create(name, body)
        except Exists:
            return self.run.store.read(name).data == body  # our own, written by a call whose answer was lost
        return True

    def _earlier(self) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for entry in self.run.store.list(f"{self.folder}/"):
            number, _, file = entry.name.removeprefix(f"{self.folder}/").partition("/")
            if number.isascii() and number.isdecimal() and file in ("started.json", "exit.json"):
                found.setdefault(int(number), {}).update(self.run.read(entry.name) or {})
        return found

    def elapsed(self) -> float:
        """Seconds since the first attempt of this run began."""
        return time.monotonic() - self._began_monotonic


def _ended_on_request(attempt: dict[str, Any]) -> bool:
    return attempt.get("exit_code") == ExitCode.ENDED_ON_REQUEST


class AttemptLog:
    """stdout and stderr of this process, also in `attempts/<n>/<name>.log`: a `tee` child outlives this one."""

    def __init__(self, run: Run, name: str) -> None:
        folder = local_folder(run)
        self._run, self._name = run, name
        self.path = Path(folder) / name if folder else Path(tempfile.mkdtemp(prefix="elastic-tpu-log-")) / "log"
        self._shipping = folder is None
        self._shipped = -1
        self._done = threading.Event()
        tee = shutil.which("tee")
        if tee is None:
            self._tee = None
            return
        self._tee = subprocess.Popen([tee, "-i", "-a", str(self.path)], stdin=subprocess.PIPE, start_new_session=True)
        assert self._tee.stdin is not None
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (1, 2):
            os.dup2(self._tee.stdin.fileno(), stream)
        if self._shipping:
            threading.Thread(target=self._ship_often, name="ship-log", daemon=True).start()

    def close(self) -> None:
        """Flush, and ship what is left."""
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
        if self._shipping:
            self._ship()

    def _ship_often(self) -> None:
        while not self._done.wait(_SHIP_LOG):
            self._ship()

    def _ship(self) -> None:
        try:
            size = self.path.stat().st_size
            if size != self._shipped:
                self._run.store.put(self._name, self.path.read_bytes())
                self._shipped = size
        except (ElasticTPUError, OSError):
            _log.warning("the log could not be shipped; it is in %s", self.path)


class TrainerSession:
    """A training process: registered, beating, and sure that it is the only one."""

    def __init__(self, run: Run, *, exit_process: Callable[[int], None] = leave, capture_log: bool = True) -> None:
        self.run = run
        self.proven_step = patiently(run, lambda: proof.newest_proven(run.store))
        self.attempt = Attempt(run, "train", self.proven_step)
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
            last_words=self._last_words,
        )
        self.heartbeat.update(proven_step=self.proven_step)
        self.before: Status | None = self.heartbeat.start()
        self.events.write("attempt.started", pid=os.getpid(), proven_step=self.proven_step)

    def catch_sigterm(self) -> None:
        """SIGTERM asks training to save and leave; only the main thread may say so."""
        signal.signal(signal.SIGTERM, lambda *_: self.heartbeat.evicted())

    def event(self, kind: str, *, step: int | None = None, **data: Any) -> None:
        """Record an event, once sure that this process still holds the run; waits for a storage that is away.

        Raises:
          Unreachable: it was away for longer than `recovery.storage_timeout`.
        """
        since = time.monotonic()

        def wait(error: Unreachable) -> None:
            if time.monotonic() - since > self.run.spec.patience.storage_timeout:
                raise error
            time.sleep(1.0)
            self.heartbeat.confirm()

        self.heartbeat.confirm()
        self.events.write(kind, step=step, patience=wait, **data)

    def end(self, code: int, reason: str = "", **changes: Any) -> int:
        """The last words of the process; returns the exit code. Who lost the run, or has ended, writes nothing more."""
        self.heartbeat.finish(int(code), reason, lambda: self._tell_end(code, reason), **changes)
        _log.info("exit code %d%s", code, f": {reason}" if reason else "")
        if self.log is not None:
            self.log.close()
        return int(code)

    def _tell_end(self, code: int, reason: str) -> None:
        try:
            self.events.write("attempt.ended", code=int(code), reason=reason)
        except ElasticTPUError as error:
            _log.warning("the end of the attempt could not be recorded: %s", error)

    def _last_words(self, code: ExitCode, reason: str) -> None:
        """The heartbeat ends the process; what it calls infrastructure is a stall."""
        if code == ExitCode.INFRASTRUCTURE:
            self.events.write("train.stalled", step=self.heartbeat.status.step, reason=reason)
        self._tell_end(code, reason)
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
    since: float | None = None
    while True:
        try:
            return look()
        except Unreachable as error:
            since = time.monotonic() if since is None else since
            if time.monotonic() - since > run.spec.patience.storage_timeout:
                raise
            _log.warning("the storage does not answer; asking again: %s", error)
        time.sleep(_AGAIN)
        between()
