"""A job under a supervisor: its process, its attempts in the run directory, and whether it is started again."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ...runs.errors import ElasticTPUError, Exists, ExitCode
from ...runs.record import paths, proof, run
from ...runs.record.claim import load_claim
from ...runs.record.run import Run
from ...runs.store import records
from . import relaunch
from .processes import end_group, spawn_child

_log = logging.getLogger("elastic_tpu.supervisor")
_PAUSE = 0.5  # seconds before a dead trainer is started again


class SupervisedJob:
    """One job. `tick` looks once; `over` once it will not be started again."""

    def __init__(self, opened: Run, name: str, argv: tuple[str, ...], folder: Path) -> None:
        self.run, self.name, self.argv = opened, name, argv
        self.log = folder / f"{name}.out"
        self.process: subprocess.Popen[bytes] | None = None
        self.over = False
        self.exit_code: int | None = None
        self.reason = ""
        self._restarts = 0
        self._proven_at_restart = -1  # the newest step there ever was; -1 before the first
        self._again_at: float | None = None
        self._kill_at: float | None = None
        self._began = 0

    def start(self) -> None:
        """Start its process."""
        command = self.run.spec.local.trainer or [sys.executable, "-m", "elastic_tpu.trainer"]
        env = dict(os.environ)
        for name, reference in self.run.spec.secrets.items():
            if reference.env and reference.env in os.environ:
                env[name] = os.environ[reference.env]
        argv = [*command, *self.argv]
        _log.info("starting %s: %s", self.name, shlex.join(argv))
        self._again_at = None
        with self.log.open("ab") as output:
            self._began = output.tell()
            try:
                self.process = spawn_child(argv, output, env)
            except OSError as error:
                why = error.strerror or str(error)
                self.over, self.exit_code = True, int(ExitCode.BAD_INPUT)
                self.reason = f"local.trainer: {argv[0]!r} cannot be started ({why}); give a command that can"
                _log.error("%s", self.reason)

    def stop(self, grace: float) -> None:
        """SIGTERM at the first call, SIGKILL after `grace` seconds; of several calls the shortest grace counts."""
        first = self._kill_at is None
        kill_at = time.monotonic() + grace
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        self._again_at = None
        if self.process is None:
            self.over = True
        elif first:
            self.process.terminate()  # once: a second one would interrupt what the first made it do

    def tick(self, wanted: bool) -> None:
        """Look at the process once."""
        if self.over:
            return
        if self._again_at is not None:
            if not wanted:
                self.over = True
            elif time.monotonic() >= self._again_at:
                self.start()
            return
        if self.process is None:
            return
        code = self.process.poll()
        if code is None:
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                end_group(self.process, signal.SIGKILL)
            return
        end_group(self.process, signal.SIGKILL)  # what it started ends with it
        state = self._claim_state()
        self._ended(code, wanted and self._kill_at is None and state in ("held", "unknown"), state == "stop")

    def _ended(self, code: int, wanted: bool, stopped: bool) -> None:
        assert self.process is not None
        if self.name == "train":
            newest = max(proof.recorded_steps(self.run.store), default=-1)
            if newest > self._proven_at_restart:  # a checkpoint that was set aside is no progress
                self._restarts, self._proven_at_restart = 0, newest
        decision = relaunch.decide(code, self._restarts, self.run.spec.patience.head_restarts, wanted, stopped)
        last_words = tail(self.log, self._began)
        self.reason = decision.reason or (_last_line(last_words) if code else "")
        self._write_exit(code, decision, last_words)
        _log.info("%s: exit code %d; %s", self.name, code, decision.reason or "over")
        self.process = None
        if decision.again:
            self._restarts += 1
            self._again_at = time.monotonic() + _PAUSE
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
            number = newest + 1  # it died before it could register itself
            body = {"pid": self.process.pid, "by": "supervisor", "time": records.timestamp()}
            self.run.store.put(f"{folder}/{number}/started.json", records.dump(body))
        try:
            self.run.store.create(f"{folder}/{number}/exit.json", records.dump(record))
        except Exists:
            _log.warning("attempt %d of %s has an exit on record already", number, self.name)

    def _started(self, number: int) -> int | None:
        """The pid of an attempt that has not ended yet."""
        folder = f"{paths.attempts(self.name)}/{number}"
        if self.run.read(f"{folder}/exit.json") is not None:
            return None
        started = self.run.read(f"{folder}/started.json")
        return None if started is None else started.get("pid")

    def record(self) -> dict[str, Any]:
        """For the answer to a launcher."""
        return {
            "name": self.name,
            "pid": self.process.pid if self.process else None,
            "over": self.over,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "relaunching": self._again_at is not None,
            "restarts": self._restarts,
        }


def tail(path: Path, start: int = 0, lines: int = 12) -> str:
    """The last lines of a log, from byte `start` on."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
