"""Reading the API's raw JSON objects: conditions by type, times, containers. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from .. import names

Raw = dict[str, Any]

JOB_NAME = "batch.kubernetes.io/job-name"  # labels that the Job and JobSet controllers put on pods
JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def when(text: object) -> datetime | None:
    """A server's timestamp; None for none."""
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None


def name_of(found: Raw) -> str:
    """`metadata.name`."""
    return str(found["metadata"].get("name", ""))


def created(found: Raw) -> datetime:
    """`metadata.creationTimestamp`."""
    return when(found["metadata"].get("creationTimestamp")) or LONG_AGO


def is_being_deleted(found: Raw) -> bool:
    """Whether somebody has deleted it and it is not gone yet."""
    return bool(found["metadata"].get("deletionTimestamp"))


def label(found: Raw, key: str) -> str:
    """A label's value, empty if it has none."""
    return str((found["metadata"].get("labels") or {}).get(key, ""))


def condition(found: Raw, kind: str) -> Raw | None:
    """The condition of that type, whatever its status; their order means nothing."""
    conditions = (found.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), None)


def holds(found: Raw, kind: str) -> Raw | None:
    """The condition of that type if it is true."""
    found_condition = condition(found, kind)
    return found_condition if found_condition is not None and found_condition.get("status") == "True" else None


def changed(found_condition: Raw | None) -> datetime:
    """When a condition changed last; long ago if there is none."""
    return when((found_condition or {}).get("lastTransitionTime")) or LONG_AGO


def phase(pod: Raw) -> str:
    """Pending, Running, Succeeded, Failed or Unknown."""
    return str((pod.get("status") or {}).get("phase", ""))


def containers(pod: Raw) -> list[Raw]:
    """The statuses of a pod's containers, sidecars and init containers first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def runs(pod: Raw, container: str = names.TRAINER) -> bool:
    """Whether a container of the pod runs and nobody is ending the pod."""
    states = [c.get("state") or {} for c in containers(pod) if c.get("name") == container]
    return phase(pod) == "Running" and not is_being_deleted(pod) and any("running" in s for s in states)


def newest(pods: Iterable[Raw]) -> Raw | None:
    """The pod that was created last."""
    return max(pods, key=created, default=None)


def seen_at(event: Raw) -> datetime:
    """When an event happened last; which field says so depends on who wrote it."""
    series = event.get("series") or {}
    for value in (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")):
        if (time := when(value)) is not None:
            return time
    return created(event)
