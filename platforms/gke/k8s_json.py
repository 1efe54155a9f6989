"""Reads the JSON objects of the Kubernetes API: conditions by type, times, containers. Pure, standard library only.

Arguments are whole objects (`{"metadata": ..., "spec": ..., "status": ...}`) unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from . import names

Json = dict[str, Any]
"""An object of the Kubernetes API, or a part of one, as `json.loads` gives it."""

JOB_NAME = "batch.kubernetes.io/job-name"  # labels that the Job and JobSet controllers put on pods
JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)  # stands for a time that the object does not tell


def parse_time(text: object) -> datetime | None:
    """A timestamp of the API server (RFC 3339); None if the field is missing, empty or no time."""
    try:
        when = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:  # what some controller wrote must not end a look at the run
        return None
    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when


def name_of(found: Json) -> str:
    """`metadata.name`; empty if it is missing."""
    return str(found["metadata"].get("name", ""))


def created(found: Json) -> datetime:
    """`metadata.creationTimestamp`; LONG_AGO if it is missing."""
    return parse_time(found["metadata"].get("creationTimestamp")) or LONG_AGO


def is_being_deleted(found: Json) -> bool:
    """Whether the object was deleted and still exists, because finalizers or a pod's grace keep it."""
    return bool(found["metadata"].get("deletionTimestamp"))


def label(found: Json, key: str) -> str:
    """The value of a label; empty if the object has no such label."""
    return str((found["metadata"].get("labels") or {}).get(key, ""))


def condition(found: Json, kind: str) -> Json | None:
    """The condition of this type, whatever its status; None if there is none. Their order means nothing."""
    conditions = (found.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), None)


def holds(found: Json, kind: str) -> Json | None:
    """The condition of this type if its status is True, else None."""
    found_condition = condition(found, kind)
    return found_condition if found_condition is not None and found_condition.get("status") == "True" else None


def changed(found_condition: Json | None) -> datetime:
    """`lastTransitionTime` of a condition; LONG_AGO if there is no condition."""
    return parse_time((found_condition or {}).get("lastTransitionTime")) or LONG_AGO


def phase(pod: Json) -> str:
    """The pod's phase: Pending, Running, Succeeded, Failed or Unknown; empty before the first status."""
    return str((pod.get("status") or {}).get("phase", ""))


def containers(pod: Json) -> list[Json]:
    """The container statuses of a pod: first init containers and sidecars, then the others."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def container_runs(pod: Json, container: str = names.TRAINER) -> bool:
    """Whether this container runs, in a pod that is Running and was not deleted."""
    states = [c.get("state") or {} for c in containers(pod) if c.get("name") == container]
    return phase(pod) == "Running" and not is_being_deleted(pod) and any("running" in s for s in states)


def newest(pods: Iterable[Json]) -> Json | None:
    """The pod that was created last; None if there are none."""
    return max(pods, key=created, default=None)


def event_time(event: Json) -> datetime:
    """When an event happened last: the first of the three fields that is set, since each reporter sets another one."""
    series = event.get("series") or {}
    for value in (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")):
        if (time := parse_time(value)) is not None:
            return time
    return created(event)
