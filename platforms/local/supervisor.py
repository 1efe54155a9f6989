"""The supervisor: parent of a run's workers and trainer on this machine, in a session of its own.

It restarts what dies, carries out rehearsed faults, answers launchers, and takes everything along when it ends
(PDEATHSIG): a run can lose its supervisor, but not leave processes behind. With no slices it runs a CPU job
(export, evaluation) by the same rules and ends with it. A run that is unclaimed for `local.unclaimed` ends itself.

    python -m elastic_tpu.platforms.local.supervisor --run URI --name slices
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import IO, Any

from ...runs.errors import ElasticTPUError, Infrastructure, Unreachable
from ...runs.record import paths
from ...runs.record.claim import load_claim
from ...runs.record.events import EventLog
from ...runs.record.run import Run, open_run
from ...runs.record.status import load_status
from ...runs.store import records
from .control import ask, control_socket
from .job import SupervisedJob
from .processes import identify
from .slices import runtime_folder
from .workers import Workers

_log = logging.getLogger("elastic_tpu.supervisor")
_TICK = 0.05  # seconds between looks at children; a death wakes it sooner
_GRACE = 120.0  # seconds a trainer has to save after SIGTERM


class Supervisor:
    """Everything of one run on this machine that needs a living parent."""

    def __init__(self, opened: Run, name: str, folder: Path) -> None:
        self.run, self.name, self.folder = opened, name, folder
        self.events = EventLog(opened.store, "local")
        self.count = opened.spec.slices.count if name == "slices" else 0
        log = folder / f"{name}.log"
        self.workers = Workers(folder, self.count, opened.spec.local.restart_delay, self.events, log)
        self.job: SupervisedJob | None = None
        self.ending: str | None = None
        self._ending_since = 0.0
        self._claim_checked = time.monotonic()
        self._born = time.monotonic()
        self._faults = self._pending_faults() if self.count else []
        self._step_checked = 0.0
        self._unwritten = False  # something of the workers changed that slices.json does not say yet

    # -- what a launcher may ask ------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request."""
        call = request.get("call")
        if call == "state":
            return self.state()
        if call == "launch":
            if self.ending:
                return {"error": f"this supervisor is ending ({self.ending})"}
            if self.job is None or self.job.over:
                self.job = SupervisedJob(self.run, request["job"], tuple(request["argv"]), self.folder)
                self.job.start()
            return self.state()
        if call == "kill":
            return self._kill(int(request["slice"]), request.get("down"), fault=None)
        if call == "cancel":
            if self.job is not None and not self.job.over:
                self.job.stop(float(request.get("grace", _GRACE)))
            return self.state()
        if call == "release":
            self.end(str(request.get("why", "released")))
            return {"ending": True, "pid": os.getpid()}
        return {"error": f"unknown call {call!r}"}

    def state(self) -> dict[str, Any]:
        """What a launcher needs to know."""
        return {
            "pid": os.getpid(),
            "ending": self.ending,
            "ready": self.workers.ready,
            "wanted": self.count,
            "workers": self.workers.records(),
            "job": self.job.record() if self.job else None,
        }

    def end(self, why: str) -> None:
        """Begin to end everything, in order: trainer, workers, this process."""
        if self.ending is None:
            self.ending, self._ending_since = why, time.monotonic()
            _log.info("ending: %s", why)
            if self.job is not None and not self.job.over:
                self.job.stop(_GRACE)

    # -- one look at everything -------------------------------------------------------------------------------

    def tick(self) -> bool:
        """One look; False when everything has ended."""
        if self.ending is None:
            self._unwritten |= self.workers.tick()
            if self._unwritten:
                self.write_slices("ready" if self.workers.ready == self.count else "partly")
                self._unwritten = False
        if self.job is not None:
            self.job.tick(wanted=self.ending is None)
        if self.ending is None:
            self._carry_out_faults()
            self._watch_claim()
            return not (self.count == 0 and self.job is not None and self.job.over)
        if self.job is not None and not self.job.over:
            return True
        self.workers.end()
        return False

    def write_slices(self, state: str) -> None:
        """slices.json: what is provisioned, and how to reach it."""
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
            return {"error": f"slice {index}: there are {self.count} slices, numbered from 0"}
        pid = self.workers.kill(index, float("inf") if down == "forever" else None if down is None else float(down))
        _log.info("killed the worker of slice %d (pid %s), fault %s", index, pid, fault)
        return {"slice": index, "pid": pid}

    def _pending_faults(self) -> list[int]:
        # On record in the run, so that a rehearsed loss happens once a run, not once a supervisor.
        done = {entry.name for entry in self.run.store.list("local/faults/")}
        return [i for i in range(len(self.run.spec.local.faults)) if f"local/faults/{i}.json" not in done]

    def _carry_out_faults(self) -> None:
        if not self._faults or self.job is None or time.monotonic() - self._step_checked < 0.2:
            return
        self._step_checked = time.monotonic()
        status = load_status(self.run.read(paths.STATUS))
        if status is None or status.phase not in ("training", "saving"):
            return
        for index in list(self._faults):
            fault = self.run.spec.local.faults[index]
            if status.step >= fault.after_step:
                body = {"time": records.timestamp(), "step": status.step, "slice": fault.slice}
                self.run.store.put(f"local/faults/{index}.json", records.dump(body))
                self._faults.remove(index)  # once it is on record: a storage that does not answer loses no fault
                self._kill(fault.slice, fault.down, fault=index)

    def _watch_claim(self) -> None:
        limit = self.run.spec.local.unclaimed
        if time.monotonic() - self._claim_checked < min(5.0, limit / 6):
            return
        self._claim_checked = time.monotonic()
        try:
            item = self.run.store.read(paths.CLAIM)
            claim = load_claim(item.data)
            if claim.state == "done":
                self.end(f"the run is over ({claim.holder} was done)")
                return
            age = (self.run.store.now() - item.updated).total_seconds()
            unclaimed = age > limit
            who = f"{claim.holder} last renewed its claim {age:.0f} s ago"
        except Unreachable:
            return
        except ElasticTPUError:
            unclaimed, who = time.monotonic() - self._born > limit, "nobody claimed it"
        if unclaimed:
            self.end(f"nobody drives this run ({who}; local.unclaimed is {limit:.0f} s)")


