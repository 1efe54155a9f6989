"""The GKE platform, mode `existing`: slices come with the Pathways JobSet of a run and go with it.

Provision is the preflight, launch creates or adopts, release deletes and verifies. The run needs nobody who watches:
the trainer gets its lost slices back by itself (slices.py) and JobSet restarts a dead head. What a look means is
decided in state.py; whose an object is, by its annotations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ...runs import plan, records
from ...runs import run as run_names
from ...runs.errors import BadInput, Changed, ElasticTPUError, Exists, Infrastructure, Problem
from ...runs.events import EventLog
from ...runs.run import Run
from ...runs.spec import Gke
from ...runs.verdict import Observation
from ..base import Job, ReleaseReport, SliceState
from . import manifest, names, preflight, state
from .cluster import Cluster
from .hanging import Hanging, hanging
from .observer import Observer, observer_of

_GONE = 900.0  # seconds until a deleted object must be gone: the head's grace, and some
_LOOK = 1.0  # seconds between two looks at something that is being deleted
_LOG_LINES = 20

Object = dict[str, Any]


def open_gke(run: Run) -> GkePlatform:
    """The platform of a run, with the credentials that its spec names."""
    from .credentials import api_client

    gke = _section(run)
    cluster = Cluster(api_client(gke), gke.namespace)
    return GkePlatform(run, cluster, observer_of(cluster, gke.interval))


class GkePlatform:
    """A run's JobSet and Jobs in one namespace."""

    def __init__(
        self, run: Run, cluster: Cluster, observer: Observer, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._run, self._cluster, self._observer, self._sleep = run, cluster, observer, sleep
        self._gke = _section(run)
        self._plan = plan.make_plan(run.spec)
        self._events = EventLog(run.store, "gke")
        self._given_back: set[str] = set()  # deleted by this process, perhaps in a release that broke off

    # -- slices -----------------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """The preflight: what a cluster would leave pending for ever, without a word, is refused here."""
        account = self._gke.service_account
        problems = preflight.problems(
            self._gke.namespace,
            self._cluster.denied(preflight.LAUNCHER),
            account,
            self._cluster.has_service_account(account),
        )
        if problems:
            raise BadInput(problems)
        found = self._get("JobSet", self._run.run_id)
        if found is not None:
            self._require_ours("JobSet", found)
            self._require_same_spec(found)
        if found is None or not _lives_on(found):
            self._write("checked")

    def slices(self) -> SliceState:
        """Ready means before the launch that nothing stands in the way of it."""
        wanted, recorded = self._run.spec.slices.count, self._record().get("state", "absent")
        if recorded == "absent":
            return SliceState("absent", 0, wanted)  # no JobSet is made without a record
        found = self._observer.jobset(self._run.run_id)
        if found is not None and self._is_ours(found) and _lives_on(found):
            return self._seen(found).slices
        if recorded == "checked":
            where = f"namespace {self._gke.namespace} was checked"
            return SliceState("ready", 0, wanted, f"{where}; {wanted} slices come with the JobSet")
        if recorded == "requested":  # whoever was about to create it did not get that far
            return SliceState("absent", 0, wanted)
        if recorded == "released":
            return SliceState("released", 0, wanted)
        return SliceState("failed", 0, wanted, f"JobSet {self._run.run_id} is gone")

    def release(self, jobs: bool = True) -> ReleaseReport:
        """Delete what is this run's, by uid, and verify that it is gone, pods too."""
        if self._was_refused():
            return ReleaseReport((), (), ())
        wanted = [("JobSet", self._run.run_id)]
        wanted += [("Job", names.plain_job(self._run.run_id, job)) for job in ("export", "evaluate") if jobs]
        existed, deleted, left = list[str](), list[str](), list[str]()
        for kind, name in wanted:
            slices = [f"slice {i}" for i in range(self._run.spec.slices.count)] if kind == "JobSet" else []
            parts = [f"{kind} {name}", *slices]
            found = self._get(kind, name)
            gone = found is None or not self._is_ours(found)
            if found is not None and not gone:
                self._given_back.add(name)  # first: the answer may be lost
                self._delete(kind, found)
                gone = self._wait_gone(kind, name, found)
            elif name not in self._given_back:
                continue
            existed += parts
            (deleted if gone else left).extend(parts)
        if not left:
            self._record_release()
        return ReleaseReport(tuple(existed), tuple(deleted), tuple(left))

    def kill_slice(self, index: int, whole: bool = False) -> str:
        """Force-delete a worker pod of a slice, or all of them."""
        count = self._run.spec.slices.count
        if not 0 <= index < count:
            raise BadInput([Problem("slice", index, f"this run has {count} slices, numbered from 0")])
        pods = [p for p in self._pods(f"{names.REPLICATED_JOB}={names.WORKER},{names.JOB_INDEX}={index}") if _lives(p)]
        if not pods:
            raise BadInput(f"{self._run.uri}: slice {index} has no worker pod now; there is nothing to kill")
        chosen = sorted(pods, key=lambda p: str(p["metadata"]["name"]))[: None if whole else 1]
        killed = [str(pod["metadata"]["name"]) for pod in chosen if self._force(pod)]
        if not killed:
            return f"slice {index}: its pods were gone already"
        return f"slice {index}: pod{'s' * (len(killed) > 1)} {', '.join(killed)} deleted by force"

    # -- jobs -------------------------------------------------------------------------------------------------

    def launch(self, job: Job, waiting: Callable[[str], None] = lambda text: None) -> None:
        """Create the job's object, or adopt the one that is this spec's and not over."""
        kind, name = self._object_of(job)
        body = (
            manifest.jobset(self._run.spec, self._plan) if job.slices else manifest.job(self._run.spec, self._plan, job)
        )
        deadline = time.monotonic() + _GONE
        while time.monotonic() < deadline:
            found = self._get(kind, name)
            if found is not None:
                self._require_ours(kind, found)
                self._require_same_spec(found)
                if _lives_on(found):
                    self._created(job, found)
                    return  # adopted
                if not _is_being_deleted(found):
                    self._delete(kind, found)
                if not self._wait_gone(kind, name, found, waiting):
                    break
            if job.slices:
                self._intend()
            try:
                made = self._cluster.create_jobset(body) if job.slices else self._cluster.create_job(body)
            except Exists:  # somebody's, ours by a call whose answer was lost, or one that is being deleted
                self._sleep(_LOOK)
                continue
            self._created(job, made)
            return
        raise Infrastructure(
            f"{kind} {name} is still being deleted after {_GONE:.0f} s; look for pods on nodes that do not answer: "
            f"kubectl -n {self._gke.namespace} get pods -l {names.RUN_ID}={self._run.run_id} -o wide"
        )

    def observe(self, job: Job) -> Observation:
        """Look at the job's object; a head that hangs on a silent node is freed here, by whoever watches."""
        kind, name = self._object_of(job)
        found = self._observer.jobset(name) if job.slices else self._get(kind, name)
        if found is None or not self._is_ours(found):
            recorded = self._record().get("state") if job.slices else None
            gone = {
                "created": f"JobSet {name} was deleted by somebody, or by its time to live",
                "requested": f"JobSet {name} is not there: it was deleted, or never made",
            }
            return Observation("absent", detail=gone.get(str(recorded), ""))
        if job.slices:
            return self._seen(found, watching=True).observation
        pods, events = self._details(f"{names.ROLE}={job.name}")
        now = datetime.now(UTC)
        self._free(hanging(pods, now))
        return self._with_log(state.look_job(found, pods, events, now), pods)

    def cancel(self, job: Job, now: bool = False) -> None:
        """Delete the job's object; its pods get their grace, unless `now`."""
        kind, name = self._object_of(job)
        found = self._get(kind, name)
        if found is None or not self._is_ours(found) or state.is_over(found):
            return
        self._delete(kind, found)
        if now:
            for pod in self._pods("" if job.slices else f"{names.ROLE}={job.name}"):
                self._force(pod)

    # -- looking ----------------------------------------------------------------------------------------------

    def _seen(self, jobset: Object, watching: bool = False) -> state.Seen:
        """One look; who is `watching` also frees what hangs on a silent node."""
        if not state.needs_detail(jobset):
            return state.look(jobset, [], [], datetime.now(UTC))
        pods, events = self._details()
        now = datetime.now(UTC)
        if watching:
            self._free(hanging(pods, now))
        seen = state.look(jobset, pods, events, now)
        return replace(seen, observation=self._with_log(seen.observation, pods))

    def _with_log(self, seen: Observation, pods: list[Object]) -> Observation:
        """The last lines of what failed; the cluster forgets them soon."""
        named = seen.evidence.get("pod"), seen.evidence.get("container")
        if seen.state != "over" or seen.exit_code == 0 or not all(named):
            return seen
        with suppress(ElasticTPUError):
            lines = self._cluster.pod_log(str(named[0]), str(named[1]), _LOG_LINES)
            return replace(seen, evidence={**seen.evidence, "tail": lines})
        return seen

    def _details(self, selector: str = "") -> tuple[list[Object], list[Object]]:
        return self._pods(selector), self._observer.events(self._run.run_id)

    def _pods(self, selector: str = "") -> list[Object]:
        mine = f"{names.RUN_ID}={self._run.run_id}"
        return self._cluster.list_pods(f"{mine},{selector}" if selector else mine)

    def _object_of(self, job: Job) -> tuple[str, str]:
        run_id = self._run.run_id
        return ("JobSet", run_id) if job.slices else ("Job", names.plain_job(run_id, job.name))

    def _get(self, kind: str, name: str) -> Object | None:
        """Fresh: what is created or deleted next depends on it."""
        return self._observer.jobset(name, fresh=True) if kind == "JobSet" else self._cluster.get_job(name)

    def _was_refused(self) -> bool:
        """Whether this run never passed the preflight: nothing was made, and its release is not refused once more."""
        if self._run.store.list(run_names.SLICES):
            return False
        try:
            self._get("JobSet", self._run.run_id)
        except BadInput:
            return True
        return False

    # -- whose it is ------------------------------------------------------------------------------------------

    def _is_ours(self, found: Object) -> bool:
        return bool(_annotation(found, names.RUN_URI) == self._run.uri)

    def _require_ours(self, kind: str, found: Object) -> None:
        if self._is_ours(found):
            return
        of = _annotation(found, names.RUN_URI)
        raise BadInput(
            f"{kind} {found['metadata']['name']} in namespace {self._gke.namespace} belongs to "
            f"{of or 'somebody else'}; choose another run.name or gke.namespace"
        )

    def _require_same_spec(self, found: Object) -> None:
        theirs = _annotation(found, names.SPEC_HASH)
        if theirs != self._run.spec_hash:
            raise BadInput(
                f"{found['metadata']['name']} was created from another spec (hash {theirs or 'unknown'}, this one has "
                f"{self._run.spec_hash}); release it first, or give the run another name"
            )

    # -- deleting ---------------------------------------------------------------------------------------------

    def _force(self, pod: Object) -> bool:
        """End a pod without its grace; whether it was there."""
        meta = pod["metadata"]
        with suppress(Changed):
            return self._cluster.delete_pod(meta["name"], meta["uid"], force=True)
        return False

    def _free(self, found: Hanging) -> None:
        """Foreground: a Job that was made anew while old pods are there would send its own after them."""
        for name, uid in found.jobs:
            with suppress(Changed):
                self._cluster.delete_job(name, uid, foreground=True)
        for pod in found.pods:
            self._force(pod)

    def _delete(self, kind: str, found: Object) -> None:
        meta = found["metadata"]
        with suppress(Changed):  # gone, or another object of that name, which is not what was looked at
            if kind == "JobSet":
                self._cluster.delete_jobset(meta["name"], meta["uid"])
            else:
                self._cluster.delete_job(meta["name"], meta["uid"], foreground=True)

    def _wait_gone(
        self, kind: str, name: str, found: Object, waiting: Callable[[str], None] = lambda text: None
    ) -> bool:
        """Until the object is gone; a pod whose node is silent would hold it for ever, so it is freed here."""
        deadline = time.monotonic() + _GONE
        while True:
            now = self._get(kind, name)
            if now is None or now["metadata"]["uid"] != found["metadata"]["uid"]:
                return True
            if time.monotonic() > deadline:
                return False
            for pod in state.stuck(self._pods(), datetime.now(UTC)):
                self._force(pod)
            waiting(f"waiting until {kind} {name} of before is gone; its trainer may be saving")
            self._sleep(_LOOK)

    # -- slices.json ------------------------------------------------------------------------------------------

    def _record(self) -> Object:
        try:
            return self._run.read(run_names.SLICES) or {}
        except BadInput:
            return {}  # damaged: the cluster tells more than it does

    def _write(self, recorded: str, **more: Any) -> None:
        body = {
            "run_id": self._run.run_id,
            "platform": "gke",
            "state": recorded,
            "namespace": self._gke.namespace,
            "cluster": self._cluster.identity[0],
            "wanted": self._run.spec.slices.count,
            "slices": [],
            **more,
        }
        self._run.store.put(run_names.SLICES, records.dump(body))

    def _intend(self) -> None:
        """On record before the first create call: whoever comes next knows what may be there."""
        if self._record().get("state") != "requested":
            self._write("requested")
            for index in range(self._run.spec.slices.count):
                self._events.write("slice.requested", slice=index)

    def _created(self, job: Job, made: Object) -> None:
        uid = made["metadata"]["uid"]
        if job.slices and (self._record().get("state"), self._record().get("uid")) != ("created", uid):
            self._write("created", uid=uid)

    def _record_release(self) -> None:
        if self._record().get("state") in ("requested", "created"):
            for index in range(self._run.spec.slices.count):
                self._events.write("slice.released", slice=index)
        if self._record().get("state") not in (None, "released"):
            self._write("released")


def _section(run: Run) -> Gke:
    if run.spec.gke is None:
        raise BadInput([Problem("gke", None, "must say where the run goes; `gke: {namespace: ..., image: ...}`")])
    return run.spec.gke


def _annotation(found: Object, key: str) -> str | None:
    value = found["metadata"].get("annotations", {}).get(key)
    return None if value is None else str(value)


def _is_being_deleted(found: Object) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def _lives_on(found: Object) -> bool:
    return not state.is_over(found) and not _is_being_deleted(found)


def _lives(pod: Object) -> bool:
    return not _is_being_deleted(pod) and pod.get("status", {}).get("phase") in ("Pending", "Running")
