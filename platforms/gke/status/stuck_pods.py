"""What hangs on a node that fell silent, and what has to be deleted so that it begins anew elsewhere. Pure.

Nobody tells how a pod on a silent node ended. A Job that decides by exit codes waits for that, even when its pod is
deleted by force; and a new pod of a slice is sent to where the old ones are, as long as they are there (exclusive
topology). So the Jobs are deleted as well as the pods, and JobSet makes its own anew. All of it is looked for again at
each look, so that a deletion that failed is made up for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from .. import names
from ..api.k8s_json import JOBSET_UID, Raw, holds, is_being_deleted, label
from .state import stuck, stuck_head


@dataclass(frozen=True)
class Hanging:
    """`jobs`: name and uid, to be deleted with their pods; `pods`: to be deleted by force, after that."""

    jobs: tuple[tuple[str, str], ...]
    pods: tuple[Raw, ...]


def hanging(pods: Sequence[Raw], now: datetime) -> Hanging:
    """What hangs of a run, or of one of its Jobs.

    A head takes all slices along, as a restart does, and a slice is begun anew alone. A plain Job that is deleted has
    no result: its stage ends with 75, and the orchestrator begins it anew.
    """
    silent, head = stuck(pods, now), stuck_head(pods, now)
    parts = {_part(pod) for pod in silent}
    # A slice that is back on other nodes has left its old pods behind, unless its head takes it along.
    taken = [p for p in pods if head is not None and label(p, JOBSET_UID) == _jobset(head)]
    anew = taken + [p for p in pods if p not in taken and _part(p) in parts and not _is_back(p, pods)]
    owners = {owner: _part(pod)[1] == names.HEAD for pod in anew for owner in _owners(pod)}
    return Hanging(tuple(sorted(owners, key=lambda owner: (owners[owner], owner))), tuple(silent))


def _part(pod: Raw) -> tuple[str, str, str]:
    """Which part of which JobSet, or which plain Job, a pod is of."""
    return _jobset(pod), label(pod, names.REPLICATED_JOB) or label(pod, names.ROLE), label(pod, names.JOB_INDEX)


def _jobset(pod: Raw) -> str:
    return label(pod, JOBSET_UID) or "none"


def _is_back(pod: Raw, pods: Sequence[Raw]) -> bool:
    living = [p for p in pods if _part(p) == _part(pod) and not is_being_deleted(p)]
    return bool(living) and all(holds(p, "Ready") for p in living)


def _owners(pod: Raw) -> list[tuple[str, str]]:
    owners = pod["metadata"].get("ownerReferences") or []
    return [(owner["name"], owner["uid"]) for owner in owners if owner.get("kind") == "Job"]
