"""A JobSet and its pods, prepared for `state`: counts, conditions and times under one name each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ...base import SliceState
from .. import names
from ..k8s_json import (
    JOBSET_UID,
    LONG_AGO,
    Json,
    changed,
    condition,
    container_runs,
    created,
    holds,
    is_being_deleted,
    label,
    name_of,
    parse_time,
    phase,
)


@dataclass(frozen=True)
class JobSetView:
    """A JobSet with its own pods.

    Attributes:
      json: the JobSet itself, whole or as the observer trims it.
      head, worker: `replicatedJobsStatus` of the head and of the workers: how many child Jobs are ready, active,
        succeeded, failed, suspended.
      wanted: slices of the run.
      heads, workers: pods of this JobSet.
    """

    json: Json
    name: str
    head: dict[str, int]
    worker: dict[str, int]
    wanted: int
    heads: tuple[Json, ...]
    workers: tuple[Json, ...]

    @classmethod
    def of(cls, jobset: Json, pods: Sequence[Json]) -> JobSetView:
        """From a JobSet (whole, or as the observer trims it) and pods of the run.

        Pods of an earlier JobSet with the same name, which may still be ending, are left out.
        """
        uid = jobset["metadata"].get("uid")
        mine = [p for p in pods if label(p, JOBSET_UID) in ("", uid)]
        wanted = next((r.get("replicas", 1) for r in jobset["spec"]["replicatedJobs"] if r["name"] == names.WORKER), 0)
        return cls(
            jobset,
            name_of(jobset),
            _counts(jobset, names.HEAD),
            _counts(jobset, names.WORKER),
            int(wanted),
            tuple(p for p in mine if label(p, names.REPLICATED_JOB) == names.HEAD),
            tuple(p for p in mine if label(p, names.REPLICATED_JOB) == names.WORKER),
        )

    @property
    def ready(self) -> int:
        """How many slices are ready."""
        return self.worker["ready"]

    @property
    def suspended(self) -> bool:
        """Whether the JobSet is suspended now, by its spec: the condition stays true after a resume for a while."""
        return bool(self.json["spec"].get("suspend"))

    @property
    def restarts(self) -> int:
        """How often JobSet has restarted everything."""
        return int((self.json.get("status") or {}).get("restarts") or 0)

    @property
    def ran(self) -> bool:
        """Whether all slices were ready at the same time before."""
        return condition(self.json, "StartupPolicyCompleted") is not None

    @property
    def head_up(self) -> bool:
        """Whether the head is ready, or its trainer runs."""
        return self.head["ready"] > 0 or any(container_runs(p) for p in self.heads)

    @property
    def start_began(self) -> datetime:
        """When the current start began: creation, the last resume, or the last time that slices had to start again."""
        return max(created(self.json), changed(condition(self.json, "Suspended")), self._in_progress)

    @property
    def suspended_since(self) -> datetime | None:
        """Since when a JobSet that ran before is suspended; None if unknown.

        The condition Suspended comes late. It is also stale if not all slices were ready since the last suspension:
        then it is older than StartupPolicyInProgress, and does not count.
        """
        suspended = changed(holds(self.json, "Suspended"))
        return suspended if suspended > max(LONG_AGO, self._in_progress) else None

    @property
    def head_starting_since(self) -> datetime | None:
        """Since when the head of a JobSet that ran before is starting; None if unknown: only its pods tell."""
        return max([self.start_began, *map(_last_change, self.heads)]) if self.heads else None

    @property
    def restarting_since(self) -> datetime | None:
        """Since when a head that ended is being restarted; None if unknown.

        The condition RestartingJobSet is stale if not all slices were ready since the last restart, so the newest
        time of the condition, the head's pods and the deletion of the workers' pods counts.
        """
        restarting = changed(holds(self.json, "RestartingJobSet"))
        if not self.heads and (restarting == LONG_AGO or not all(is_being_deleted(p) for p in self.workers)):
            return None  # the head's pod is just gone, and JobSet has not begun the restart
        ends = [parse_time(p["metadata"].get("deletionTimestamp")) or LONG_AGO for p in self.workers]
        return max([restarting, *map(_last_change, self.heads), *ends])

    @property
    def _in_progress(self) -> datetime:
        return changed(holds(self.json, "StartupPolicyInProgress"))

    @property
    def not_ready(self) -> list[int]:
        """Indices of the slices that are not ready; empty if no worker pods are known."""
        good: dict[int, int] = {}
        for pod in self.workers:
            index = int(label(pod, names.JOB_INDEX) or 0)
            good[index] = good.get(index, 0) + (1 if _is_ready(pod) else 0)
        needed = next((_parallelism(r) for r in self.json["spec"]["replicatedJobs"] if r["name"] == names.WORKER), None)
        return [i for i in range(self.wanted) if good.get(i, 0) < (needed or 1)] if self.workers else []

    @property
    def evidence(self) -> dict[str, Any]:
        """What an observation shows to people: uid, restarts, [ready, wanted] slices."""
        return {
            "uid": self.json["metadata"].get("uid"),
            "restarts": self.restarts,
            "slices": [self.ready, self.wanted],
        }

    def slice_state(self, state: Literal["requested", "ready", "partly", "released"], detail: str = "") -> SliceState:
        """The state of the slices, which come and go with this JobSet."""
        if state == "released":
            return SliceState(state, 0, self.wanted, detail)
        return SliceState(state, self.ready, self.wanted, detail, with_job=True)


def _counts(jobset: Json, name: str) -> dict[str, int]:
    of = (jobset.get("status") or {}).get("replicatedJobsStatus") or []
    found: Json = next((r for r in of if r.get("name") == name), {})
    return {key: int(found.get(key) or 0) for key in ("ready", "active", "succeeded", "failed", "suspended")}


def _parallelism(replicated: Json) -> int | None:
    parallelism = ((replicated.get("template") or {}).get("spec") or {}).get("parallelism")
    return None if parallelism is None else int(parallelism)


def _is_ready(pod: Json) -> bool:
    return phase(pod) == "Running" and not is_being_deleted(pod) and holds(pod, "Ready") is not None


def _last_change(pod: Json) -> datetime:
    """When a pod was created, or its conditions changed last: it started, ended, or lost its node."""
    return max([created(pod), *(changed(c) for c in (pod.get("status") or {}).get("conditions") or [])])
