"""A kubelet whose containers are local processes: registers nodes, runs the pods bound to them, reports their status.

    with ProcessKubelet(plane, folder, programs) as kubelet:
        kubelet.cpu_pool("cpu-np")
        slices = [kubelet.tpu_pool(f"pool-{i}", "tpu-v5-lite-podslice", "2x4", nodes=1, chips=8) for i in range(2)]
        ...
        kubelet.pod("run-pathways-head").container("trainer").signal(signal.SIGKILL)
        slices[0][0].silence()

All pods share the loopback interface and the names of a JobSet's pods do not resolve, so `programs` must give servers
free ports and put 127.0.0.1 in the place of host names. Other differences from a kubelet: no images, volumes, probes
and resource limits; a container that ends is started again after 1, 2, 4 ... seconds instead of 0, 10, 20 ...; a pod
that is deleted by force is killed at once; tokens are not renewed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import psutil
from elastic_tpu.tests.controlplane.container import Container, Json, stamp
from elastic_tpu.tests.controlplane.identity import Identity
from elastic_tpu.tests.controlplane.logs import LogServer
from elastic_tpu.tests.controlplane.plane import TPU_TAINT, ControlPlane
from elastic_tpu.tests.controlplane.pod import Host, Pod, Programs
from elastic_tpu.tests.controlplane.watch import PodWatch
from kubernetes.client import ApiClient, CoordinationV1Api, CoreV1Api
from kubernetes.client.rest import ApiException
from urllib3.exceptions import HTTPError

AMOUNTS = {"cpu": "1000", "memory": "4Ti", "pods": "500"}
_LEASE = "kube-node-lease"
_RENEW = 3.0  # seconds between renewals of the nodes' leases


class Node:
    """A node of the kubelet, and what a test may do to it."""

    def __init__(self, kubelet: ProcessKubelet, name: str) -> None:
        self.name = name
        self.silent = self.lost = False
        self._kubelet = kubelet

    def silence(self) -> None:
        """From now on the API server hears nothing of it and cannot reach it; its processes go on."""
        self.silent = True

    def come_back(self) -> None:
        """Undo `silence`: what happened meanwhile is made up for."""
        self.silent = False
        self._kubelet.reconnect(self)

    def lose_power(self) -> None:
        """All its processes die, and nobody reports it; the node's object stays."""
        self.silent = self.lost = True
        self._kubelet.bury(self)

    def vanish(self) -> None:
        """As a VM that is deleted: its processes die, nobody reports it, and the node's object goes."""
        self.lose_power()
        self._kubelet.plane.remove(self.name)


