"""The supervisors of a run as a launcher sees them: asked by socket, started, and found by pid."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from ...runs.errors import Infrastructure, Unreachable
from . import folder as runtime
from .control import ask, control_socket
from .job import tail
from .processes import ProcessId, identify, is_ours
from .runtime_folder import checked, make_runtime_folder, why_not_tmpdir

_START = 210.0  # seconds until a new supervisor answers; it waits for an earlier one that is ending
_SILENT = 5.0  # seconds that a supervisor may live without answering: it is starting, or about to end
_log = logging.getLogger(__name__)
_MODULE = "elastic_tpu.platforms.local.supervisor_process"


class Supervisors:
    """The supervisors of one run: `slices`, and `export` and `evaluate` while those jobs run.

    Args:
      uri: of the run.
      folder: `runtime_folder` of the run.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri, self._where = uri, folder

    @property
    def _folder(self) -> Path:
        return checked(self._where)

    def log(self, name: str) -> Path:
        """The supervisor's own log."""
        return self._folder / f"{name}.log"

    def ask(self, name: str, call: str, **arguments: Any) -> dict[str, Any] | None:
        """As `control.ask`."""
        return ask(control_socket(self._folder, name), call, **arguments)

    def state(self, name: str) -> dict[str, Any] | None:
        """The answer of a supervisor to `state`; None if its process is gone.

        One that lives and does not answer is asked again for a while: it may be starting, or about to end.

        Raises:
          Unreachable: it lives and does not answer.
        """
        deadline = time.monotonic() + _SILENT
        while True:
            state = self.ask(name, "state")
            if state is not None or not any(p.alive() for p in self.processes(name, None)):
                return state
            if time.monotonic() > deadline:
                raise Unreachable(f"the supervisor of {name} runs but does not answer; see its log {self.log(name)}")
            time.sleep(0.02)

    def start(self, name: str) -> None:
        """Start a supervisor, and wait until it answers; does nothing if one serves already.

        Raises:
          Infrastructure: it does not start; the message ends with the last lines of its log.
        """
        if why := why_not_tmpdir():
            _log.warning("%s", why)
        make_runtime_folder(self._folder)
        log = self.log(name)
        argv = [sys.executable, "-m", _MODULE, "--run", self._uri, "--name", name]
        with runtime.open_in_folder(log) as output:
            began = output.tell()
            # In a session of its own, so that a Ctrl-C now reaches the launcher only.
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = child.wait(_START)
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
            except KeyboardInterrupt:
                child.wait(_SILENT)  # a supervisor that has not started completely could not be asked to end
                raise
        if code:  # the child ends as soon as the supervisor answers, or has failed
            raise Infrastructure(f"the supervisor of {name} did not start; its log {log} ends:\n{tail(log, began)}")

    def processes(self, name: str, state: dict[str, Any] | None) -> list[ProcessId]:
        """The processes of a supervisor.

        Args:
          state: its answer to `state`, which names its workers and its job too; None for the supervisor alone, as its
            lock file names it.
        """
        if state is not None:
            pids = [state["pid"], *(worker["pid"] for worker in state["workers"])]
            pids += [state["job"]["pid"]] if state["job"] else []
            return [identify(int(pid)) for pid in pids if pid]
        with suppress(OSError, ValueError, KeyError):  # no supervisor, or one that was killed while it started
            holder = json.loads(runtime.lock_file(self._folder, name).read_text())
            found = ProcessId(int(holder["pid"]), float(holder["started"]))
            return [found] if is_ours(found.pid, _MODULE) else []
        return []

    def without(self, name: str) -> AbstractContextManager[bool]:
        """As `folder.without`."""
        return runtime.without(self._folder, name)

    def discard(self) -> None:
        """As `folder.discard`."""
        runtime.discard(self._folder)

    def tidy(self, name: str) -> None:
        """Remove the sockets of a supervisor that is gone, and those of its workers."""
        control_socket(self._folder, name).unlink(missing_ok=True)
        for path in self._folder.glob("*.sock") if name == "slices" else ():
            path.unlink(missing_ok=True)
