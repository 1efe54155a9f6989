"""The local platform in the launcher: simulated slices and jobs on this machine, all run by supervisor processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from ...runs import extras
from ...runs.errors import BadInput, Damaged, Exists, Infrastructure, Problem
from ...runs.judge.verdict import Observation
from ...runs.record import paths, run
from ...runs.record.attempts import read_ended, set_aside
from ...runs.record.claim import is_stale, read_claim
from ...runs.record.events import EventLog
from ...runs.record.run import Run
from ...runs.record.slices import read_slices
from ...runs.store import records
from ...runs.units import format_duration
from ..base import Job, ReleaseReport, SliceState
from .processes import ProcessId
from .runtime_folder import runtime_folder
from .supervisors import Supervisors

_END = 150.0  # seconds for a release: more than the trainer's grace of 120


class LocalPlatform:
    """`Platform` on this machine. The supervisor `slices` runs workers and trainer, `export` and `evaluate` a CPU job.

    Besides what every platform raises: Unreachable if a supervisor lives and does not answer.
    """

    def __init__(self, opened: Run) -> None:
        self._run = opened
        self._supervisors = Supervisors(opened.uri, runtime_folder(opened.run_id))
        self._events = EventLog(opened.store, "local")

    def check(self) -> None:
        """Refuse another host than the one where the slices are, unless they have been given up there.

        Raises:
          Infrastructure: the slices are on another host.
        """
        self._check_host()

    def acquire(self) -> None:
        """Start the supervisor of the slices, unless it is there.

        Raises:
          Infrastructure: the supervisor does not start; names the log.
        """
        state = self._supervisors.state("slices")
        if state is not None and not state["ending"]:
            return  # adopted; if it is ending, a new supervisor waits for its end
        if not self._run.spec.local.trainer:
            extras.require("trainer", "platform: 'local',")
        intent: dict[str, Any] = {
            "run_id": self._run.run_id,
            "platform": "local",
            "state": "requested",
            "host": socket.gethostname(),
        }
        intent |= {"wanted": self._run.spec.slices.count, "slices": [], "pid": None, "started": None}
        try:
            self._run.store.create(paths.SLICES, records.dump(intent))
        except Exists:
            self._set_aside_damaged()
            self._run.store.put(paths.SLICES, records.dump(intent))
        for index in range(self._run.spec.slices.count):
            self._events.write("slice.requested", slice=index)
        self._supervisors.start("slices")

    def slices(self) -> SliceState:
        """Ask the supervisor; if there is none, read slices.json."""
        wanted = self._run.spec.slices.count
        state = self._supervisors.state("slices")
        if state is not None:
            if state["ending"]:
                return SliceState("failed", 0, wanted, f"the slices are being released: {state['ending']}")
            ready = int(state["ready"])
            kind: Literal["ready", "partly", "requested"] = (
                "ready" if ready == wanted else "partly" if ready else "requested"
            )
            return SliceState(kind, ready, wanted, f"{ready} of {wanted} slices ready")
        record = self._record()
        if record is None:
            return SliceState("absent", 0, wanted)
        if record["state"] == "released":
            return SliceState("released", 0, wanted, str(record.get("reason", "")))
        return SliceState(
            "failed",
            0,
            wanted,
            f"the supervisor of the slices (pid {record.get('pid')}) is gone, and the slices with it",
        )

    def release(self, jobs: bool = True, waiting: Callable[[str], None] = lambda text: None) -> ReleaseReport:
        """End the supervisors of this run and wait until their processes are gone, by pid.

        Raises:
          Infrastructure: the slices are on another host.
        """
        self._check_host()
        record = self._record() or {}
        existed: list[str] = []
        left: list[str] = []
        names = ("slices", "export", "evaluate") if jobs else ("slices",)
        for name in names:
            try:
                state = self._supervisors.state(name)
                if state is not None:
                    self._supervisors.ask(name, "release", why="released")
                    existed += self._names(name, state)
                processes = self._supervisors.processes(name, state)
            except Infrastructure:  # the supervisor does not answer, but a signal may reach it
                processes = [p for p in self._supervisors.processes(name, None) if p.alive()]
                existed += [f"supervisor of {name}, which did not answer"] if processes else []
                _signal(processes, signal.SIGTERM)
            alive = self._wait_gone(processes, _END, waiting)
            _signal(alive, signal.SIGKILL)  # the supervisor did not end in time; its children die with it
            left += [f"pid {p.pid}" for p in self._wait_gone(alive, 5.0)]
        for name in names if not left else ():
            with self._supervisors.without(name) as unserved:
                if not unserved:
                    continue  # a new supervisor serves already, and the files are its own
                if name == "slices" and record and record.get("state") != "released":
                    self._mark_released(record, existed)
                self._supervisors.tidy(name)
        if not left:
            self._supervisors.discard()
        return ReleaseReport(tuple(existed), tuple(existed) if not left else (), tuple(left))

    def launch(self, job: Job, waiting: Callable[[str], None] = lambda text: None) -> None:
        """Start a job under its supervisor; adopt one that runs.

        Raises:
          Infrastructure: the job needs slices and there are none, or its supervisor does not start.
        """
        del waiting  # the supervisor answers at once
        name = "slices" if job.slices else job.name
        for _ in range(3):  # the supervisor of a CPU job ends with the job, perhaps between two requests
            if self._supervisors.state(name) is None:
                if job.slices:
                    raise Infrastructure(
                        f"{job.name} needs slices, and there are none: {self.slices().detail or 'run provision first'}"
                    )
                self._supervisors.start(name)
            answer = self._supervisors.ask(name, "launch", job=job.name, argv=list(job.argv))
            if answer is not None:
                return
        raise Infrastructure(
            f"the supervisor of {name} ended three times at once; see its log {self._supervisors.log(name)}"
        )

    def observe(self, job: Job) -> Observation:
        """Ask the supervisor, or read the job's last attempt."""
        state = self._supervisors.state("slices" if job.slices else job.name)
        running = state["job"] if state is not None else None
        if running is not None and running["name"] == job.name:
            evidence = {"pid": running["pid"], "restarts": running["restarts"]}
            if running["over"]:
                return Observation("over", running["exit_code"], detail=running["reason"], evidence=evidence)
            if running["relaunching"]:
                return Observation("over", relaunching=True, detail=running["reason"], evidence=evidence)
            if running["unrecorded"]:
                return Observation("running", detail=running["unrecorded"], evidence=evidence, trainer_lives=False)
            return Observation("running", evidence=evidence)
        number = max(run.attempts_of(self._run, job.name), default=0)
        if number == 0:
            return Observation("absent")
        try:
            ended = read_ended(self._run, job.name, number)
            detail = f"{job.name} died together with its supervisor (attempt {number})"
        except Damaged as error:
            ended, detail = None, f"how attempt {number} of {job.name} ended is not known: {error}"
        if ended is None:
            return Observation("over", None, detail=detail, evidence={"attempt": number})
        evidence = {"attempt": number, "tail": ended.tail}
        return Observation("over", ended.code, detail=ended.reason, evidence=evidence)

    def free_stuck_pods(self, job: Job) -> None:
        """Nothing: a process of this machine cannot get stuck on a node."""

    def cancel(self, job: Job, now: bool = False) -> None:
        """SIGTERM to the job's process, then SIGKILL: after 120 s, or at once if `now`. The slices stay."""
        name = "slices" if job.slices else job.name
        self._supervisors.ask(name, "cancel", **({"grace": 0.0} if now else {}))

    def kill_slice(self, index: int, whole: bool = False) -> str:
        """SIGKILL the worker of a slice. A simulated slice has one worker, so `whole` changes nothing."""
        del whole
        self._check_host()
        count = self._run.spec.slices.count
        if not 0 <= index < count:
            raise BadInput([Problem("slice", index, f"this run has {count} slices, numbered from 0")])
        answer = self._supervisors.ask("slices", "kill", slice=index)
        if answer is None:
            raise BadInput(f"{self._run.uri}: no slices are provisioned now, so there is no worker to kill")
        if answer["pid"] is None:
            return f"slice {index}: has no worker now; it is lost already"
        return f"slice {index}: worker pid {answer['pid']} killed (SIGKILL)"

    # -- helpers ----------------------------------------------------------------------------------------------

    def _record(self) -> dict[str, Any] | None:
        """slices.json; None if there is none, or if it is damaged: sockets and pids tell what there is.

        None as well for a copied directory with the slices.json of the run that it was copied from.
        """
        try:
            return read_slices(self._run)
        except BadInput:
            return None

    def _set_aside_damaged(self) -> None:
        try:
            read_slices(self._run)
        except Damaged:
            aside = set_aside(self._run.store, paths.SLICES, self._run.store.read(paths.SLICES))
            self._events.write("record.rebuilt", file=paths.SLICES, aside=aside, how="the slices that are taken now")

    def _check_host(self) -> None:
        record = self._record()
        here = socket.gethostname()
        if record and record.get("state") != "released" and record.get("host", here) != here:
            seen = read_claim(self._run.store)
            if seen is None or seen.claim.state == "done" or is_stale(seen, self._run.store.now()):
                return  # unclaimed for so long that the slices have ended themselves, or their host is gone
            unclaimed = format_duration(self._run.spec.local.unclaimed)
            raise Infrastructure(
                f"the slices of this run are processes of host {record['host']}, this is {here}; go there, or, if that "
                f"host is gone: `elastic-tpu release {self._run.uri}` here, once nobody has driven it for {unclaimed}"
            )

    @staticmethod
    def _names(name: str, state: dict[str, Any]) -> list[str]:
        if name == "slices":
            return [f"slice {w['index']}" for w in state["workers"]]
        return [f"job {name}"]

    @staticmethod
    def _wait_gone(
        processes: list[ProcessId], seconds: float = _END, waiting: Callable[[str], None] = lambda text: None
    ) -> list[ProcessId]:
        deadline = time.monotonic() + seconds
        while (alive := [p for p in processes if p.alive()]) and time.monotonic() < deadline:
            waiting("waiting until the run's processes are gone; the trainer may be saving")
            time.sleep(0.02)
        return alive

    def _mark_released(self, record: dict[str, Any], existed: list[str]) -> None:
        current = self._record() or record
        if current.get("state") == "released":
            return
        # The supervisor was killed and its processes with it, so that it could not write this itself.
        self._run.store.put(paths.SLICES, records.dump({**current, "state": "released", "slices": []}))
        for index in range(self._run.spec.slices.count):
            self._events.write("slice.released", slice=index, with_supervisor=not existed)


def _signal(processes: list[ProcessId], signum: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signum)
