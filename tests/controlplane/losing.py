"""A JobSet of a head and slices whose pods kwok plays, a trainer's watcher beside it, and ways to lose a slice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.gke.manifests import manifest
from elastic_tpu.platforms.gke.pod_api import PodApi
from elastic_tpu.platforms.gke.slices import GkeSlices
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.plan import make_plan
from elastic_tpu.tests.controlplane.plane import ControlPlane
from elastic_tpu.tests.tools import small

GROUP = ("jobset.x-k8s.io", "v1alpha2")


def service_account(plane: ControlPlane, folder: Path, namespace: str, account: str) -> dict[str, str]:
    """The environment of a pod of this account, and the folder that a kubelet would mount."""
    folder.mkdir(parents=True)
    (folder / "token").write_text(plane.token(account, namespace))
    (folder / "namespace").write_text(namespace)
    (folder / "ca.crt").write_bytes(plane.certificate.read_bytes())
    address = urlsplit(plane.url)
    return {
        "ELASTIC_TPU_SERVICE_ACCOUNT": str(folder),
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }


@dataclass
class Losing:
    """A running JobSet and its watcher."""

    plane: ControlPlane
    namespace: str
    name: str
    count: int
    vms: int
    slices: GkeSlices
    changes: list[tuple[str, int | None]]

    @property
    def core(self) -> Any:
        return kubernetes.client.CoreV1Api(self.plane.admin)

    def pods(self, index: int | None = None) -> list[Any]:
        """Pods of one slice, or of the whole JobSet, that are not on their way out."""
        selector = f"{names.JOBSET_NAME}={self.name}"
        if index is not None:
            selector += f",{names.REPLICATED_JOB}={names.WORKER},{names.JOB_INDEX}={index}"
        found = self.core.list_namespaced_pod(self.namespace, label_selector=selector).items
        return [pod for pod in found if pod.metadata.deletion_timestamp is None]

    def head(self) -> str:
        """Name and uid of the head's pod."""
        (pod,) = (pod for pod in self.pods() if pod.metadata.labels[names.REPLICATED_JOB] == names.HEAD)
        return f"{pod.metadata.name} {pod.metadata.uid}"

    def restarts(self) -> int:
        """How often JobSet made everything anew."""
        api = kubernetes.client.CustomObjectsApi(self.plane.admin)
        found = api.get_namespaced_custom_object(*GROUP, self.namespace, "jobsets", self.name)
        return int(found["status"].get("restarts", 0))

    def all_ready(self) -> bool:
        """Whether the head and all pods of all slices run."""
        pods = self.pods()
        ready = sum(any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ()) for pod in pods)
        return ready == len(pods) == 1 + self.count * self.vms

    def all_up(self) -> bool:
        """Whether the watcher sees all slices up, too: a loss before that would be none that it could know."""
        return self.all_ready() and len(self.slices.alive()) == self.count

    def lose(self, index: int, pods: int) -> None:
        """Force-delete so many pods of a slice at once."""
        for pod in self.pods(index)[:pods]:
            self.core.delete_namespaced_pod(pod.metadata.name, self.namespace, grace_period_seconds=0)

    def seconds_to_return(self, index: int, pods: int, within: float = 60.0) -> float:
        """Lose a slice, and wait until everything is ready again."""
        wait(self.all_up)
        before, began = {pod.metadata.uid for pod in self.pods(index)}, time.monotonic()
        self.lose(index, pods)
        wait(lambda: self.all_ready() and bool({pod.metadata.uid for pod in self.pods(index)} - before), within)
        return time.monotonic() - began


def wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.05)


@contextmanager
def losing(
    plane: ControlPlane,
    namespace: str,
    folder: Path,
    account: str = "elastic-tpu-trainer",
    count: int = 2,
    vms: int = 4,
) -> Iterator[Losing]:
    """A JobSet whose pods are all ready, with a watcher that has this account's token."""
    slices = {"type": f"v6e-{4 * vms}", "count": count}
    spec = check(small.gke(run={"name": "lose"}, slices=slices, gke={"namespace": namespace}))
    made = make_plan(spec)
    plane.cpu_pool(f"{namespace}-cpu")
    for index in range(count):
        pool = f"{namespace}-s{index}"
        plane.tpu_pool(pool, made.shape.gke_accelerator_label, made.shape.topology, vms, made.shape.chips_per_vm)
    api, name = kubernetes.client.CustomObjectsApi(plane.admin), made.run_id
    api.create_namespaced_custom_object(*GROUP, namespace, "jobsets", manifest.jobset(spec, made))
    changes: list[tuple[str, int | None]] = []
    environ = service_account(plane, folder / "account", namespace, account)
    watcher = GkeSlices(
        name, count, api=PodApi(environ), on_change=lambda kind, index, why: changes.append((kind, index))
    )
    try:
        yield Losing(plane, namespace, name, count, vms, watcher, changes)
    finally:
        watcher.close()
        api.delete_namespaced_custom_object(*GROUP, namespace, "jobsets", name, propagation_policy="Background")
