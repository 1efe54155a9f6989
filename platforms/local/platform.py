"""The local platform: simulated slices and jobs on this machine, behind the same calls as any other platform."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from ...runs.errors import BadInput, Exists, Infrastructure, Problem, Unreachable
from ...runs.judge.verdict import Observation
from ...runs.record import paths, run
from ...runs.record.claim import is_stale, read_claim
from ...runs.record.events import EventLog
from ...runs.record.run import Run
from ...runs.spec.run_spec import format_duration
from ...runs.store import records
from ..base import Job, ReleaseReport, SliceState
from .control import ask, control_socket
from .job import tail
from .processes import ProcessId, identify
from .slices import runtime_folder

_START = 210.0  # seconds a supervisor may take until it answers; one before it that is ending is waited for
_SILENT = 5.0  # seconds a supervisor may be there without an answer: it starts, or is about to end
_END = 150.0  # seconds a release may take: the trainer's grace, and some


class LocalPlatform:
    """Slices as processes of this machine. Everything it starts hangs on one supervisor process a name."""

    def __init__(self, opened: Run) -> None:
        self._run = opened
        self._folder = runtime_folder(opened.run_id)
        self._events = EventLog(opened.store, "local")

    def acquire(self) -> None:
        """Start the supervisor of the slices, unless it is there."""
        self._check_host()
        state = self._state("slices")
        if state is not None and not state["ending"]:
            return  # adopted; one that is ending is waited for by the next one
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
            self._run.store.put(paths.SLICES, records.dump(intent))
        for index in range(self._run.spec.slices.count):
            self._events.write("slice.requested", slice=index)
        self._start_supervisor("slices")

    def slices(self) -> SliceState:
        """Ask the supervisor, or read what it left."""
        wanted = self._run.spec.slices.count
        state = self._state("slices")
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
        return SliceState("failed", 0, wanted, f"the supervisor of the slices (pid {record['pid']}) is gone")

    def release(self, jobs: bool = True, waiting: Callable[[str], None] = lambda text: None) -> ReleaseReport:
        """End the supervisors of this run and verify by pid that nothing is left."""
        self._check_host()
        record = self._record() or {}
        existed: list[str] = []
        left: list[str] = []
        names = ("slices", "export", "evaluate") if jobs else ("slices",)
        for name in names:
            try:
                state = self._state(name)
                if state is not None:
                    ask(control_socket(self._folder, name), "release", why="released")
                    existed += self._names(name, state)
                processes = self._pids(name, state)
            except Infrastructure:  # it is there and does not answer; a signal reaches it even so
                processes = [p for p in self._pids(name, None) if p.alive()]
                existed += [f"supervisor of {name}, which did not answer"] if processes else []
                _signal(processes, signal.SIGTERM)
            alive = self._wait_gone(processes, _END, waiting)
            _signal(alive, signal.SIGKILL)  # it did not end in order, so it ends, and its children with it
            left += [f"pid {p.pid}" for p in self._wait_gone(alive, 5.0)]
        for name in names if not left else ():
            with self._unserved(name) as unserved:
                if not unserved:
                    continue  # a successor serves already, and what is there is its own
                if name == "slices" and record and record.get("state") != "released":
                    self._mark_released(record, existed)
                self._tidy(name)
        return ReleaseReport(tuple(existed), tuple(existed) if not left else (), tuple(left))

    def launch(self, job: Job, waiting: Callable[[str], None] = lambda text: None) -> None:
        """Start a job under its supervisor; one that runs is adopted."""
        del waiting  # the supervisor answers at once
        name = "slices" if job.slices else job.name
        for _ in range(3):  # a supervisor of a CPU job ends with it, perhaps between two questions
            if self._state(name) is None:
                if job.slices:
                    raise Infrastructure(
                        f"{job.name} needs slices, and there are none: {self.slices().detail or 'provision first'}"
                    )
                self._start_supervisor(name)
            answer = ask(control_socket(self._folder, name), "launch", job=job.name, argv=list(job.argv))
            if answer is not None:
                return
        raise Infrastructure(f"the supervisor of {name} ends at once; see {self._folder / name}.log")

    def observe(self, job: Job) -> Observation:
        """Ask the supervisor, or read the job's last attempt."""
        state = self._state("slices" if job.slices else job.name)
        running = state["job"] if state is not None else None
        if running is not None and running["name"] == job.name:
            evidence = {"pid": running["pid"], "restarts": running["restarts"]}
            if running["over"]:
                return Observation("over", running["exit_code"], detail=running["reason"], evidence=evidence)
            if running["relaunching"]:
                return Observation("over", relaunching=True, detail=running["reason"], evidence=evidence)
            return Observation("running", evidence=evidence)
        number = max(run.attempts_of(self._run, job.name), default=0)
        if number == 0:
            return Observation("absent")
        ended = self._run.read(f"{paths.attempts(job.name)}/{number}/exit.json")
        if ended is None:
            detail = f"{job.name} died together with its supervisor (attempt {number})"
            return Observation("over", None, detail=detail, evidence={"attempt": number})
        evidence = {"attempt": number, "tail": ended["tail"]}
        return Observation("over", ended["code"], detail=ended["reason"], evidence=evidence)

    def cancel(self, job: Job, now: bool = False) -> None:
        """SIGTERM, then SIGKILL; the slices stay."""
        path = control_socket(self._folder, "slices" if job.slices else job.name)
        ask(path, "cancel", **({"grace": 0.0} if now else {}))

    def kill_slice(self, index: int, whole: bool = False) -> str:
        """SIGKILL the worker of a slice; a simulated slice has one worker, so `whole` makes no difference."""
        del whole
        self._check_host()
        count = self._run.spec.slices.count
        if not 0 <= index < count:
            raise BadInput([Problem("slice", index, f"this run has {count} slices, numbered from 0")])
        answer = ask(control_socket(self._folder, "slices"), "kill", slice=index)
        if answer is None:
            raise BadInput(f"{self._run.uri}: no slices are provisioned now; there is nothing to kill")
        if answer["pid"] is None:
            return f"slice {index} is down already"
        return f"slice {index}: worker pid {answer['pid']} killed (SIGKILL)"

    # -- helpers ----------------------------------------------------------------------------------------------

    def _state(self, name: str) -> dict[str, Any] | None:
        """What the supervisor says of itself. Only its death is taken for one: it may be starting, or about to end."""
        deadline = time.monotonic() + _SILENT
        while True:
            state = ask(control_socket(self._folder, name), "state")
            if state is not None or not any(p.alive() for p in self._pids(name, None)):
                return state
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"the supervisor of {name} is there and does not answer; its log is {self._folder / name}.log"
                )
            time.sleep(0.02)

    def _start_supervisor(self, name: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_uid != os.getuid():
            raise Infrastructure(f"{self._folder} belongs to another user; remove it or set TMPDIR")
        path = control_socket(self._folder, name)
        if len(str(path)) > 100:
            raise Infrastructure(f"{path} is too long for a socket; set TMPDIR to a shorter folder")
        log = self._folder / f"{name}.log"
        argv = [sys.executable, "-m", "elastic_tpu.platforms.local.supervisor", "--run", self._run.uri, "--name", name]
        with log.open("ab") as output:
            began = output.tell()
            # Its own session: a Ctrl-C in this moment is the launcher's to handle.
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = child.wait(_START)
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
            except KeyboardInterrupt:
                child.wait(_SILENT)  # what is half started could not be asked to end
                raise
        if code:  # it returns as soon as the supervisor answers, or has failed
            raise Infrastructure(f"the supervisor of {name} did not start; its log {log} ends:\n{tail(log, began)}")

    def _record(self) -> dict[str, Any] | None:
        """slices.json; a damaged one counts as none, since sockets and pids tell more than it does."""
        try:
            return self._run.read(paths.SLICES)
        except BadInput:
            return None

    def _check_host(self) -> None:
        record = self._record()
        here = socket.gethostname()
        if record and record.get("state") != "released" and record.get("host", here) != here:
            seen = read_claim(self._run.store)
            if seen is None or seen.claim.state == "done" or is_stale(seen, self._run.store.now()):
                return  # nobody has driven it for so long that they have ended themselves, or their host is gone
            unclaimed = format_duration(self._run.spec.local.unclaimed)
            raise Infrastructure(
                f"the slices of this run are processes of host {record['host']}, this is {here}; go there, or, if that "
                f"host is gone: `elastic-tpu release {self._run.uri}` here, once nobody has driven it for {unclaimed}"
            )

    def _pids(self, name: str, state: dict[str, Any] | None) -> list[ProcessId]:
        pids: list[ProcessId] = []
        if state is not None:
            pids.append(identify(int(state["pid"])))
            pids += [identify(int(w["pid"])) for w in state["workers"] if w["pid"]]
            if state["job"] and state["job"]["pid"]:
                pids.append(identify(int(state["job"]["pid"])))
        else:
            with suppress(OSError, ValueError, KeyError):  # there was none, or it was killed while it started
                holder = json.loads((self._folder / f"{name}.lock").read_text())
                pids.append(ProcessId(int(holder["pid"]), float(holder["started"])))
        return pids

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
        # The supervisor was killed: its processes went with it, what is left to do is to say so.
        self._run.store.put(paths.SLICES, records.dump({**current, "state": "released", "slices": []}))
        for index in range(self._run.spec.slices.count):
            self._events.write("slice.released", slice=index, with_supervisor=not existed)

    @contextmanager
    def _unserved(self, name: str) -> Iterator[bool]:
        """Whether no supervisor of that name is there, and none comes in the meantime."""
        if not self._folder.exists():
            yield True  # none was ever started since the machine was
            return
        with (self._folder / f"{name}.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _tidy(self, name: str) -> None:
        control_socket(self._folder, name).unlink(missing_ok=True)
        for path in self._folder.glob("*.sock") if name == "slices" else ():
            path.unlink(missing_ok=True)


def _signal(processes: list[ProcessId], signum: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signum)
