"""Pods that keep a part of the run from starting again or from ending, and what to delete for that. Pure.

- Stuck: deleted, but still there long after its grace, since its node does not answer. Kubernetes does not replace it
  by itself. A Job that decides by exit codes waits for that of its pod, which nobody reports, even if the pod is
  deleted by force. And with exclusive topology the new pods of a slice are sent to the node of the old ones as long as
  those exist. So the Job of a stuck pod is deleted as well; JobSet makes its Jobs anew.
- Lingering: the trainer has ended, and another container (a sidecar that a webhook added) goes on, so the pod never
  ends.

What to delete is worked out at each look, so a deletion that failed is tried again. A Job is deleted for pods of its
own only: the one that replaced it has the time to start that any other has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ....runs.errors import final_codes
from .. import names
from ..k8s_json import (
    JOBSET_UID,
    Json,
    condition,
    containers,
    created,
    holds,
    is_being_deleted,
    label,
    name_of,
    newest,
    parse_time,
    phase,
)
from .reasons import ContainerEnd, end_of

POOL = "cloud.google.com/gke-nodepool"
_SILENT = timedelta(seconds=30)  # a kubelet that works has ended a pod this long after its grace
_LAST_WORDS = timedelta(seconds=10)  # that the other containers of a pod may need after the trainer
_KUBERNETES_OWN = ("batch.kubernetes.io/job-tracking", "foregroundDeletion", "orphan")


@dataclass(frozen=True)
class Deletions:
    """What to delete so that pods are made again on other nodes, or end.

    Attributes:
      jobs: name and uid, to be deleted first, in this order, in the foreground (with their pods).
      pods: the stuck pods, to be deleted by force after the Jobs.
      lingering: pods to be deleted with a short grace: their node answers, and their exit codes count.
    """

    jobs: tuple[tuple[str, str], ...] = ()
    pods: tuple[Json, ...] = ()
    lingering: tuple[Json, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.jobs or self.pods or self.lingering)


def stuck(pods: Sequence[Json], now: datetime) -> list[Json]:
    """The pods that are stuck: only a deletion by force removes them.

    Args:
      now: by a clock that agrees with the API server's to seconds.
    """
    return [pod for pod in _overdue(pods, now) if not _finalizers(pod)]


def kept(pods: Sequence[Json], now: datetime) -> list[str]:
    """In words, which deleted pods somebody else's finalizers keep, which no deletion of ours removes."""
    return [
        f"pod {name_of(pod)} was deleted and is kept by the finalizer {', '.join(_finalizers(pod))}, which is not ours"
        for pod in _overdue(pods, now)
        if _finalizers(pod)
    ]


def stuck_head(pods: Sequence[Json], now: datetime) -> Json | None:
    """The head's pod if it is stuck: no other head is made before it is gone."""
    return newest(p for p in stuck(pods, now) if label(p, names.REPLICATED_JOB) == names.HEAD)


def deletions(pods: Sequence[Json], now: datetime) -> Deletions:
    """What to delete, from the pods of a run or of one of its plain Jobs; empty if they start and end by themselves.

    For a stuck head, all Jobs of its JobSet, as in a restart, the head's last; for a stuck worker, its own Job only. A
    plain Job that is deleted has no result: its stage ends with 75 and the orchestrator runs it again.
    """
    silent, head = stuck(pods, now), stuck_head(pods, now)
    of_head = [] if head is None else [p for p in pods if _is_of_life(p, head)]
    # A slice that is ready on other nodes keeps its Job: only its old pods are stuck.
    others = [p for p in silent if p not in of_head and not _is_ready_elsewhere(p, pods)]
    owners = {owner: _child_job(p)[1] == names.HEAD for p in of_head + others for owner in _owner_jobs(p)}
    jobs = tuple(sorted(owners, key=lambda owner: (owners[owner], owner)))
    ended = (lingering([pod], now) for pod in pods)
    again = [e for e in ended if e is not None and e[1].exit_code not in (0, *final_codes("trainer"))]
    return Deletions(jobs, tuple(silent), tuple(pod for pod, _ in again))


def lacking(pods: Sequence[Json]) -> list[str]:
    """In words, which slice waits in a node pool that has too few nodes for it.

    Exclusive topology sends all pods of a slice to the pool of its first one. Making the slice anew does not help: the
    scheduler prefers the nodes that have the images, those of the same pool.
    """
    slices: dict[tuple[str, ...], list[Json]] = {}
    for pod in pods:
        if label(pod, names.REPLICATED_JOB) == names.WORKER and not is_being_deleted(pod):
            slices.setdefault(_child_job(pod), []).append(pod)
    found = []
    for (_, _, index), of_slice in sorted(slices.items()):
        waiting = [((pod.get("spec") or {}).get("nodeSelector") or {}).get(POOL) for pod in of_slice if _waits(pod)]
        if len(waiting) < len(of_slice) and any(waiting):
            few = f"lacks a node for {len(waiting)} of {len(of_slice)} pods"
            found.append(f"slice {index}: node pool {next(filter(None, waiting))} {few}")
    return found


def lingering(pods: Sequence[Json], now: datetime) -> tuple[Json, ContainerEnd] | None:
    """The newest pod, and how its trainer ended, if another of its containers keeps it from ending; else None."""
    pod = newest(pods)
    end = end_of(pod, names.TRAINER) if pod is not None else None
    if pod is None or end is None or is_being_deleted(pod) or phase(pod) != "Running" or now - end.at < _LAST_WORDS:
        return None
    state = {status["name"]: status.get("state") or {} for status in containers(pod)}
    mains = [container["name"] for container in (pod.get("spec") or {}).get("containers") or []]
    others = any("running" in state.get(name, {}) for name in mains if name != names.TRAINER)
    return (pod, end) if others and "terminated" in state.get(names.TRAINER, {}) else None


def _overdue(pods: Sequence[Json], now: datetime) -> list[Json]:
    # A pod's deletionTimestamp is the end of its grace, not its beginning.
    return [p for p in pods if (end := parse_time(p["metadata"].get("deletionTimestamp"))) and now - end > _SILENT]


def _finalizers(pod: Json) -> list[str]:
    """Those of others: our deletion does not remove the pod, and its Job's deletion would wait for them as well."""
    return [name for name in pod["metadata"].get("finalizers") or [] if name not in _KUBERNETES_OWN]


def _waits(pod: Json) -> bool:
    scheduled = condition(pod, "PodScheduled")
    return phase(pod) == "Pending" and scheduled is not None and scheduled.get("status") == "False"


def _is_of_life(pod: Json, head: Json) -> bool:
    """Whether a pod was made before the head was deleted, in the same JobSet: what came after has started anew."""
    ended = parse_time(head["metadata"].get("deletionTimestamp"))
    grace = timedelta(seconds=float(head["metadata"].get("deletionGracePeriodSeconds") or 0))
    return (
        _jobset(pod) == _jobset(head) and bool(label(pod, JOBSET_UID)) and (not ended or created(pod) <= ended - grace)
    )


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
