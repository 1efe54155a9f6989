"""A JobSet as the decisions need it: counts by replicated Job, its own pods, and what its conditions remember. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ..base import SliceState
from . import names
from .raw import (
    JOBSET_UID,
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
        begun = changed(holds(self.jobset, "StartupPolicyInProgress"))
        return max(created(self.jobset), changed(condition(self.jobset, "Suspended")), begun)

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
        return SliceState(state, 0 if state == "released" else self.ready, self.wanted, detail)


def _counts(jobset: Raw, name: str) -> dict[str, int]:
    of = (jobset.get("status") or {}).get("replicatedJobsStatus") or []
    found: Raw = next((r for r in of if r.get("name") == name), {})
    return {key: int(found.get(key) or 0) for key in ("ready", "active", "succeeded", "failed", "suspended")}


def _parallelism(replicated: Raw) -> int | None:
    parallelism = ((replicated.get("template") or {}).get("spec") or {}).get("parallelism")
    return None if parallelism is None else int(parallelism)


def _is_ready(pod: Raw) -> bool:
    return phase(pod) == "Running" and not is_being_deleted(pod) and holds(pod, "Ready") is not None
