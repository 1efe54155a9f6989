"""A pod as processes: the life that a kubelet gives it, and what it reports of that.

A thread a pod. It starts containers by the rules of init containers, sidecars and restart policies, ends them when the
pod is deleted or over, and patches the pod's status. As a kubelet since 1.27, it reports a terminal phase of a deleted
pod, with exit codes, before the object goes away: a Job with a podFailurePolicy waits for that.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from elastic_tpu.tests.controlplane.container import CannotConfigure, Container, Json, environment, expand, stamp
from elastic_tpu.tests.controlplane.identity import FOLDER, Identity, has_token
from kubernetes.client import CoreV1Api
from kubernetes.client.rest import ApiException
from urllib3.exceptions import HTTPError

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
# (pod, container, environment, command + args) -> what really runs and what its environment has on top.
Programs = Callable[[Json, Json, dict[str, str], list[str]], tuple[list[str], dict[str, str]] | None]
SLEEP = ["sleep", "infinity"]  # a program that does nothing, until SIGTERM: exit 143
_RETRY = 0.5  # seconds until something that the API server did not take is sent again
_log = logging.getLogger(__name__)


@dataclass
class Host:
    """What all pods of a kubelet share."""

    core: CoreV1Api
    folder: Path
    programs: Programs
    identity: Identity
    backoff: float
    closing: threading.Event = field(default_factory=threading.Event)
    sessions: set[int] = field(default_factory=set)  # of every process that was ever started
    problems: list[BaseException] = field(default_factory=list)


class OnNode(Protocol):
    """What a pod must know about its node."""

    silent: bool
    lost: bool


class Pod:
    """One pod bound to a node of this kubelet."""

    def __init__(self, host: Host, node: OnNode, obj: Json) -> None:
        meta, spec = obj["metadata"], obj["spec"]
        self.name, self.namespace, self.uid = str(meta["name"]), str(meta["namespace"]), str(meta["uid"])
        self.folder = host.folder / "pods" / self.uid
        self.folder.mkdir(parents=True)
        self.phase: Phase = "Pending"
        self.inits = [Container(c, self.folder, self._changed, init=True) for c in spec.get("initContainers", [])]
        self.mains = [Container(c, self.folder, self._changed) for c in spec["containers"]]
        self.node, self.obj = node, obj
        self._host, self._gone = host, False
        self._wake = threading.Event()
        self._given: dict[str, str] | None = None  # the environment that the kubelet adds to every container
        self._sent = ""
        self._since: dict[str, tuple[str, str]] = {}  # condition -> status, and since when
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    # -- what a test may look at ------------------------------------------------------------------------------

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.obj["metadata"].get("labels", {}))

    def container(self, name: str = "") -> Container:
        """By name; the first main one without a name."""
        return next(c for c in [*self.mains, *self.inits] if name in ("", c.name))

    def log(self, container: str = "") -> str:
        """All that the container's newest start has put out."""
        path = self.container(container).log()
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def alive(self) -> bool:
        """Whether something of it runs, or its end is still to be reported."""
        return self._thread.is_alive()

    # -- what the kubelet tells it ----------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait until nothing of it runs, after the kubelet or its node has ended."""
        self._thread.join(seconds)

    def update(self, obj: Json, gone: bool) -> None:
        """The newest state of the object; `gone`: it is no more."""
        self.obj, self._gone = obj, self._gone or gone
        for condition in obj["status"].get("conditions", []):
            if condition["type"] == "Ready" and condition["status"] != self._since.get("Ready", ("", ""))[0]:
                self._sent = ""  # the node's controller said so, or this is old news: a kubelet has the last word
        self._wake.set()

    def wake(self) -> None:
        """Something around the pod has changed."""
        self._wake.set()

    # -- life -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            deleted = self._live()
            self._end(deleted)
            self._settle("Failed" if any(c.code != 0 for c in self.mains) else "Succeeded")
        except Exception as error:
            _log.exception("pod %s", self.name)
            self._host.problems.append(error)
            for container in [*self.mains, *self.inits]:
                container.signal(signal.SIGKILL)

    def _live(self) -> bool:
        """Until the pod is over (False) or is to end (True)."""
        while self._grace() is None:
            phase = self._step()
            if phase in ("Succeeded", "Failed"):
                return False
            reported = self._report(phase)
            waiting = [c.due for c in self._wanted() if not c.running]
            if not reported or self._given is None:
                waiting.append(time.monotonic() + _RETRY)
            until = min(waiting, default=None)
            self._sleep(None if until is None else max(until - time.monotonic(), 0.0))
        return True

    def _step(self) -> Phase:
        """Start what is due; the phase that follows."""
        if self._given is None and not self.node.silent:
            self._given = self._host.identity.of(self.obj, self.folder)
        if self._given is None:
            return "Pending"
        for container in self.inits:
            self._keep(container)
            if not container.running and container.code is not None and not self._again(container) and container.code:
                return "Failed"
            done = container.running if container.sidecar else container.code == 0
            if not done and not self._initialized:
                return "Pending"
        for container in self.mains:
            self._keep(container)
        if any(c.running or c.code is None or self._again(c) for c in self.mains):
            return "Running" if self._initialized else "Pending"
        return "Failed" if any(c.code for c in self.mains) else "Succeeded"

    @property
    def _initialized(self) -> bool:
        return any(c.starts for c in self.mains)

    def _wanted(self) -> list[Container]:
        """Containers that are to run and do not, or do: the ones whose `due` counts."""
        first = next((c for c in self.inits if not (c.running if c.sidecar else c.code == 0)), None)
        if first is not None and not self._initialized:
            return [first]
        return [c for c in [*self.inits, *self.mains] if c.code is None or self._again(c)]

    def _again(self, container: Container) -> bool:
        """Whether this container, once it has ended, is started again."""
        if container.sidecar:
            return True
        policy = self.obj["spec"].get("restartPolicy", "Always")
        if container.init:
            return policy != "Never" and container.code != 0
        return policy == "Always" or (policy == "OnFailure" and container.code != 0)

    def _keep(self, container: Container) -> None:
        first = container.code is None
        if container.running or time.monotonic() < container.due or not (first or self._again(container)):
            return
        try:
            given = {k: v for k, v in (self._given or {}).items() if k != FOLDER or has_token(container.spec)}
            env = environment(container.spec, self.obj, self._secret, given)
        except CannotConfigure as error:
            container.block(str(error))
            return
        argv = [expand(text, env) for text in [*container.spec.get("command", []), *container.spec.get("args", [])]]
        argv, extra = self._host.programs(self.obj, container.spec, dict(env), argv) or (SLEEP, {})
        around = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self._host.sessions.add(container.start(argv, {**around, **env, **extra}, self._host.backoff))

    def _secret(self, name: str, key: str) -> str | None:
        return self._host.identity.secret(self.namespace, name, key)

    # -- the end ----------------------------------------------------------------------------------------------

    def _grace(self) -> float | None:
        """Seconds that the containers have to end; None: nobody wants them to."""
        if self._gone or self._host.closing.is_set() or self.node.lost:
            return 0.0
        meta = self.obj["metadata"]
        return float(meta["deletionGracePeriodSeconds"]) if meta.get("deletionTimestamp") else None

    def _end(self, deleted: bool) -> None:
        """End what still runs: the main containers, then the sidecars, the last one first."""
        began, usual = time.monotonic(), float(self.obj["spec"].get("terminationGracePeriodSeconds", 30))
        for group in [self.mains, *([c] for c in reversed(self.inits))]:
            asked = False
            while running := [c for c in group if c.running]:
                grace = self._grace()
                left = began + (usual if grace is None else grace) - time.monotonic()
                for container in running:
                    if left <= 0 or not asked:
                        container.signal(signal.SIGTERM if left > 0 else signal.SIGKILL)
                asked = True
                if not deleted:
                    self._report("Running")  # a pod whose sidecars still run is not over
                self._sleep(left if left > 0 else _RETRY)

    def _settle(self, phase: Phase) -> None:
        """Report the last phase; an ended pod stays, with its logs, until its object is gone."""
        while not (self._gone or self._host.closing.is_set() or self.node.lost):
            reported = self._report(phase)
            if reported and self.obj["metadata"].get("deletionTimestamp"):
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
                reported = self._call(self._host.core.delete_namespaced_pod, options)
                if reported and not self.obj["metadata"].get("finalizers"):
                    return
            self._sleep(_RETRY if not reported else None)

    # -- the API ----------------------------------------------------------------------------------------------

    def _report(self, phase: Phase) -> bool:
        """Patch the status unless the server has it already; False: not now."""
        ended = phase in ("Succeeded", "Failed")
        inits = [c.status(self._again(c) and not ended) for c in self.inits]
        mains = [c.status(self._again(c) and not ended) for c in self.mains]
        sidecars = [s for s, c in zip(inits, self.inits, strict=True) if c.sidecar]
        ready = phase == "Running" and all(s["ready"] for s in [*sidecars, *mains])
        flags = {"Initialized": self._initialized or phase == "Succeeded", "ContainersReady": ready, "Ready": ready}
        why = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")
        status = {
            "phase": phase,
            "conditions": [self._condition(name, str(value), "" if value else why) for name, value in flags.items()],
            "initContainerStatuses": inits,
            "containerStatuses": mains,
            **{"hostIP": "127.0.0.1", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]},
            "startTime": self.obj.get("status", {}).get("startTime") or stamp(),
        }
        self.phase = phase
        text = json.dumps({**status, "startTime": ""}, sort_keys=True)
        if text == self._sent:
            return True
        body = {"metadata": {"uid": self.uid}, "status": status}
        if not self._call(self._host.core.patch_namespaced_pod_status, body):
            return False
        self._sent = text
        return True

    def _condition(self, name: str, status: str, reason: str) -> Json:
        if self._since.get(name, ("", ""))[0] != status:
            self._since[name] = (status, stamp())
        return {"type": name, "status": status, "reason": reason, "lastTransitionTime": self._since[name][1]}

    def _call(self, call: Callable[..., Any], body: Json) -> bool:
        """Whether the server took it; a silent node reaches no server."""
        if self.node.silent:
            return False
        try:
            call(self.name, self.namespace, body=body, _preload_content=False)
        except ApiException as error:
            if error.status == 404 or (error.status == 409 and "UID" in str(error.body)):
                self._gone = True  # or another pod has its name
            elif error.status == 422:
                raise
            return False
        except HTTPError:
            return False  # the server is away: sent again later
        return True

    def _changed(self) -> None:
        self._wake.set()

    def _sleep(self, seconds: float | None) -> None:
        self._wake.wait(seconds)
        self._wake.clear()
