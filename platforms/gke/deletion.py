"""Ends objects of a run: deleted by uid, and gone only when their pods are, also those on nodes that are silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from ...runs.errors import Changed
from . import names
from .api.cluster import Cluster
from .api.k8s_json import JOBSET_UID, Raw, label
from .api.observer import Observer
from .status import state
from .status.stuck_pods import Hanging

GONE = 900.0  # seconds until a deleted object must be gone: the head's grace, and some
_LOOK = 1.0  # seconds between two looks at something that is being deleted


class Ending:
    """What deletes objects of a run. Every deletion names a uid: another object of that name is left alone."""

    def __init__(self, cluster: Cluster, observer: Observer, run_id: str) -> None:
        self._cluster, self._observer, self._run_id = cluster, observer, run_id

    def get(self, kind: str, name: str) -> Raw | None:
        """A JobSet or a Job, fresh: what is created or deleted next depends on it."""
        return self._observer.jobset(name, fresh=True) if kind == "JobSet" else self._cluster.get_job(name)

    def pods(self, selector: str = "") -> list[Raw]:
        """Pods of the run."""
        mine = f"{names.RUN_ID}={self._run_id}"
        return self._cluster.list_pods(f"{mine},{selector}" if selector else mine)

    def delete(self, kind: str, found: Raw) -> None:
        """Delete a JobSet or a Job, foreground: it is there until what it made is gone."""
        meta = found["metadata"]
        with suppress(Changed):  # another object has the name, which is not what was looked at
            if kind == "JobSet":
                self._cluster.delete_jobset(meta["name"], meta["uid"])
            else:
                self._cluster.delete_job(meta["name"], meta["uid"], foreground=True)

    def force(self, pod: Raw) -> bool:
        """End a pod without its grace; whether it was there."""
        meta = pod["metadata"]
        with suppress(Changed):
            return self._cluster.delete_pod(meta["name"], meta["uid"], force=True)
        return False

    def free(self, found: Hanging) -> None:
        """Foreground: a Job that was made anew while old pods are there would send its own after them."""
        for name, uid in found.jobs:
            with suppress(Changed):
                self._cluster.delete_job(name, uid, foreground=True)
        for pod in found.pods:
            self.force(pod)

    def left(self, kind: str, uid: str, now: Raw | None) -> list[Raw]:
        """Pods of the object with this uid; with none known, those of no object that has its name `now`.

        A slice's Job that the trainer has deleted leaves pods that the JobSet no longer waits for.
        """
        newer = now["metadata"]["uid"] if now is not None and now["metadata"]["uid"] != uid else ""
        return [pod for pod in self.pods() if _is_of(pod, kind, uid, newer)]

    def wait_gone(self, kind: str, name: str, waiting: Callable[[str], None], uid: str) -> bool:
        """Wait until the object with this uid and every pod of it are gone; False when that takes too long."""
        deadline = time.monotonic() + GONE
        while True:
            now = self.get(kind, name)
            left = self.left(kind, uid, now)
            if not left and (now is None or now["metadata"]["uid"] != uid):
                return True
            if time.monotonic() > deadline:
                return False
            for pod in state.stuck(left, self._cluster.now()):
                self.force(pod)
            waiting(f"waiting until {kind} {name} and its pods are gone; a trainer may be saving")
            time.sleep(_LOOK)


def _is_of(pod: Raw, kind: str, uid: str, newer: str) -> bool:
    jobset = label(pod, JOBSET_UID)
    if kind == "JobSet":
        return bool(jobset) and (jobset == uid if uid else jobset != newer)
    return any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or [])