class ProcessKubelet:
    """Runs the pods of the nodes that `node`, `cpu_pool` and `tpu_pool` make, until `close`.

    Args:
      plane: the control plane to register with.
      folder: for logs (`pods/<uid>/<container>.<start>.log`) and service accounts (`pods/<uid>/serviceaccount`).
      programs: `(pod, container, environment, command + args) -> (argv, more environment)`, called at each start with
        everything expanded; None, also as its answer: a program that sleeps until SIGTERM.
      backoff: seconds until a container that ended is started again; doubles each time.
    """

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        programs: Programs | None = None,
        *,
        backoff: float = 1.0,
    ) -> None:
        self.plane = plane
        client = plane.api_client()
        client.configuration.connection_pool_maxsize = 64  # every pod's thread talks
        self._client = ApiClient(client.configuration)
        self._core = CoreV1Api(self._client)
        identity = Identity(self._core, plane.url, plane.certificate)
        self._host = Host(self._core, folder.absolute(), programs or (lambda *_: None), identity, backoff)
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}  # by uid; those whose object is there, as far as their node knows
        self._ending: list[Pod] = []  # their object is gone, their processes may not be
        self._missed: dict[str, tuple[Json, bool]] = {}  # by uid: what a silent node has not heard
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._logs = LogServer(self._container, self.plane.certificate, self.plane.key)
        self._watch = PodWatch(self._core, self._take, self._host.problems)
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        problems = self.close()
        if problems and kind is None:
            raise RuntimeError(f"pods broke off: {problems}") from problems[0]

    def close(self) -> list[BaseException]:
        """Kill every process, remove the nodes, and return what went wrong in a pod's thread, `programs` included.

        Raises:
          RuntimeError: a process is left.
        """
        self._host.closing.set()
        self._watch.close()
        self._beats.join(20)
        pods = [*self._pods.values(), *self._ending]
        for pod in pods:
            pod.wake()
        for pod in pods:
            pod.join(20)
        self._logs.close()
        for name in self._nodes:
            self.plane.remove(name)
        if left := self.left():
            raise RuntimeError(f"processes are left: {left}")
        return self._host.problems

    # -- hardware -----------------------------------------------------------------------------------------------

    def node(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] | None = None,
        taints: Sequence[Json] = (),
    ) -> Node:
        """Register a node."""
        self.plane.node(name, labels, {**AMOUNTS, **(capacity or {})}, played=False, taints=taints)
        node = self._nodes[name] = Node(self, name)
        self._renew(node)
        self._report(node)
        return node

    def cpu_pool(self, name: str, nodes: int = 1, **labels: str) -> list[Node]:
        """A node pool without accelerators."""
        of_pool = {"cloud.google.com/gke-nodepool": name, **labels}
        return [self.node(f"{name}-{i}", of_pool) for i in range(nodes)]

    def tpu_pool(
        self,
        name: str,
        accelerator: str,
        topology: str,
        nodes: int,
        chips: int,
        **labels: str,
    ) -> list[Node]:
        """One slice as GKE has it: a node pool with a node a VM, `chips` a VM."""
        of_pool = {
            "cloud.google.com/gke-nodepool": name,
            "cloud.google.com/gke-tpu-accelerator": accelerator,
            "cloud.google.com/gke-tpu-topology": topology,
            **labels,
        }
        amounts = {"google.com/tpu": str(chips)}
        return [self.node(f"{name}-{i}", of_pool, amounts, [TPU_TAINT]) for i in range(nodes)]

    # -- a look inside ------------------------------------------------------------------------------------------

    def pods(self, begins: str = "") -> list[Pod]:
        """Pods by the beginning of their name, the oldest first; ended ones too, as long as their object is there."""
        with self._lock:
            return [pod for pod in self._pods.values() if pod.name.startswith(begins)]

    def running(self, begins: str, unlike: Pod | None = None) -> Pod | None:
        """The newest of them that runs, if it is not `unlike`: to poll for a pod or its successor."""
        found = [pod for pod in self.pods(begins) if pod.phase == "Running" and pod.alive]
        return found[-1] if found and found[-1] is not unlike else None

    def pod(self, begins: str) -> Pod:
        """The same, which must be there."""
        pod = self.running(begins)
        if pod is None:
            raise LookupError(f"no pod {begins}* runs; there are {[(p.name, p.phase) for p in self.pods()]}")
        return pod

    @property
    def problems(self) -> list[BaseException]:
        """What went wrong in a pod's thread, mistakes of `programs` among it; raised at the end."""
        return self._host.problems

    def left(self) -> list[str]:
        """Processes in the sessions of containers, as `pid command`."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            with suppress(ProcessLookupError):
                ours = os.getsid(process.pid) in self._host.sessions
                if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.info['cmdline'] or [])}")
        return found

    # -- nodes --------------------------------------------------------------------------------------------------

    def reconnect(self, node: Node) -> None:
        """For `Node.come_back`."""
        self._renew(node)
        self._report(node)
        with self._lock:
            missed, self._missed = self._missed, {}
        for obj, gone in missed.values():
            self._take(obj, gone)  # what concerns another silent node is missed again
        for pod in self.pods():
            pod.wake()

    def bury(self, node: Node) -> None:
        """For `Node.lose_power`: returns when its processes are dead."""
        dead = [pod for pod in self.pods() if pod.node is node]
        for pod in dead:
            pod.wake()
        for pod in dead:
            pod.join(20)

    def _renew(self, node: Node) -> None:
        leases = CoordinationV1Api(self._client)
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": node.name, "leaseDurationSeconds": 40, "renewTime": renewed}
        lease = {"metadata": {"name": node.name, "namespace": _LEASE}, "spec": spec}
        try:
            leases.patch_namespaced_lease(node.name, _LEASE, lease, _preload_content=False)
        except ApiException as error:
            if error.status != 404:
                raise
            leases.create_namespaced_lease(_LEASE, lease, _preload_content=False)

    def _report(self, node: Node) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {
            "conditions": [{**ready, "lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.port}},
        }
        self._core.patch_node_status(node.name, {"status": status}, _preload_content=False)

    def _beat(self) -> None:
        while not self._host.closing.wait(_RENEW):
            for node in list(self._nodes.values()):
                if not node.silent:
                    with suppress(ApiException, HTTPError):  # the server is away: the next beat will do
                        self._renew(node)

    # -- pods ---------------------------------------------------------------------------------------------------

    def _take(self, obj: Json, gone: bool) -> None:
        """Something new of a pod."""
        uid, node = obj["metadata"]["uid"], self._nodes.get(obj["spec"].get("nodeName", ""))
        if node is None:
            return
        with self._lock:
            pod = self._pods.get(uid)
            if node.silent:
                self._missed[uid] = (obj, gone)
            elif pod is None and not gone and obj["status"].get("phase") == "Pending":
                self._pods[uid] = Pod(self._host, node, obj)
                self._pods[uid].start()
            elif pod is not None:
                pod.update(obj, gone)
                if gone:
                    self._ending.append(self._pods.pop(uid))

    def _container(self, namespace: str, pod: str, container: str) -> Container | None:
        """For the log server."""
        for one in reversed(self.pods()):
            if (one.namespace, one.name) == (namespace, pod) and not one.node.silent:
                return next((c for c in [*one.mains, *one.inits] if c.name == container), None)
        return None
