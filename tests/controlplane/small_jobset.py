"""A JobSet in the shape of ours with nothing in it: a head with two sidecars and slices of one VM.

Its trainer and workers do nothing but `OBEY`: a test says what they end by. Facts about the controllers are shown with
it, which what we submit relies on.
"""

from __future__ import annotations

from typing import Any

import kubernetes
from elastic_tpu.tests.controlplane.kubelet import Node, ProcessKubelet
from elastic_tpu.tests.controlplane.plane import ControlPlane
from elastic_tpu.tests.controlplane.pod import Pod

Json = dict[str, Any]
ACCELERATOR, TOPOLOGY, CHIPS = "tpu-v5-lite-podslice", "2x4", 8
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
OBEY = ["sh", "-c", "[ -p order ] || mkfifo order; read code < order; exit $code"]
KIND = ("jobset.x-k8s.io", "v1alpha2")


def order(pod: Pod, code: int) -> None:
    """Let the pod's container that runs OBEY exit with this code."""
    (pod.folder / "order").write_text(f"{code}\n")


def programs(
    pod: Json, container: Json, env: dict[str, str], argv: list[str]
) -> tuple[list[str], dict[str, str]] | None:
    del pod, env, argv
    return (OBEY, {}) if container["name"] in ("trainer", "worker") else None


class SmallJobSet:
    """One of them, on nodes of its own kubelet; `ready()` and `restarts()` are what its status says."""

    def __init__(self, plane: ControlPlane, kubelet: ProcessKubelet, namespace: str, slices: int = 2) -> None:
        self.kubelet, self.namespace, self.slices, self._pools = kubelet, namespace, slices, 0
        self._api = kubernetes.client.CustomObjectsApi(plane.admin)
        self._jobs = kubernetes.client.BatchV1Api(plane.admin)
        self._core = kubernetes.client.CoreV1Api(plane.admin)
        cpu_pool = f"{namespace}-cpu"
        kubelet.cpu_pool(cpu_pool, nodes=2)
        for _ in range(slices):
            self.add_pool()
        self._api.create_namespaced_custom_object(*KIND, namespace, "jobsets", manifest(slices, cpu_pool))

    def add_pool(self) -> Node:
        """A pool for one more slice; its only node."""
        self._pools += 1
        name = f"{self.namespace}-tpu-{self._pools}"
        return self.kubelet.tpu_pool(name, ACCELERATOR, TOPOLOGY, nodes=1, chips=CHIPS)[0]

    @property
    def status(self) -> Json:
        jobset: Json = self._api.get_namespaced_custom_object(*KIND, self.namespace, "jobsets", "small")
        return jobset.get("status", {})

    def ready(self) -> bool:
        """Whether the head and all slices are."""
        ready = {each["name"]: each["ready"] for each in self.status.get("replicatedJobsStatus", [])}
        return ready == {"pathways-head": 1, "pathways-worker": self.slices}

    def restarts(self) -> int:
        return int(self.status.get("restarts", 0))

    def failed(self) -> str:
        """The reason of its failure; "" while it has none."""
        conditions = self.status.get("conditions", [])
        return next((c["reason"] for c in conditions if c["type"] == "Failed" and c["status"] == "True"), "")

    def head(self) -> Pod:
        return self.kubelet.pod("small-pathways-head")

    def worker(self, i: int) -> Pod:
        return self.kubelet.pod(f"small-pathways-worker-{i}")

    def replaced(self, pod: Pod) -> bool:
        """Whether everything is ready, with another pod in the place of this one."""
        return self.kubelet.running(pod.name[:-5], unlike=pod) is not None and self.ready()

    def uids(self, job: str) -> set[str]:
        """Of the pods whose names begin so, as the API server has them."""
        pods = self._core.list_namespaced_pod(self.namespace).items
        return {pod.metadata.uid for pod in pods if pod.metadata.name.startswith(f"small-{job}")}

    def terminating(self, job: str) -> int:
        """How many pods the child Job waits for that are to end."""
        return self._jobs.read_namespaced_job(f"small-{job}", self.namespace).status.terminating or 0

    def delete_job(self, job: str, policy: str) -> None:
        self._jobs.delete_namespaced_job(f"small-{job}", self.namespace, propagation_policy=policy)

    def delete_pod(self, pod: Pod, force: bool = False) -> None:
        options = {"grace_period_seconds": 0} if force else {}
        self._core.delete_namespaced_pod(pod.name, self.namespace, **options)


def manifest(slices: int, cpu_pool: str) -> Json:
    head = {
        "restartPolicy": "Never",
        "nodeSelector": {"cloud.google.com/gke-nodepool": cpu_pool},
        "initContainers": [_container(name, restartPolicy="Always") for name in ("pathways-rm", "pathways-proxy")],
        "containers": [_container("trainer")],
    }
    fatal = {"containerName": "trainer", "operator": "In", "values": [64, 70, 76, 77]}
    head_job = {
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": fatal}]},
        "template": {"spec": head},
    }
    worker = {
        "restartPolicy": "OnFailure",
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": ACCELERATOR,
            "cloud.google.com/gke-tpu-topology": TOPOLOGY,
        },
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
        "containers": [_container("worker", resources={"limits": {"google.com/tpu": str(CHIPS)}})],
    }
    worker_job = {
        "backoffLimitPerIndex": 50,
        "maxFailedIndexes": 0,
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "template": {"spec": worker},
    }
    rule = {
        "name": "fatal",
        "action": "FailJobSet",
        "targetReplicatedJobs": ["pathways-head"],
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    return {
        "apiVersion": "/".join(KIND),
        "kind": "JobSet",
        "metadata": {"name": "small"},
        "spec": {
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
            "failurePolicy": {"maxRestarts": 20, "restartStrategy": "Recreate", "rules": [rule]},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["pathways-head"]},
            "replicatedJobs": [
                _jobs("pathways-head", 1, "kubernetes.io/hostname", head_job),
                _jobs("pathways-worker", slices, "cloud.google.com/gke-nodepool", worker_job),
            ],
        },
    }


def _jobs(name: str, replicas: int, place: str, job: Json) -> Json:
    return {
        "name": name,
        "replicas": replicas,
        "template": {"metadata": {"annotations": {EXCLUSIVE: place}}, "spec": job},
    }


def _container(name: str, **more: Any) -> Json:
    return {"name": name, "image": "none", **more}