def serve(supervisor: Supervisor, server: socket.socket) -> None:
    """Answer and look until everything has ended."""
    wake, waker = socket.socketpair()
    for end in (wake, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.end("SIGTERM"))
    signal.signal(signal.SIGINT, lambda *_: supervisor.end("SIGINT"))
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    selector.register(wake, selectors.EVENT_READ)
    while _look(supervisor):
        for key, _ in selector.select(_TICK):
            if key.fileobj is wake:
                wake.recv(512)
            else:
                _serve_one(supervisor, server)


def _look(supervisor: Supervisor) -> bool:
    """One look; a storage that does not answer ends nothing, unless everything is to end anyway."""
    try:
        return supervisor.tick()
    except Unreachable as error:
        if supervisor.ending is not None:
            raise
        _log.warning("the run directory does not answer: %s", error)
        return True


def _serve_one(supervisor: Supervisor, server: socket.socket) -> None:
    connection, _ = server.accept()
    connection.settimeout(2.0)
    try:
        with connection, connection.makefile("rb") as stream:
            try:
                answer = supervisor.answer(json.loads(stream.readline() or b"{}"))
            except (ValueError, KeyError, ElasticTPUError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            connection.sendall(json.dumps(answer).encode() + b"\n")
    except OSError as error:
        _log.warning("a launcher went away: %s", error)


def _lock(path: Path, control: Path) -> IO[str] | None:
    """The lock of that name, with this process named in it; None when another supervisor serves already.

    One that is ending is waited for: its processes must be gone before new ones take their places.
    """
    lock = path.open("a+")
    deadline = time.monotonic() + 2 * _GRACE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            try:
                state = ask(control, "state")
            except Unreachable:
                state = None  # it is busy, with its end perhaps
            if state is not None and not state["ending"]:
                return None
            if time.monotonic() > deadline:
                raise Infrastructure(f"{path}: the supervisor before this one does not end") from None
            time.sleep(0.05)
    me = identify(os.getpid())
    lock.truncate(0)
    lock.write(json.dumps({"pid": me.pid, "started": me.started}))
    lock.flush()
    return lock


def main() -> None:
    """Entry point: leave the launcher's session, take the lock, serve, clean up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--name", required=True, choices=["slices", "export", "evaluate"])
    args = parser.parse_args()
    answers, ready = os.pipe()
    if os.fork():
        os.close(ready)
        os._exit(0 if os.read(answers, 1) else 1)  # the launcher waits for this one; the child belongs to nobody
    os.setsid()
    os.close(answers)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    opened = open_run(args.run)
    folder = runtime_folder(opened.run_id)
    path = control_socket(folder, args.name)
    lock = _lock(folder / f"{args.name}.lock", path)
    if lock is None:
        os.write(ready, b"1")
        return
    path.unlink(missing_ok=True)
    supervisor = Supervisor(opened, args.name, folder)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = path.with_suffix(f".{os.getpid()}")
    server.bind(str(temporary))
    server.listen(64)
    supervisor.write_slices("requested")
    temporary.rename(path)
    os.write(ready, b"1")
    os.close(ready)
    try:
        serve(supervisor, server)
        if supervisor.name == "slices":
            for index in range(supervisor.count):
                supervisor.events.write("slice.released", slice=index)
        supervisor.write_slices("released")
    except BaseException:
        _log.exception("the supervisor failed; its processes end with it")
        raise
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
