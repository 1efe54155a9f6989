"""The seed of this project as an experiment: real MaxText on a real Kubernetes loses a worker pod and recovers.

Control plane, JobSet, RBAC, launcher, trainer, Orbax and the bucket's protocol are real; pods are processes of this
machine, and the slices are simulated: CPU devices of the trainer that live and die with the worker pods.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.local import worker
from elastic_tpu.platforms.local.runtime_folder import runtime_folder
from elastic_tpu.platforms.local.slices import worker_socket
from elastic_tpu.runs.record.events import Event
from elastic_tpu.runs.record.status import Status
from elastic_tpu.tests.controlplane.cases import TAG, ClusterCase, Json
from elastic_tpu.tests.controlplane.kubelet import ProcessKubelet
from elastic_tpu.tests.controlplane.plane import ControlPlane
from elastic_tpu.tests.support import Launcher, until
from elastic_tpu.trainer.training.hardware import SIMULATED

SLICES, VMS = 3, 4
UNNOTICED = 30  # steps of 0.2 s that training may go on meanwhile: heartbeat, kubectl, the pod's end
_DEMO = yaml.safe_load((Path(__file__).parents[2] / "examples" / "local.yaml").read_text())
TINY = {**_DEMO["train"]["maxtext"], "per_device_batch_size": 1}  # the demo's model; there are twice as many devices


class SeedCase(ClusterCase):
    """A run whose trainer is the real one, with three simulated slices of four VMs, each VM a worker pod."""

    def __init__(
        self, plane: ControlPlane, namespace: str, bucket: str, folder: Path, data: Path, *, steps: int, every: int = 20
    ) -> None:
        """`data`: a folder made by examples/make_data.py."""
        self.data, self.steps, self.every = data, steps, every
        super().__init__(plane, namespace, bucket, folder)

    def write(self, **sections: Any) -> Path:
        data = self.data
        mount = {"name": "data", "mountPath": str(data)}
        trainer = {"name": names.TRAINER, "volumeMounts": [mount]}
        volume: Json = {"name": "data", "emptyDir": {}}  # the kubelet mounts nothing: the path is this machine's
        pool = {"cloud.google.com/gke-nodepool": self.pool}
        pod = {"nodeSelector": pool, "containers": [trainer], "volumes": [volume]}
        gke: Json = {
            "namespace": self.namespace,
            "kubeconfig": str(self.kubeconfig),
            "image": "example.test/trainer:1",
            "pathways": {"tag": TAG},
            "interval": "1s",
            "head": {"spec": pod},
        }
        seed: Json = {
            "slices": {"type": "v5litepod-16", "count": SLICES},
            "model": {"name": "qwen3-0.6b", "tokenizer": str(data / "tokenizer")},
            "data": {"train": str(data / "train.parquet"), "eval": str(data / "valid.parquet")},
            "train": {"steps": self.steps, "maxtext": TINY},
            "checkpoint": {"every": self.every, "keep": 3},
            "export": {"dtype": "bfloat16"},
            "evaluate": {"heldout": True, "gate": ["heldout.loss <= 5.6"]},
            "gke": gke,
        }
        return super().write(**{**seed, **sections})

    def program(self, pod: Json, container: Json, environment: Json, argv: list[str]) -> tuple[list[str], Json] | None:
        if container["name"] == names.TRAINER:
            module = argv[argv.index("-m") :]
            return [sys.executable, *module], {**self.environment, SIMULATED: f"{VMS}x1"}
        if container["name"] == names.WORKER:
            labels = pod["metadata"]["labels"]
            index = int(labels[names.JOB_INDEX])
            vm = int(labels["batch.kubernetes.io/job-completion-index"])
            address = worker_socket(runtime_folder(self.run_id), index, vm)
            who = ["--socket", str(address), "--slice", str(index), "--vm", str(vm)]
            return [sys.executable, worker.__file__, *who], {}
        return None

    @contextmanager
    def simulated_slices(self) -> Iterator[ProcessKubelet]:
        """A node for the head and four for each slice, whose pods are processes."""
        with ProcessKubelet(self.plane, self.folder / "kubelet", self.program) as kubelet:
            self.kubelet = kubelet
            kubelet.cpu_pool(self.pool)
            for index in range(SLICES):
                kubelet.tpu_pool(f"{self.namespace}-s{index}", "tpu-v5-lite-podslice", "4x4", VMS, 4)
            yield kubelet


def restorable(events: Sequence[Event], recovery: Event) -> int:
    """The newest step that was proven when a recovery restored; -1: none, so that training begins anew."""
    began = recovery.time - timedelta(seconds=recovery.data["seconds"]["first_step"])
    proven = (e.step for e in events if e.kind == "checkpoint.proven" and e.time < began)
    return max((step for step in proven if step is not None), default=-1)


@dataclass(frozen=True)
class Outcome:
    """What was seen. Seconds are of a simulation, but for what Kubernetes took."""

    recovery: dict[str, Any]
    same_head: bool
    container_restarts: int
    jobset_restarts: int
    code: int
    summary: str


def experiment(
    case: SeedCase, seed: int, tell: Callable[[str], None] = lambda text: None, seconds: float = 300.0
) -> Outcome:
    """Run it: a worker pod is deleted by force at a moment that the seed chooses, whatever happens at that moment.

    There may be nothing to restore then. The last steps are left out: training must not be over before the loss shows.
    """
    chance = random.Random(seed)
    at = chance.randrange(1, case.steps - UNNOTICED)

    def reached() -> Status | None:
        status = case.status if case.started else None
        return status if status is not None and status.step >= at else None

    with case.simulated_slices(), Launcher(case) as launcher:
        over = launcher.process.poll
        until(lambda: over() is not None or reached(), f"step {at}", seconds)
        assert over() is None, launcher.output
        status = case.status
        assert status is not None
        time.sleep(chance.random() * (status.step_seconds or 1.0))  # any moment of a step
        index = chance.randrange(SLICES)
        before = case.pods(names.HEAD)[0]
        mine = [p for p in case.pods(names.WORKER) if p["metadata"]["labels"][names.JOB_INDEX] == str(index)]
        victim = str(chance.choice(mine)["metadata"]["name"])
        tell(f"step {status.step}: kubectl delete pod {victim} --force --grace-period=0")
        case.plane.kubectl("delete", "pod", victim, "-n", case.namespace, "--force", "--grace-period=0")
        until(lambda: over() is not None or case.events("recovery.finished"), "the recovery", seconds)
        assert case.events("recovery.finished"), launcher.output
        after, jobset = case.pods(names.HEAD)[0], case.jobset
        assert jobset is not None
        code = launcher.wait(seconds)
        case.nothing_left()
        trainer = next(c for c in after["status"]["containerStatuses"] if c["name"] == names.TRAINER)
        return Outcome(
            recovery=case.events("recovery.finished")[-1].data,
            same_head=before["metadata"]["uid"] == after["metadata"]["uid"],
            container_restarts=int(trainer["restartCount"]),
            jobset_restarts=int(jobset["status"].get("restarts", 0)),
            code=code,
            summary=launcher.output,
        )
