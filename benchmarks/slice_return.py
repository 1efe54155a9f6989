"""How soon a lost slice is back on a real Kubernetes control plane, whose pods kwok plays.

A JobSet of a head and two slices of four VMs; ten losses in a row of one slice, by turns of all its pods and of one.
The trainer's own watcher brings it back, with the token of the trainer's service account. What is measured is the API
server's, JobSet's, the Job controller's, the scheduler's and our own part; images, TPUs and kubelets are not in it.
Prints a table and, last, one JSON object: `value` is the worst of the ten, in seconds.

    make controlplane                                      # once
    python benchmarks/slice_return.py [--losses 10]
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from pathlib import Path

from elastic_tpu.tests.controlplane.losing import losing, wait
from elastic_tpu.tests.controlplane.plane import ControlPlane
from rich.console import Console
from rich.table import Table

GOAL = 3.0
VMS = 4


def main() -> None:
    logging.getLogger("elastic_tpu.trainer").setLevel(logging.ERROR)  # the losses are in the table
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", type=int, default=10)
    losses = parser.parse_args().losses
    lost = [VMS if number % 2 == 0 else 1 for number in range(losses)]
    with (
        tempfile.TemporaryDirectory(prefix="elastic-tpu-bench-") as folder,
        ControlPlane(Path(folder) / "plane") as plane,
        losing(plane, plane.namespace("bench"), Path(folder), vms=VMS) as run,
    ):
        wait(run.all_up)
        head = run.head()
        each = [run.seconds_to_return(1, pods) for pods in lost]
        wait(run.all_up)
        untouched = run.head() == head and run.restarts() == 0
    table = Table("loss", "pods lost", "seconds until all pods were ready")
    for number, (pods, seconds) in enumerate(zip(lost, each, strict=True), start=1):
        table.add_row(str(number), f"{pods} of {VMS}", f"{seconds:.2f}")
    Console().print(table)
    print(f"head pod untouched, JobSet restarts 0: {'yes' if untouched else 'NO'}")
    value = max(each)
    result = {
        "name": "slice_return",
        "value": round(value, 3),
        "goal": GOAL,
        "unit": "s",
        "pass": value <= GOAL and untouched,
        "each": [round(seconds, 3) for seconds in each],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
