"""The processes of a control plane: started, killed, started again and ended by pid, each with a log of its own.

They die with the process that started them, even if that is killed (PDEATHSIG, set by util-linux's setpriv).
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class Processes:
    """Processes by name, without those that were killed; `folder` is their working directory and has `logs/`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, folder / "logs"
        self.by_name: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        # The kernel ends a child with the THREAD that made it, and any may call `restart`: one thread makes them all
        # and stays until the end.
        self._starter = ThreadPoolExecutor(1)

    def start(self, name: str, command: Sequence[str]) -> None:
        self._commands[name] = list(command)
        self.by_name[name] = self._starter.submit(self._spawn, name).result()

    def kill(self, name: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send the signal and wait for the end."""
        process = self.by_name.pop(name)
        process.send_signal(sig)
        process.wait()

    def restart(self, name: str) -> None:
        """Start one that was killed, with the same command."""
        self.start(name, self._commands[name])

    def stop(self) -> None:
        """End them all; idempotent."""
        for process in self.by_name.values():
            process.kill()
        for process in self.by_name.values():
            process.wait()
        self._starter.shutdown()

    def until(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Poll until the condition holds; it may raise. A process that ended by itself is a RuntimeError."""
        end, last = time.monotonic() + seconds, None
        while True:
            try:
                if condition():
                    return
            except Exception as error:  # whatever a server says that is still coming up
                last = error
            for name, process in self.by_name.items():
                if process.poll() is not None:
                    tail = (self.logs / f"{name}.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{name} ended with {process.returncode} while {what} was coming:\n{tail}")
            if time.monotonic() > end:
                raise RuntimeError(f"{what} is not there after {seconds:.0f} s ({last}); logs in {self.logs}")
            time.sleep(0.05)

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        with (self.logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._commands[name]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the tests, which then end these
            )
