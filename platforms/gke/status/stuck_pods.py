"""Stuck pods: deleted, but still there long after their grace, since their node does not answer. Pure.

Kubernetes does not replace a stuck pod by itself. A Job that decides by exit codes waits for that of its pod, which
nobody reports, even if the pod is deleted by force. And with exclusive topology the new pods of a slice are sent to the
node of the old ones as long as those exist. So the Jobs are deleted as well as the pods; JobSet makes its Jobs anew.
What to delete is worked out at each look, so a deletion that failed is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from .. import names
from ..k8s_json import JOBSET_UID, Json, holds, is_being_deleted, label, newest, parse_time

_SILENT = timedelta(seconds=30)  # a kubelet that works has ended a pod this long after its grace


@dataclass(frozen=True)
class Deletions:
    """What to delete so that stuck pods are made again on other nodes.

    Attributes:
      jobs: name and uid, to be deleted first, in this order, in the foreground (with their pods).
      pods: the stuck pods, to be deleted by force after the Jobs.
    """

    jobs: tuple[tuple[str, str], ...]
    pods: tuple[Json, ...]


def stuck(pods: Sequence[Json], now: datetime) -> list[Json]:
    """The pods that are stuck: only a deletion by force removes them.

    Args:
      now: by a clock that agrees with the API server's to seconds.
    """
    # A pod's deletionTimestamp is the end of its grace, not its beginning.
    return [p for p in pods if (end := parse_time(p["metadata"].get("deletionTimestamp"))) and now - end > _SILENT]


def stuck_head(pods: Sequence[Json], now: datetime) -> Json | None:
    """The head's pod if it is stuck: no other head is made before it is gone."""
    return newest(p for p in stuck(pods, now) if label(p, names.REPLICATED_JOB) == names.HEAD)


def deletions(pods: Sequence[Json], now: datetime) -> Deletions:
    """What to delete, from the pods of a run or of one of its plain Jobs; empty if no pod is stuck.

    For a stuck head, all Jobs of its JobSet, as in a restart, the head's last; for a stuck worker, the Jobs of its
    slice only. A plain Job that is deleted has no result: its stage ends with 75 and the orchestrator runs it again.
    """
    silent, head = stuck(pods, now), stuck_head(pods, now)
    affected = {_child_job(pod) for pod in silent}
    of_head = [p for p in pods if head is not None and label(p, JOBSET_UID) == _jobset(head)]
    # A slice that is ready on other nodes keeps its Job: only its old pods are stuck.
    others = [p for p in pods if p not in of_head and _child_job(p) in affected and not _is_ready_elsewhere(p, pods)]
    owners = {owner: _child_job(pod)[1] == names.HEAD for pod in of_head + others for owner in _owner_jobs(pod)}
    return Deletions(tuple(sorted(owners, key=lambda owner: (owners[owner], owner))), tuple(silent))


def _child_job(pod: Json) -> tuple[str, str, str]:
    """What tells a pod's child Job or plain Job apart, whatever its uid: JobSet's uid, part, index."""
    return _jobset(pod), label(pod, names.REPLICATED_JOB) or label(pod, names.ROLE), label(pod, names.JOB_INDEX)


def _jobset(pod: Json) -> str:
    return label(pod, JOBSET_UID) or "none"


def _is_ready_elsewhere(pod: Json, pods: Sequence[Json]) -> bool:
    living = [p for p in pods if _child_job(p) == _child_job(pod) and not is_being_deleted(p)]
    return bool(living) and all(holds(p, "Ready") for p in living)


def _owner_jobs(pod: Json) -> list[tuple[str, str]]:
    owners = pod["metadata"].get("ownerReferences") or []
    return [(owner["name"], owner["uid"]) for owner in owners if owner.get("kind") == "Job"]
