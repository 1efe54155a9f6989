"""Real MaxText on simulated slices: one warm trainer a session, and runs for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elastic_tpu.platforms.local.platform import LocalPlatform
from elastic_tpu.runs.record import paths
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.events import Event, EventReader
from elastic_tpu.runs.record.run import Run, create_run
from elastic_tpu.runs.record.status import Status, load_status
from elastic_tpu.runs.spec.load import check

ROOT = Path(__file__).parents[2]
STEPS = 60
EVERY = 10


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's tokenizer and text."""
    out = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, ROOT / "examples" / "make_data.py", out], check=True)
    return out


class WarmTrainer:
    """Trains runs, one at a time, in one process."""

    def __init__(self, log: Path) -> None:
        self.log = log
        read, write = os.pipe()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, ROOT / "tests" / "integration" / "warm_trainer.py", str(write)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(write,),
                text=True,
            )
        os.close(write)
        self._answers = os.fdopen(read)

    def start(self, run: Run, nan_at: int | None = None) -> Callable[[], int]:
        """Start to train; the returned function waits for the exit code. The loss of step `nan_at` is NaN, once."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{run.uri}\n" if nan_at is None else f"{run.uri} {nan_at}\n")
        self.process.stdin.flush()
        return self._wait

    def train(self, run: Run) -> int:
        """Train to the end."""
        return self.start(run)()

    def _wait(self) -> int:
        line = self._answers.readline()
        if not line:
            tail = self.log.read_text()[-4000:]
            raise AssertionError(f"the trainer process ended with {self.process.wait()}; its log ends:\n{tail}")
        return int(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmTrainer]:
    """The warm trainer; its log is kept beside the tests' folders."""
    warm = WarmTrainer(tmp_path_factory.mktemp("trainer") / "trainer.log")
    yield warm
    warm.close()


class Scenario:
    """A run with its slices, driven by the test itself."""

    def __init__(self, run: Run, trainer: WarmTrainer) -> None:
        self.run, self.trainer = run, trainer
        self.platform = LocalPlatform(run)
        self.driver = Driver(run.store, "test", "1", 600.0)

    def provision(self) -> None:
        self.driver.take()
        self.platform.acquire()
        wait_for(lambda: self.platform.slices().state == "ready")

    def start(self) -> Callable[[], int]:
        return self.trainer.start(self.run)

    def train(self) -> int:
        return self.trainer.train(self.run)

    def status(self) -> Status | None:
        return load_status(self.run.read(paths.STATUS))

    def wait_for_step(self, step: int) -> None:
        """Until a checkpoint of that step, or a later one, has begun to be saved: told at once, not at a heartbeat."""

        def reached() -> bool:
            status = self.status()
            assert status is None or status.phase != "ended", status
            return any((event.step or 0) >= step for event in self.events("checkpoint.saved"))

        wait_for(reached)

    def kill(self, *slices: int) -> None:
        for index in slices:
            self.platform.kill_slice(index)

    def events(self, kind: str) -> list[Event]:
        return [event for event in EventReader(self.run.store).all() if event.kind == kind]

    def checkpoint(self, step: int = STEPS - 1) -> dict[str, Any]:
        """Every array of a checkpoint and the state of its data iterator."""
        return read_checkpoint(Path(self.run.uri) / paths.checkpoint(step))


@pytest.fixture
def scenario(tmp_path: Path, data: Path, trainer: WarmTrainer) -> Iterator[Callable[..., Scenario]]:
    """Makes runs of the tiny model, with slices that are given back."""
    made: list[Scenario] = []

    def make(name: str = "r", provision: bool = True, **changes: Any) -> Scenario:
        run = create_run(check(tiny_spec(tmp_path, data, name=name, **changes)))
        one = Scenario(run, trainer)
        made.append(one)
        if provision:
            one.provision()
        return one

    yield make
    for one in made:
        assert not one.platform.release().left


def tiny_spec(out: Path | str, files: Path, name: str = "r", **changes: Any) -> dict[str, Any]:
    """A document for a two-layer qwen3 on three slices; `changes` replace values by section."""
    document: dict[str, Any] = {
        "run": {"name": name, "output": str(out)},
        "platform": "local",
        "slices": {"type": "sim-1x2", "count": 3},
        "model": {"name": "qwen3-0.6b", "tokenizer": str(files / "tokenizer")},
        "data": {"train": str(files / "train.parquet"), "eval": str(files / "valid.parquet")},
        "train": {
            "steps": STEPS,
            "maxtext": {
                "base_emb_dim": 48,
                "base_num_query_heads": 4,
                "base_num_kv_heads": 2,
                "base_mlp_dim": 96,
                "base_num_decoder_layers": 2,
                "head_dim": 12,
                "vocab_size": 288,
                "max_target_length": 128,
                "per_device_batch_size": 2,
                "learning_rate": 0.003,
                "num_epoch": 10,
                "enable_tensorboard": False,
            },
        },
        "checkpoint": {"every": EVERY, "keep": 3},
        "recovery": {"wait_for_slices": "2m"},
        "local": {"restart_delay": "500ms", "unclaimed": "10m"},
    }
    for section, values in changes.items():
        if isinstance(values, dict):
            merged = {**document.get(section, {}), **values}
            if section == "train" and "maxtext" in values:
                merged["maxtext"] = {**document["train"]["maxtext"], **values["maxtext"]}
            document[section] = merged
        else:
            document[section] = values
    return document


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Look until a condition holds."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s")
        pause.wait(0.02)


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Every array, by name, and the iterator's JSON."""
    from elastic_tpu.trainer.checkpoint.arrays import open_arrays, read_tree

    tree = read_tree(str(folder))
    content: dict[str, Any] = {
        ".".join(path): np.asarray(store.read().result()) for path, store in open_arrays(tree, tree.leaves).items()
    }
    for path in sorted((folder / "iter").glob("*.json")):
        content[path.name] = json.loads(path.read_text())
    return content


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names in which two checkpoints are not bit for bit the same."""
    found = sorted(a.keys() ^ b.keys())
    for name in sorted(a.keys() & b.keys()):
        x, y = a[name], b[name]
        same = x.dtype == y.dtype and x.tobytes() == y.tobytes() if isinstance(x, np.ndarray) else x == y
        if not same:
            found.append(name)
    return found
