"""The process of a supervisor: leaves the launcher's session, takes the lock of its name, answers on a socket.

python -m elastic_tpu.platforms.local.supervisor_process --run URI --name slices|export|evaluate
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
from typing import IO

from ...runs.errors import ElasticTPUError, Infrastructure, Unreachable
from ...runs.record.run import open_run
from .control import ask, control_socket
from .folder import discard, is_at, lock_file, open_in_folder
from .processes import identify
from .runtime_folder import runtime_folder
from .supervisor import GRACE, Supervisor

_log = logging.getLogger("elastic_tpu.supervisor")
_REPEATS = 60.0  # seconds in which a line of the log is not repeated
_TICK = 0.05  # seconds between two looks at the children; the death of one is noticed at once


class CountRepeats(logging.Filter):
    """Drops a line that equals the one before, for a minute, and counts it: the next line says how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self._text, self._since, self._count = "", 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        text = record.getMessage()
        if text == self._text and record.created - self._since < _REPEATS:
            self._count += 1
            return False
        if self._count:
            record.msg, record.args = f"(the line before came {self._count} times more) {text}", ()
        self._text, self._since, self._count = text, record.created, 0
        return True


def serve(supervisor: Supervisor, server: socket.socket) -> None:
    """Answer launchers at the socket `server`, and call `tick`, until everything has ended."""
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
    """`tick`, but a storage that does not answer is only logged, unless the supervisor is ending."""
    try:
        return supervisor.tick()
    except Unreachable as error:
        if supervisor.ending is not None:
            raise
        _log.warning("the storage of the run directory does not answer, trying again: %s", error)
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
        _log.warning("a launcher closed the connection before it was answered: %s", error)


def _lock(path: Path, control: Path) -> IO[str] | None:
    """Take the lock file of a supervisor's name, and write this process into it.

    Waits for an earlier supervisor that is ending, since its processes must be gone before new ones start.

    Args:
      control: the socket of that name.

    Returns:
      The open lock file, or None if another supervisor serves already.

    Raises:
      Infrastructure: the earlier supervisor does not end.
    """
    lock = open_in_folder(path)
    deadline = time.monotonic() + 2 * GRACE
    while True:
        if not is_at(lock, path):  # a release has removed the folder meanwhile, and the lock with it
            lock.close()
            lock = open_in_folder(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(lock, path):
                break
        except BlockingIOError:
            try:
                state = ask(control, "state")
            except Unreachable:
                state = None  # busy, perhaps with ending
            if state is not None and not state["ending"]:
                return None
            if time.monotonic() > deadline:
                raise Infrastructure(f"the earlier supervisor that holds {path} does not end; kill it") from None
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
        os._exit(0 if os.read(answers, 1) else 1)  # the launcher waits for this process, not for the child
    os.setsid()
    os.close(answers)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger().handlers[0].addFilter(CountRepeats())
    opened = open_run(args.run)
    folder = runtime_folder(opened.run_id)
    path = control_socket(folder, args.name)
    lock = _lock(lock_file(folder, args.name), path)
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
        _log.exception("the supervisor failed; its workers and its job end with it")
        raise
    finally:
        path.unlink(missing_ok=True)
    lock.close()
    if supervisor.job is None or supervisor.job.exit_code == 0:  # otherwise messages name the logs in it
        discard(folder)


if __name__ == "__main__":
    main()
