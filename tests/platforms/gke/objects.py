"""JobSets, Jobs, pods and events as a real control plane showed them, and changes to them for what was not recorded.

`recorded.json` is from Kubernetes 1.36.3 and JobSet 0.12.0: two slices of two VMs, trimmed to what can be read. Where
no kubelet was there to do it, what a kubelet writes of a container was written by hand.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from elastic_tpu.platforms.gke.status.state import ClusterLook, look, look_job
from elastic_tpu.runs.judge.verdict import Observation

Json = dict[str, Any]


@cache
def _file() -> dict[str, Json]:
    return json.loads(Path(__file__).with_name("recorded.json").read_text())  # type: ignore[no-any-return]


def names(kind: str) -> list[str]:
    """The recorded moments of JobSets, or of Jobs."""
    return [name for name, moment in _file().items() if kind in moment]


@dataclass
class Moment:
    """All objects of one run at one moment; free to be changed."""

    name: str
    object: Json
    pods: list[Json]
    events: list[Json]
    now: datetime

    def look(self, later: float = 0.0) -> ClusterLook:
        """The look at it, some seconds later."""
        return look(self.object, self.pods, self.events, self.now + timedelta(seconds=later))

    def look_job(self, later: float = 0.0) -> Observation:
        """The look at a plain Job."""
        return look_job(self.object, self.pods, self.events, self.now + timedelta(seconds=later)).observation

    def status(self, part: str) -> Json:
        """The counts of a replicated Job."""
        return next(r for r in self.object["status"]["replicatedJobsStatus"] if r["name"] == part)  # type: ignore[no-any-return]

    def condition(self, kind: str) -> Json:
        """The condition of that type."""
        return next(c for c in self.object["status"]["conditions"] if c["type"] == kind)  # type: ignore[no-any-return]

    def pod(self, part: str = "") -> Json:
        """The first pod whose name has this in it."""
        return next(p for p in self.pods if part in p["metadata"]["name"])

    def container(self, part: str, name: str) -> Json:
        """The status of a container."""
        status = self.pod(part)["status"]
        every = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
        return next(c for c in every if c["name"] == name)  # type: ignore[no-any-return]

    def says(self, kind: str, name: str, reason: str, message: str, seconds: float = 0.0, **more: Any) -> Json:
        """Add an event of so many seconds after this moment."""
        at = (self.now + timedelta(seconds=seconds)).isoformat()
        involved = {"kind": kind, "name": name, **({"uid": more.pop("uid")} if "uid" in more else {})}
        event = {"involvedObject": involved, "reason": reason, "message": message, "lastTimestamp": at, **more}
        self.events.append(event)
        return event


def recorded(name: str) -> Moment:
    """A copy of what was recorded."""
    moment = deepcopy(_file()[name])
    found = moment.get("jobset") or moment["job"]
    return Moment(name, found, moment["pods"], moment["events"], datetime.fromisoformat(moment["now"]))


def ended(code: int, reason: str = "Error", message: str = "", at: str = "2026-11-29T20:36:57Z") -> Json:
    """The state of a container that ended."""
    over: Json = {"exitCode": code, "reason": reason, "startedAt": at, "finishedAt": at}
    return {"terminated": {**over, "message": message} if message else over}
