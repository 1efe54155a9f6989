"""Helpers for tests that drive whole runs on the local platform with the stand-in trainer.

A test makes a spec in its own folder (`Case`), starts the real command or a stage on it, waits for conditions by
polling with a deadline, and looks into the process table: what belongs to a run is known by its run id or its URI on a
command line, so tests that run side by side do not see each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil
import pytest
import yaml
from elastic_tpu.platforms.local.runtime_folder import runtime_folder
from elastic_tpu.runs.record.claim import StoredClaim, read_claim
from elastic_tpu.runs.record.events import Event, EventReader
from elastic_tpu.runs.record.run import Run, open_run
from elastic_tpu.runs.record.status import Status, load_status
from elastic_tpu.runs.spec.run_spec import run_id
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.tests import forks

T = TypeVar("T")
STANDIN = Path(__file__).with_name("standin.py")
COMMAND = [sys.executable, "-m", "elastic_tpu.cli.main"]
SECONDS = 60.0  # a deadline that only a hang reaches, on a busy machine too


def until(condition: Callable[[], T | None], what: str = "", seconds: float = SECONDS) -> T:
    """Poll until the condition is true, and return its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:.0f} s: {what or condition}")
        time.sleep(0.02)


def lives(process: psutil.Process) -> bool:
    """Whether it runs; a dead one that nobody has reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def expected_state(steps: int) -> str:
    """The stand-in's final state: a hash chained over all steps, so one left out or done twice shows."""
    state = ""
    for step in range(steps):
        state = hashlib.sha256(f"{state}{step}".encode()).hexdigest()
    return state


class RunDirectory:
    """A look into a run directory, wherever it is."""

    @property
    def uri(self) -> str:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        return open_run(self.uri)

    @property
    def claim(self) -> StoredClaim | None:
        return read_claim(open_store(self.uri))

    def events(self, kind: str = "") -> list[Event]:
        return [event for event in EventReader(open_store(self.uri)).all() if kind in ("", event.kind)]


