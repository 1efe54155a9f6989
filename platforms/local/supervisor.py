"""The supervisor: the parent process of a run's workers and trainer on this machine, in a session of its own.

It restarts workers and trainer, carries out rehearsed faults and answers launchers. Its children die with it
(PDEATHSIG), so a run whose supervisor is killed leaves no processes behind. A supervisor named `export` or `evaluate`
has no workers: it runs that CPU job by the same rules and ends with it. A supervisor ends itself when its run has been
unclaimed for `local.unclaimed`, or is done.

The process around it (lock, socket, signals) is `supervisor_process`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from ...runs.errors import ElasticTPUError, Unreachable
from ...runs.record import paths
from ...runs.record.claim import load_claim
from ...runs.record.events import EventLog
from ...runs.record.run import Run
from ...runs.spec.run_spec import Fault
from ...runs.store import records
from ...runs.units import format_duration, show_duration
from .control import control_socket
from .faults import RehearsedFaults
from .job import SupervisedJob
from .processes import identify
from .unclaimed import Unclaimed
from .workers import Workers

_log = logging.getLogger("elastic_tpu.supervisor")
GRACE = 120.0  # seconds a trainer has to save after SIGTERM


class Supervisor:
    """The workers and the job of one supervisor process.

    Args:
      name: slices, export or evaluate; only `slices` has workers.
      folder: `runtime_folder` of the run.

    Attributes:
      ending: why it ends; None while it does not.
    """

    def __init__(self, opened: Run, name: str, folder: Path) -> None:
        self.run, self.name, self.folder = opened, name, folder
        self.events = EventLog(opened.store, "local")
        self.count = opened.spec.slices.count if name == "slices" else 0
        log = folder / f"{name}.log"
        self.workers = Workers(folder, self.count, opened.spec.local.restart_delay, self.events, log)
        self.job: SupervisedJob | None = None
        self.ending: str | None = None
        self._look_every = min(5.0, opened.spec.local.unclaimed / 6)  # seconds between two looks at the claim
        self._claim_checked = time.monotonic()
        self._unclaimed = Unclaimed(self._claim_checked, 2 * self._look_every)
        self._faults = RehearsedFaults(opened, self._carry_out) if self.count else None
        self._unwritten = False  # the workers changed and slices.json does not say so yet

    # -- what a launcher may ask ------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request of a launcher; returns the answer. Both are JSON.

        `{"call": "state"}`; `{"call": "launch", "job": ..., "argv": [...]}`, which adopts a job that runs;
        `{"call": "kill", "slice": ..., "down": seconds | "forever"}`; `{"call": "cancel", "grace": seconds}`;
        `{"call": "release", "why": ...}`. An answer with `error` is a refusal.
        """
        call = request.get("call")
        if call == "state":
            return self.state()
        if call == "launch":
            if self.ending:
                return {"error": f"this supervisor is ending ({self.ending}); try again in a moment"}
            if self.job is None or self.job.over:
                self.job = SupervisedJob(self.run, request["job"], tuple(request["argv"]), self.folder)
                self.job.start()
            return self.state()
        if call == "kill":
            return self._kill(int(request["slice"]), request.get("down"), fault=None)
        if call == "cancel":
            if self.job is not None and not self.job.over:
                self.job.stop(float(request.get("grace", GRACE)))
            return self.state()
        if call == "release":
            self.end(str(request.get("why", "released")))
            return {"ending": True, "pid": os.getpid()}
        return {"error": f"unknown call {call!r}"}

    def state(self) -> dict[str, Any]:
        """What a launcher may ask for: pid, why it ends (or None), slices ready and wanted, workers, the job."""
        return {
            "pid": os.getpid(),
            "ending": self.ending,
            "ready": self.workers.ready,
            "wanted": self.count,
            "workers": self.workers.records(),
            "job": self.job.record() if self.job else None,
        }

    def end(self, why: str) -> None:
        """Begin to end, because of `why`: first the job, then the workers, then this process."""
        if self.ending is None:
            self.ending = why
            _log.info("ending: %s", why)
            if self.job is not None and not self.job.over:
                self.job.stop(GRACE)

    # -- one look at everything -------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Look at everything once and act; returns False once everything has ended.

        Raises:
          Unreachable: something could not be recorded, and is tried again by the next call; all else was done.
        """
        unanswered: Unreachable | None = None
        for look in (self._look_at_slices, self._look_at_job, self._look_at_faults, self._look_at_claim):
            try:
                look()
            except Unreachable as error:  # a full disk must not hide the end of the trainer, nor that of the claim
                unanswered = unanswered or error
        if unanswered is not None:
            raise unanswered
        if self.ending is None:
            return not (self.count == 0 and self.job is not None and self.job.over)
        if self.job is not None and not self.job.over:
            return True
        self.workers.end()
        return False

    def _look_at_slices(self) -> None:
        if self.ending is not None:
            return
        self._unwritten |= self.workers.tick()
        if self._unwritten:
            self.write_slices("ready" if self.workers.ready == self.count else "partly")
            self._unwritten = False

    def _look_at_job(self) -> None:
        if self.job is not None:
            self.job.tick(wanted=self.ending is None)

    def _look_at_faults(self) -> None:
        if self._faults is not None and self.job is not None and self.ending is None:
            self._faults.tick()

    def write_slices(self, state: str) -> None:
        """Write slices.json: the slices' state, and how to reach this supervisor. Only `slices` has one."""
        if self.name != "slices":
            return
        me = identify(os.getpid())
        record = {
            "run_id": self.run.run_id,
            "platform": "local",
            "state": state,
            "host": socket.gethostname(),
            "pid": me.pid,
            "started": me.started,
            "address": str(control_socket(self.folder, self.name)),
            "wanted": self.count,
            "slices": self.workers.records() if state != "released" else [],
            "reason": self.ending or "",
        }
        self.run.store.put(paths.SLICES, records.dump(record))

    def _kill(self, index: int, down: Any, fault: int | None) -> dict[str, Any]:
        if not 0 <= index < self.count:
            return {"error": f"slice {index}: this run has {self.count} slices, numbered from 0"}
        pid = self.workers.kill(index, float("inf") if down == "forever" else None if down is None else float(down))
        _log.info("killed the worker of slice %d (pid %s), fault %s", index, pid, fault)
        return {"slice": index, "pid": pid}

    def _carry_out(self, fault: Fault, number: int) -> None:
        self._kill(fault.slice, fault.down, fault=number)

    def _look_at_claim(self) -> None:
        limit = self.run.spec.local.unclaimed
        now = time.monotonic()
        if self.ending is not None or now - self._claim_checked < self._look_every:
            return
        self._claim_checked = now
        generation: str | None = None
        try:
            item = self.run.store.read(paths.CLAIM)
            claim = load_claim(item.data)
            if claim.state == "done":
                self.end(f"the run is over ({claim.holder} released its claim as done)")
                return
            generation = item.generation
            age = (self.run.store.now() - item.updated).total_seconds()
            who = f"{claim.holder} last renewed its claim {show_duration(age)} ago"
        except Unreachable:
            return  # not counted: a launcher cannot renew the claim now
        except ElasticTPUError:
            who = "nobody claimed it"
        if self._unclaimed.look(generation, now) > limit:
            self.end(f"nobody drives this run ({who}; local.unclaimed is {format_duration(limit)})")
