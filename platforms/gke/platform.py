"""The GKE platform, mode `existing`: slices come with the Pathways JobSet of a run and go with it.

Provision is the preflight, launch creates or adopts, release deletes and verifies. The run needs nobody who watches:
the trainer gets its lost slices back by itself (slices.py) and JobSet restarts a dead head. What a look means is
decided in state.py; whose an object is, in ownership.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...runs.errors import BadInput, ElasticTPUError, Exists, Infrastructure, Problem
from ...runs.judge.verdict import Observation
from ...runs.record import paths
from ...runs.record.run import Run
from ...runs.spec import plan
from ...runs.spec.run_spec import Gke
from ..base import Job, ReleaseReport, SliceState
from . import names
from .api import preflight
from .api.cluster import Cluster
from .api.k8s_json import is_being_deleted, phase
from .api.observer import Observer, observer_of
from .deletion import GONE, Ending
from .manifests import manifest
from .slices_record import SlicesRecord
from .status import state
from .status.ownership import is_ours, lives_on, require_ours
from .status.stuck_pods import hanging

_AGAIN = 1.0  # seconds until a name that was taken is tried again
_LOG_LINES = 20

Object = dict[str, Any]
Waiting = Callable[[str], None]


def open_gke(run: Run) -> GkePlatform:
    """The platform of a run, with the credentials that its spec names."""
    from .api.credentials import api_client

    gke = _section(run)
    observer = observer_of(Cluster(api_client(gke), gke.namespace), gke.interval)
    return GkePlatform(run, observer.cluster, observer)  # one a process: what is known of the cluster is shared


class GkePlatform:
    """A run's JobSet and Jobs in one namespace."""

    def __init__(self, run: Run, cluster: Cluster, observer: Observer) -> None:
        self._run, self._cluster, self._observer = run, cluster, observer
        self._gke = _section(run)
        self._plan = plan.make_plan(run.spec)
        self._ending = Ending(cluster, observer, run.run_id)
        self._record = SlicesRecord(run, self._gke.namespace, cluster.host)

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
        found = self._ending.get("JobSet", self._run.run_id)
        if found is not None:
            require_ours("JobSet", found, self._run, self._gke.namespace)
        if found is None or not lives_on(found):
            self._record.checked()

    def slices(self) -> SliceState:
        """Ready means before the launch that nothing stands in the way of it."""
        wanted, recorded, name = self._run.spec.slices.count, self._record.state(), self._run.run_id
        if recorded == "absent":
            return SliceState("absent", 0, wanted)  # no JobSet is made without a record
        found = self._observer.jobset(name)
        if found is not None and is_ours(found, self._run) and lives_on(found):
            return self._seen(found).slices
        if recorded == "checked":
            where = f"namespace {self._gke.namespace} was checked"
            return SliceState("ready", 0, wanted, f"{where}; {wanted} slices come with the JobSet")
        if recorded in ("releasing", "released"):
            return SliceState("released", 0, wanted)
        return SliceState("absent", 0, wanted, f"JobSet {name} is gone" if recorded == "created" else "")

    def release(self, jobs: bool = True, waiting: Waiting = lambda text: None) -> ReleaseReport:
        """Delete what is this run's, by uid, and verify that it is gone, pods too."""
        if self._was_refused():
            return ReleaseReport((), (), ())
        ended = [self._release_jobset(waiting)]
        ended += [self._release_job(job, waiting) for job in ("export", "evaluate") if jobs]
        existed = tuple(name for parts, _ in ended for name in parts)
        left = tuple(name for parts, gone in ended for name in parts if not gone)
        return ReleaseReport(existed, tuple(name for name in existed if name not in left), left)

    def kill_slice(self, index: int, whole: bool = False) -> str:
        """Force-delete a worker pod of a slice, or all of them."""
        count = self._run.spec.slices.count
        if not 0 <= index < count:
            raise BadInput([Problem("slice", index, f"this run has {count} slices, numbered from 0")])
        of_slice = f"{names.REPLICATED_JOB}={names.WORKER},{names.JOB_INDEX}={index}"
        pods = [pod for pod in self._ending.pods(of_slice) if _lives(pod)]
        if not pods:
            raise BadInput(f"{self._run.uri}: slice {index} has no worker pod now; there is nothing to kill")
        chosen = sorted(pods, key=lambda p: str(p["metadata"]["name"]))[: None if whole else 1]
        killed = [str(pod["metadata"]["name"]) for pod in chosen if self._ending.force(pod)]
        if not killed:
            return f"slice {index}: its pods were gone already"
        return f"slice {index}: pod{'s' * (len(killed) > 1)} {', '.join(killed)} deleted by force"

    # -- jobs -------------------------------------------------------------------------------------------------

    def launch(self, job: Job, waiting: Waiting = lambda text: None) -> None:
        """Create the job's object, or adopt the one that is this spec's and not over."""
        kind, name = self._object_of(job)
        deadline = time.monotonic() + GONE
        while time.monotonic() < deadline:
            found = self._ending.get(kind, name)
            if found is not None:
                require_ours(kind, found, self._run, self._gke.namespace)
                if lives_on(found):
                    self._created(job, found)
                    return  # adopted
                if not is_being_deleted(found):
                    self._ending.delete(kind, found)
                if not self._ending.wait_gone(kind, name, waiting, found["metadata"]["uid"]):
                    break
            with suppress(Exists):  # somebody's, ours by a call whose answer was lost, or one that is being deleted
                self._created(job, self._create(job))
                return
            time.sleep(_AGAIN)
        raise Infrastructure(
            f"{kind} {name} is still being deleted after {GONE:.0f} s; look for pods on nodes that do not answer: "
            f"kubectl -n {self._gke.namespace} get pods -l {names.RUN_ID}={self._run.run_id} -o wide"
        )

    def observe(self, job: Job) -> Observation:
        """Look at the job's object; what hangs on a silent node is freed here, by whoever watches."""
        kind, name = self._object_of(job)
        found = self._observer.jobset(name) if job.slices else self._ending.get(kind, name)
        if found is None or not is_ours(found, self._run):
            gone = {
                "created": f"JobSet {name} was deleted by somebody, or by its time to live",
                "requested": f"JobSet {name} is not there: it was deleted, or never made",
            }
            return Observation("absent", detail=gone.get(self._record.state(), "") if job.slices else "")
        now = self._cluster.now()
        if job.slices:
            seen = self._seen(found, watching=True).observation
        else:
            pods = self._ending.pods(f"{names.ROLE}={job.name}")
            self._ending.free(hanging(pods, now))
            seen = self._with_log(state.look_job(found, pods, self._observer.events(self._run.run_id), now), pods)
        return replace(seen, evidence={**seen.evidence, "seen_at": now.isoformat()})

    def cancel(self, job: Job, now: bool = False) -> None:
        """Delete the job's object; its pods get their grace, unless `now`."""
        kind, name = self._object_of(job)
        found = self._ending.get(kind, name)
        if found is None or not is_ours(found, self._run) or state.is_over(found):
            return
        self._ending.delete(kind, found)
        if now:
            for pod in self._ending.pods("" if job.slices else f"{names.ROLE}={job.name}"):
                self._ending.force(pod)

    # -- helpers ----------------------------------------------------------------------------------------------

    def _release_jobset(self, waiting: Waiting) -> tuple[tuple[str, ...], bool]:
        """Names of what was there, and whether it is gone."""
        name, recorded = self._run.run_id, self._record.read() or {}
        found = self._ending.get("JobSet", name)
        mine = found if found is not None and is_ours(found, self._run) else None
        uid = str(mine["metadata"]["uid"] if mine is not None else recorded.get("uid", ""))
        # Deleted by a release that broke off, or by hand, which waits for no pod.
        held = mine is not None or recorded.get("state") == "releasing" or bool(self._ending.left("JobSet", uid, found))
        if mine is not None:
            self._record.releasing(uid)
            self._ending.delete("JobSet", mine)
        gone = not held or self._ending.wait_gone("JobSet", name, waiting, uid)
        if gone:
            self._record.released(uid)
        slices = [f"slice {index}" for index in range(self._run.spec.slices.count)]
        return (f"JobSet {name}", *slices) if held else (), gone

    def _release_job(self, job: str, waiting: Waiting) -> tuple[tuple[str, ...], bool]:
        name = names.plain_job(self._run.run_id, job)
        found = self._ending.get("Job", name)
        if found is None or not is_ours(found, self._run):
            return (), True
        self._ending.delete("Job", found)
        return (f"Job {name}",), self._ending.wait_gone("Job", name, waiting, found["metadata"]["uid"])

    def _create(self, job: Job) -> Object:
        if not job.slices:
            return self._cluster.create_job(manifest.job(self._run.spec, self._plan, job))
        self._record.intend()
        return self._cluster.create_jobset(manifest.jobset(self._run.spec, self._plan))

    def _created(self, job: Job, made: Object) -> None:
        if job.slices:
            self._record.created(str(made["metadata"]["uid"]))

    def _seen(self, jobset: Object, watching: bool = False) -> state.Seen:
        """One look; who is `watching` also frees what hangs on a silent node."""
        now = self._cluster.now()
        if not state.needs_detail(jobset):
            return state.look(jobset, [], [], now)
        pods = self._ending.pods()
        if watching:
            self._ending.free(hanging(pods, now))
        seen = state.look(jobset, pods, self._observer.events(self._run.run_id), now)
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

    def _was_refused(self) -> bool:
        """Whether this run never passed the preflight: nothing was made, and its release is not refused once more."""
        if self._run.store.list(paths.SLICES):
            return False
        try:
            self._ending.get("JobSet", self._run.run_id)
        except BadInput:
            return True
        return False

    def _object_of(self, job: Job) -> tuple[str, str]:
        run_id = self._run.run_id
        return ("JobSet", run_id) if job.slices else ("Job", names.plain_job(run_id, job.name))


def _section(run: Run) -> Gke:
    if run.spec.gke is None:
        raise BadInput([Problem("gke", None, "must say where the run goes; `gke: {namespace: ..., image: ...}`")])
    return run.spec.gke


def _lives(pod: Object) -> bool:
    return not is_being_deleted(pod) and phase(pod) in ("Pending", "Running")