class Case(RunDirectory):
    """A run's spec in a folder of its own, and a look at everything that the run leaves."""

    def __init__(self, folder: Path, *trainer: str, name: str = "r", **sections: Any) -> None:
        """`trainer`: options of the stand-in; `sections`: of the spec, merged over a small default."""
        self.folder, self.name = folder, name
        self.output = folder / "out"
        self.trainer_command = [sys.executable, str(STANDIN), "--step-seconds", "0.01", *trainer]
        self.sections = sections
        self.spec = self.write()

    def write(self, **sections: Any) -> Path:
        """Write the spec, with more sections over the case's own."""
        document: dict[str, Any] = {
            "run": {"name": self.name, "output": str(self.output)},
            "platform": "local",
            "slices": {"type": "sim-1x2", "count": 2},
            "model": {"name": "qwen3-0.6b", "tokenizer": "tokenizer"},
            "data": {"train": "train.parquet"},
            "train": {"steps": 60},
            "checkpoint": {"every": 10},
            "export": False,
            "evaluate": False,
            "local": {"restart_delay": "100ms", "trainer": self.trainer_command},
        }
        for changes in (self.sections, sections):
            for key, value in changes.items():
                both = isinstance(document.get(key), dict) and isinstance(value, dict)
                document[key] = {**document[key], **value} if both else value
        path = self.folder / "spec.yaml"
        (self.folder / "tokenizer").mkdir(parents=True, exist_ok=True)
        for name in ("train.parquet", "valid.parquet", "tokenizer/tokenizer.json"):
            (self.folder / name).write_text("the stand-in reads none of it")
        path.write_text(yaml.safe_dump(document))
        return path

    @property
    def uri(self) -> str:
        return str(self.output / self.name)

    @property
    def run_id(self) -> str:
        return run_id(str(self.output), self.name)

    # -- what is in the run directory -------------------------------------------------------------------------

    def json(self, name: str) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = json.loads((self.output / self.name / name).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return record

    @property
    def status(self) -> Status | None:
        return load_status(self.json("status.json"))

    def attempts(self, job: str = "train") -> list[int]:
        folder = self.output / self.name / ("attempts" if job == "train" else f"jobs/{job}")
        return sorted(int(path.name) for path in folder.iterdir()) if folder.is_dir() else []

    def exit_of(self, attempt: int) -> dict[str, Any] | None:
        return self.json(f"attempts/{attempt}/exit.json")

    def final_state(self) -> str:
        result = self.json("result.json")
        assert result is not None, "there is no result.json"
        record = self.json(f"checkpoints/{result['final_step']}/state.json")
        assert record is not None
        return str(record["state"])

    def at_step(self, step: int) -> bool:
        status = self.status
        return status is not None and status.phase == "training" and status.step >= step

    def wait_for_step(self, step: int) -> None:
        until(lambda: self.at_step(step), f"training at step {step}; status {self.status}")

    # -- what is on this machine ------------------------------------------------------------------------------

    def processes(self, part: str = "") -> list[psutil.Process]:
        """Living processes of this run whose command line has `part` in it; launchers are not among them."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or [])
            ours = f"{self.uri} " in f"{line} " or f"{self.uri}/" in line or self.run_id in line
            if ours and part in line and process.info["status"] != psutil.STATUS_ZOMBIE and "cli.main" not in line:
                found.append(process)
        return found

    def supervisor(self, name: str = "slices") -> psutil.Process:
        return until(lambda: self.processes(f"--name {name}"), f"supervisor of {name}")[0]

    def trainer(self, job: str = "train") -> psutil.Process:
        return until(lambda: self.processes(f"{job} --run"), f"process of {job}")[0]

    def workers(self) -> list[psutil.Process]:
        return self.processes("worker.py")

    def sockets(self) -> list[Path]:
        folder = runtime_folder(self.run_id)
        return [path for path in folder.glob("*") if path.suffix in (".sock", ".ctl")] if folder.exists() else []

    def left(self) -> list[str]:
        """Processes and sockets of this run."""
        return [" ".join(p.cmdline()) for p in self.processes() if p.is_running()] + list(map(str, self.sockets()))

    def nothing_left(self) -> None:
        """Assert that no process and no socket of this run is there; a child of a dead one gets a moment to die."""
        end = time.monotonic() + 5
        while left := self._left_now():
            assert time.monotonic() < end, left
            time.sleep(0.02)

    def released(self) -> None:
        """Assert that nothing is left and that slices.json says so."""
        self.nothing_left()
        record = self.json("slices.json")
        assert record is not None
        assert record["state"] == "released"

    def _left_now(self) -> list[str]:
        try:
            return self.left()
        except psutil.NoSuchProcess:
            return ["one that is just dying"]

    def end(self) -> None:
        """Kill whatever a failed test left."""
        for process in self.processes("supervisor") + self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue


class Launcher:
    """The real command in a process group of its own, as a terminal would start it; output goes to a file."""

    def __init__(self, case: Case, *args: str, log: str = "launcher", **env: str) -> None:
        self.log = case.folder / f"{log}.out"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*COMMAND, *(args or ("run", str(case.spec)))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **env},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stdout.write(f"--- {self.log.name}\n{self.output}\n")
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def says(self, text: str) -> None:
        """Wait until the output has this text in it."""
        until(lambda: text in self.output or self.process.poll() is not None, f"{text!r} in the output")
        assert text in self.output, self.output

    def wait(self, seconds: float = SECONDS) -> int:
        return self.process.wait(seconds)

    def kill(self) -> None:
        """SIGKILL: a launcher that vanishes."""
        self.process.kill()
        self.process.wait()

    def interrupt(self, whole_group: bool = False) -> None:
        """Ctrl-C, which a terminal sends to the whole process group."""
        if whole_group:
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGINT)


def command(
    *args: str, cwd: Path | None = None, seconds: float = SECONDS, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `elastic-tpu` to its end, with its two outputs apart."""
    environment = {**os.environ, **env}
    if not any(name.startswith("PYTHON") for name in env):
        return forks.run(args, cwd, environment, seconds)
    return subprocess.run(
        [*COMMAND, *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=cwd,
        env=environment,
        check=False,
    )


@pytest.fixture
def make_case(tmp_path: Path) -> Iterator[Callable[..., Case]]:
    """Makes cases, each in its own folder, and ends what they started."""
    made: list[Case] = []

    def make(*trainer: str, **sections: Any) -> Case:
        case = Case(tmp_path / str(len(made)), *trainer, **sections)
        made.append(case)
        return case

    yield make
    for case in made:
        case.end()
