"""How long a lost slice costs against a full restart, with real MaxText on simulated slices.

Recovery: from the moment the lost slice is back to the first new step, in the process that goes on. Restart: from the
start of a new trainer process to its first new step, with a warm compilation cache. Both in one run, in turn. Prints a
table and, last, one JSON object: `value` is the ratio of the medians.

    python benchmarks/recovery.py [--pairs 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from elastic_tpu.platforms.base import Job
from elastic_tpu.platforms.local.platform import LocalPlatform
from elastic_tpu.runs.record import paths
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.events import Event, EventReader
from elastic_tpu.runs.record.run import Run, attempts_of, create_run
from elastic_tpu.runs.spec.load import check
from rich.console import Console
from rich.table import Table

GOAL = 0.12
ROOT = Path(__file__).parents[1]


def spec(folder: Path) -> dict[str, object]:
    """A two-layer qwen3 on three simulated slices that would train for a long time."""
    data = folder / "data"
    subprocess.run([sys.executable, ROOT / "examples" / "make_data.py", data], check=True, stdout=subprocess.DEVNULL)
    maxtext = {
        "base_emb_dim": 96,
        "base_num_query_heads": 4,
        "base_num_kv_heads": 2,
        "base_mlp_dim": 288,
        "base_num_decoder_layers": 2,
        "head_dim": 24,
        "vocab_size": 288,
        "max_target_length": 128,
        "per_device_batch_size": 2,
        "num_epoch": 1000,
    }
    return {
        "run": {"name": "recovery", "output": str(folder)},
        "platform": "local",
        "slices": {"type": "sim-1x2", "count": 3},
        "model": {"name": "qwen3-0.6b", "tokenizer": str(data / "tokenizer")},
        "data": {"train": str(data / "train.parquet"), "eval": str(data / "valid.parquet")},
        "train": {"steps": 100_000, "maxtext": maxtext},
        "checkpoint": {"every": 10},
        "local": {"restart_delay": "1s", "unclaimed": "1h"},
    }


class Bench:
    """One run, whose slices and trainer are killed in turn."""

    def __init__(self, run: Run) -> None:
        self.run, self.platform, self.reader = run, LocalPlatform(run), EventReader(run.store)
        self.job = Job("train", ("train", "--run", run.uri), True)

    def begin(self) -> None:
        Driver(self.run.store, "benchmark", "1", 3600.0).take()
        self.platform.acquire()
        wait(lambda: self.platform.slices().state == "ready")
        self.platform.launch(self.job)
        self.settle(0)

    def settle(self, after: int) -> None:
        """Until two more checkpoints are proven, so that every loss costs about the same."""
        wait(lambda: len(self.events("checkpoint.proven")) >= after + 2)

    def trainer(self) -> psutil.Process:
        """The process of the newest attempt."""
        attempt = max(attempts_of(self.run, "train"))
        started = self.run.read(f"{paths.attempts('train')}/{attempt}/started.json")
        assert started is not None
        return psutil.Process(int(started["pid"]))

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.reader.all() if event.kind == kind]

    def recovery(self) -> float:
        """Seconds from a slice's return to the first new step in the same process."""
        before, proven = len(self.events("recovery.finished")), len(self.events("checkpoint.proven"))
        self.platform.kill_slice(1)
        wait(lambda: len(self.events("recovery.finished")) > before)
        back, first = self.events("slice.back")[-1], self.events("recovery.finished")[-1]
        assert first.data["in_process"]
        self.settle(proven)
        return (first.time - back.time).total_seconds()

    def restart(self) -> float:
        """Seconds from the start of a new trainer process to its first new step."""
        before, proven = len(self.events("recovery.finished")), len(self.events("checkpoint.proven"))
        self.trainer().kill()
        wait(lambda: len(self.events("recovery.finished")) > before)
        first = self.events("recovery.finished")[-1]
        assert not first.data["in_process"]
        started = self.trainer().create_time()
        self.settle(proven)
        return first.time.timestamp() - started


def wait(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory(prefix="elastic-tpu-bench-") as folder:
        bench = Bench(create_run(check(spec(Path(folder)))))
        try:
            bench.begin()
            bench.restart()  # warms the compilation cache
            measured = [(bench.recovery(), bench.restart()) for _ in range(pairs)]
        finally:
            bench.platform.release()
    table = Table("simulated slices, seconds", "recovery", "restart", "ratio")
    for number, (recovery, restart) in enumerate(measured, start=1):
        table.add_row(f"pair {number}", f"{recovery:.2f}", f"{restart:.2f}", f"{recovery / restart:.3f}")
    recovery, restart = (statistics.median(column) for column in zip(*measured, strict=True))
    value = recovery / restart
    table.add_row("median", f"{recovery:.2f}", f"{restart:.2f}", f"{value:.3f}")
    Console().print(table)
    result = {"name": "recovery", "value": round(value, 4), "goal": GOAL, "unit": "ratio", "pass": value <= GOAL}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
