"""A job of a supervisor: its process, its attempts in the run directory, and its relaunches."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ...runs import masking
from ...runs.errors import BadInput, ElasticTPUError, Exists, ExitCode, Unreachable, exit_words
from ...runs.record import paths, proof, run
from ...runs.record.attempts import read_ended, read_started
from ...runs.record.claim import load_claim
from ...runs.record.run import Run
from ...runs.store import records
from . import relaunch
from .processes import end_group, spawn_child

_log = logging.getLogger("elastic_tpu.supervisor")
_TAIL = 12  # lines of a log that are last words
_PAUSE = 0.5  # seconds before a process that ended is started again


class SupervisedJob:
    """One job: train, export or evaluate.

    Attributes:
      argv: arguments of `python -m elastic_tpu.trainer`, or of `local.trainer`.
      log: gets the output of all its processes.
      unrecorded: how its process ended, and why that cannot be written to the run directory; empty once it is.
      over: its process has ended and will not be started again; then `exit_code` and `reason` say how it ended.
    """

    def __init__(self, opened: Run, name: str, argv: tuple[str, ...], folder: Path) -> None:
        self.run, self.name, self.argv = opened, name, argv
        self.log = folder / f"{name}.out"
        self.process: subprocess.Popen[bytes] | None = None
        self.over = False
        self.exit_code: int | None = None
        self.reason = ""
        self.unrecorded = ""
        self._restarts = 0
        self._proven_at_restart = -1  # the newest step that was ever proven; -1 before the first
        self._restart_at: float | None = None  # monotonic seconds
        self._kill_at: float | None = None  # monotonic seconds
        self._log_start = 0  # byte of the log where the output of the current process begins

    def start(self) -> None:
        """Start the process. If that fails, the job is over with 64 (bad input): `local.trainer` is wrong."""
        command = self.run.spec.local.trainer or [sys.executable, "-m", "elastic_tpu.trainer"]
        env = dict(os.environ)
        for name, reference in self.run.spec.secrets.items():
            if reference.env and reference.env in os.environ:
                env[name] = os.environ[reference.env]
                masking.remember([env[name]])
        argv = [*command, *self.argv]
        _log.info("starting %s: %s", self.name, shlex.join(argv))
        self._restart_at = None
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            try:
                self.process = spawn_child(argv, output, env)
            except OSError as error:
                why = error.strerror or str(error)
                self.over, self.exit_code = True, int(ExitCode.BAD_INPUT)
                self.reason = f"local.trainer: {argv[0]!r} cannot be started ({why}); give a command that can"
                _log.error("%s", self.reason)

    def stop(self, grace: float) -> None:
        """SIGTERM at the first call, SIGKILL after `grace` seconds; of several calls the earliest SIGKILL counts."""
        first = self._kill_at is None
        kill_at = time.monotonic() + grace
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        self._restart_at = None
        if self.process is None:
            self.over = True
        elif first:
            self.process.terminate()  # only once: a second SIGTERM would interrupt the save that the first one began

    def tick(self, wanted: bool) -> None:
        """Look at the process once; restart it when that is due.

        Args:
          wanted: False while the supervisor is ending, so that nothing is started again.
        """
        if self.over:
            return
        if self._restart_at is not None:
            if not wanted:
                self.over = True
            elif time.monotonic() >= self._restart_at:
                self.start()
            return
        if self.process is None:
            return
        code = self.process.poll()
        if code is None:
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                end_group(self.process, signal.SIGKILL)
            return
        end_group(self.process, signal.SIGKILL)  # child processes that it left
        state = self._claim_state()
        wanted = wanted and self._kill_at is None and state in ("held", "unknown")
        try:
            self._ended(code, wanted, state == "stop")
            self.unrecorded = ""
        except Unreachable as error:
            said = exit_words(code)
            self.unrecorded = f"{self.name} has ended ({said}), which cannot be recorded, trying again: {error}"
            raise

    def _ended(self, code: int, wanted: bool, stopped: bool) -> None:
        assert self.process is not None
        if self.name == "train":
            newest = max(proof.recorded_steps(self.run.store), default=-1)
            if newest > self._proven_at_restart:  # not for a step that was proven before and set aside
                self._restarts, self._proven_at_restart = 0, newest
        decision = relaunch.decide(code, self._restarts, self.run.spec.recovery_limits.head_restarts, wanted, stopped)
        last_words = tail(self.log, self._log_start)
        self.reason = decision.reason or (last_line(last_words) if code else "")
        self._write_exit(code, decision, last_words)
        _log.info("%s: exit code %d; %s", self.name, code, decision.reason or "over")
        self.process = None
        if decision.again:
            self._restarts += 1
            self._restart_at = time.monotonic() + _PAUSE
        else:
            self.over, self.exit_code = True, decision.code

    def _claim_state(self) -> str:
        try:
            return load_claim(self.run.store.read(paths.CLAIM).data).state
        except ElasticTPUError:
            return "unknown"

    def _write_exit(self, code: int, decision: relaunch.Decision, last_words: str) -> None:
        assert self.process is not None
        record = {
            "exit_code": code,
            "final": not decision.again,
            "code": decision.code,
            "reason": self.reason,
            "pid": self.process.pid,
            "time": records.timestamp(),
            "tail": last_words,
        }
        folder = paths.attempts(self.name)
        newest = max(run.attempts_of(self.run, self.name), default=0)
        number = next((n for n in range(newest, 0, -1) if self._started(n) == self.process.pid), None)
        if number is None:
            number = newest + 1  # the process ended before it wrote its started.json
            body = {"pid": self.process.pid, "by": "supervisor", "time": records.timestamp()}
            self.run.store.put(f"{folder}/{number}/started.json", records.dump(body))
        try:
            self.run.store.create(f"{folder}/{number}/exit.json", records.dump(record))
        except Exists:
            _log.warning("attempt %d of %s has an exit.json already, which is kept", number, self.name)

    def _started(self, number: int) -> int | None:
        """The pid of an attempt, from its started.json; None if there is none, or if it has an exit.json."""
        try:
            if read_ended(self.run, self.name, number) is not None:
                return None
            started = read_started(self.run, self.name, number)
        except BadInput:
            return None  # damaged, so not of a process that has just ended
        return None if started is None else started.pid

    def record(self) -> dict[str, Any]:
        """The job's part of `Supervisor.state`, as JSON."""
        return {
            "name": self.name,
            "pid": self.process.pid if self.process else None,
            "over": self.over,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "unrecorded": self.unrecorded,
            "relaunching": self._restart_at is not None,
            "restarts": self._restarts,
        }


def tail(path: Path, start: int) -> str:
    """The last 12 lines of a log after byte `start`, credentials masked; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(masking.mask(text).splitlines()[-_TAIL:])  # a credential that is cut off looks like none


# What logging, and an error on stderr, put before the words.
_PREFIX = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} )?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) )?"
    r"(?:elastic_tpu[\w.]*: )?(?:exit code \d+: |error: )?"
)


def last_line(text: str) -> str:
    """The last line of a log that says something, as a reason: without what stands before the words."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _PREFIX.sub("", lines[-1], count=1) if lines else ""
