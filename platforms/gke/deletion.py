"""Deletes objects of a run by uid, and waits until they and their pods are gone, also pods on nodes that are silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from ...runs.errors import Changed
from . import names
from .api.cluster import Cluster
from .api.observer import Observer
from .k8s_json import JOBSET_UID, Json, label
from .status.stuck_pods import Deletions, kept, stuck

DELETION_TIMEOUT = 900.0  # seconds until a deleted object must be gone: more than the head's grace of 300
_LINGERS = 5  # seconds that what goes on in a pod without its trainer gets to end
_LOOK = 1.0  # seconds between two looks at an object that is being deleted


class Deleter:
    """Finds and deletes the objects of one run. Every deletion carries a uid, so a newer object of the name stays.

    Calls may raise what `Cluster` raises, above all Unreachable.
    """

    def __init__(self, cluster: Cluster, observer: Observer, run_id: str) -> None:
        self._cluster, self._observer, self._run_id = cluster, observer, run_id

    def get(self, kind: str, name: str) -> Json | None:
        """The JobSet or Job of this name as it is now; None if there is none."""
        return self._observer.jobset(name, fresh=True) if kind == "JobSet" else self._cluster.get_job(name)

    def pods(self, selector: str = "") -> list[Json]:
        """Pods of the run, or those of them that match a label selector."""
        mine = f"{names.RUN_ID}={self._run_id}"
        return self._cluster.list_pods(f"{mine},{selector}" if selector else mine)

    def delete(self, kind: str, found: Json) -> None:
        """Delete a JobSet or Job in the foreground: it exists until all that it owns is gone. Does not wait."""
        meta = found["metadata"]
        with suppress(Changed):  # another object has the name by now, so this one is gone
            if kind == "JobSet":
                self._cluster.delete_jobset(meta["name"], meta["uid"])
            else:
                self._cluster.delete_job(meta["name"], meta["uid"], foreground=True)

    def force(self, pod: Json) -> bool:
        """Delete a pod by force, without its grace. Returns whether it existed."""
        meta = pod["metadata"]
        with suppress(Changed):
            return self._cluster.delete_pod(meta["name"], meta["uid"], grace=0)
        return False

    def carry_out(self, wanted: Deletions) -> None:
        """Delete the Jobs and pods that keep stuck pods from being made again."""
        for name, uid in wanted.jobs:
            with suppress(Changed):
                # Foreground: pods of a Job that is made anew too early would be sent to the nodes of the old ones.
                self._cluster.delete_job(name, uid, foreground=True)
        for pod in wanted.pods:
            self.force(pod)
        for pod in wanted.lingering:
            with suppress(Changed):
                self._cluster.delete_pod(pod["metadata"]["name"], pod["metadata"]["uid"], grace=_LINGERS)

    def pods_left(self, kind: str, uid: str, found: Json | None) -> list[Json]:
        """Pods that belong to a deleted JobSet or Job and still exist.

        A JobSet does not wait for them all: the trainer may have deleted the child Job of a slice in the background.

        Args:
          uid: of the deleted object; if it is unknown (empty), all pods of JobSets but those of `found`.
          found: the object that has the name now, if any.
        """
        newer = found["metadata"]["uid"] if found is not None and found["metadata"]["uid"] != uid else ""
        return [pod for pod in self.pods() if _is_of(pod, kind, uid, newer)]

    def orphans(self, uid: str, found: Json | None) -> list[Json]:
        """Child Jobs of a JobSet that is gone, which was deleted with `--cascade=orphan`: they would train on.

        Args:
          uid: of the JobSet; if it is unknown (empty), Jobs of all JobSets but `found`.
          found: the JobSet that has the name now, if any.
        """
        newer = found["metadata"]["uid"] if found is not None else ""
        jobs = self._cluster.list_jobs(f"{names.RUN_ID}={self._run_id}")
        return [job for job in jobs if label(job, JOBSET_UID) != newer and _is_of(job, "JobSet", uid, newer)]

    def clear_orphans(self, uid: str, waiting: Callable[[str], None]) -> bool:
        """Delete the orphans, which have the names that a new JobSet needs for its Jobs; False if some do not go."""
        orphans = self.orphans(uid, None)
        for job in orphans:
            self.delete("Job", job)
        return all(self.wait_gone("Job", job["metadata"]["name"], waiting, job["metadata"]["uid"]) for job in orphans)

    def wait_gone(self, kind: str, name: str, waiting: Callable[[str], None], uid: str) -> bool:
        """Wait until a deleted JobSet or Job and its pods are gone; delete stuck pods by force meanwhile.

        Args:
          waiting: called with what is waited for, about once a second; what it raises ends the wait.
          uid: of the deleted object.

        Returns:
          False if something is left after DELETION_TIMEOUT.
        """
        deadline = time.monotonic() + DELETION_TIMEOUT
        while True:
            found = self.get(kind, name)
            left = self.pods_left(kind, uid, found)
            if not left and (found is None or found["metadata"]["uid"] != uid):
                return True
            if time.monotonic() > deadline:
                return False
            if kind == "JobSet" and (found is None or found["metadata"]["uid"] != uid):
                for job in self.orphans(uid, found):
                    self.delete("Job", job)
            for pod in stuck(left, self._cluster.now()):
                self.force(pod)
            words = kept(left, self._cluster.now()) or ["a trainer may be saving"]
            waiting(f"waiting until {kind} {name} and its pods are gone; {'; '.join(words)}")
            time.sleep(_LOOK)


def _is_of(pod: Json, kind: str, uid: str, newer: str) -> bool:
    jobset = label(pod, JOBSET_UID)
    if kind == "JobSet":
        return bool(jobset) and (jobset == uid if uid else jobset != newer)
    return any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or [])
