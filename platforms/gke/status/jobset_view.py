"""A JobSet as the decisions need it: counts by replicated Job, its own pods, and what its conditions remember. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ...base import SliceState
from .. import names
from ..api.k8s_json import (
    JOBSET_UID,
    LONG_AGO,
    Raw,
    changed,
    condition,
    created,
    holds,
    is_being_deleted,
    label,
    name_of,
    phase,
    runs,
    when,
)


@dataclass(frozen=True)
class View:
    """A JobSet as the decisions need it, with the pods that are its own."""

    jobset: Raw
    name: str
    head: dict[str, int]
    worker: dict[str, int]
    wanted: int
    heads: tuple[Raw, ...]
    workers: tuple[Raw, ...]

    @classmethod
    def of(cls, jobset: Raw, pods: Sequence[Raw]) -> View:
        uid = jobset["metadata"].get("uid")
        mine = [p for p in pods if label(p, JOBSET_UID) in ("", uid)]  # not a predecessor's that is still going
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
        return self.worker["ready"]

    @property
    def suspended(self) -> bool:
        # The condition lags behind: after a resume it is true until every slice is ready.
        return bool(self.jobset["spec"].get("suspend"))

    @property
    def restarts(self) -> int:
        return int((self.jobset.get("status") or {}).get("restarts") or 0)

    @property
    def ran(self) -> bool:
        """Whether all slices have been ready at once before."""
        return condition(self.jobset, "StartupPolicyCompleted") is not None

    @property
    def head_up(self) -> bool:
        return self.head["ready"] > 0 or any(runs(p) for p in self.heads)

    @property
    def since(self) -> datetime:
        """When it was let go for the last time: created, resumed, or begun anew after a dip."""
        return max(created(self.jobset), changed(condition(self.jobset, "Suspended")), self._in_progress)

    @property
    def put_back(self) -> datetime | None:
        """Since when it is suspended, after it ran; None if nothing tells.

        The condition comes late, and stays true up to the next suspension if not all slices were ready in between.
        """
        suspended = changed(holds(self.jobset, "Suspended"))
        return suspended if suspended > max(LONG_AGO, self._in_progress) else None

    @property
    def let_go(self) -> datetime | None:
        """Since when its head is to start, after it ran; None if nothing tells: no condition does."""
        return max([self.since, *map(_last_change, self.heads)]) if self.heads else None

    @property
    def begun_anew(self) -> datetime | None:
        """Since when its head is to come back after its end; None if nothing tells.

        The condition stays true up to the next restart if not all slices were ready in between, so pods count as well.
        """
        restarting = changed(holds(self.jobset, "RestartingJobSet"))
        if not self.heads and (restarting == LONG_AGO or not all(is_being_deleted(p) for p in self.workers)):
            return None  # the head has gone this moment, and a restart will follow
        ends = [when(p["metadata"].get("deletionTimestamp")) or LONG_AGO for p in self.workers]
        return max([restarting, *map(_last_change, self.heads), *ends])

    @property
    def _in_progress(self) -> datetime:
        return changed(holds(self.jobset, "StartupPolicyInProgress"))

    @property
    def lost(self) -> list[int]:
        """The slices that are not ready, as far as pods show it."""
        good: dict[int, int] = {}
        for pod in self.workers:
            index = int(label(pod, names.JOB_INDEX) or 0)
            good[index] = good.get(index, 0) + (1 if _is_ready(pod) else 0)
        needed = next(
            (_parallelism(r) for r in self.jobset["spec"]["replicatedJobs"] if r["name"] == names.WORKER), None
        )
        return [i for i in range(self.wanted) if good.get(i, 0) < (needed or 1)] if self.workers else []

    @property
    def evidence(self) -> dict[str, Any]:
        return {
            "uid": self.jobset["metadata"].get("uid"),
            "restarts": self.restarts,
            "slices": [self.ready, self.wanted],
            "ran": self.ran,
            "trainer_lives": self.head_up,
        }

    def slices(self, state: Literal["requested", "ready", "partly", "released"], detail: str = "") -> SliceState:
        if state == "released":
            return SliceState(state, 0, self.wanted, detail)
        return SliceState(state, self.ready, self.wanted, detail, with_job=True)


def _counts(jobset: Raw, name: str) -> dict[str, int]:
    of = (jobset.get("status") or {}).get("replicatedJobsStatus") or []
    found: Raw = next((r for r in of if r.get("name") == name), {})
    return {key: int(found.get(key) or 0) for key in ("ready", "active", "succeeded", "failed", "suspended")}


def _parallelism(replicated: Raw) -> int | None:
    parallelism = ((replicated.get("template") or {}).get("spec") or {}).get("parallelism")
    return None if parallelism is None else int(parallelism)


def _is_ready(pod: Raw) -> bool:
    return phase(pod) == "Running" and not is_being_deleted(pod) and holds(pod, "Ready") is not None


def _last_change(pod: Raw) -> datetime:
    """When a pod was created, or changed its state last: started, ended, lost its node."""
    return max([created(pod), *(changed(c) for c in (pod.get("status") or {}).get("conditions") or [])])
