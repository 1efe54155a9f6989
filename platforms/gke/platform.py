"""The GKE platform, mode `existing`: slices come with the Pathways JobSet of a run and go with it.

`check` is the preflight, `acquire` records that it passed, `launch` creates or adopts, `release` deletes and waits
until all is gone. A run goes on without a launcher: the trainer gets lost slices back by itself (`slices`), and JobSet
restarts a head that died. Only stuck pods need a launcher that watches. What a look means is decided in `status.state`,
whose an object is in `status.ownership`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ...runs.errors import BadInput, ElasticTPUError, Exists, Infrastructure, Problem
from ...runs.judge.verdict import Observation
from ...runs.record import paths
from ...runs.record.run import Run
from ...runs.record.status import read_status
from ...runs.spec import plan
from ...runs.spec.run_spec import Gke
from ...runs.store import records
from ...runs.units import show_duration
from ..base import Job, ReleaseReport, SliceState
from . import names
from .api.choice import login_of
from .api.cluster import Cluster
from .api.observer import Observer, observer_of
from .api.rights import require_rights
from .deletion import DELETION_TIMEOUT, Deleter
from .k8s_json import Json, is_being_deleted, phase
from .manifests import manifest
from .slices_record import SlicesRecord
from .status import state
from .status.ownership import is_active, is_ours, require_ours
from .status.stuck_pods import deletions

_AGAIN = 1.0  # seconds before another create, after the name was taken
_CREATE = timedelta(seconds=40)  # until a create that was sent has arrived or never will: `TIMEOUT` and some more
_LOG_LINES = 20  # of a container that failed

Waiting = Callable[[str], None]


def open_gke(run: Run) -> GkePlatform:
    """The platform of a run, logged in as the reader says, else as its spec says (api/choice.py).

    Raises:
      ForeignLogin: only the stored spec says how, and it is not this user's.
      BadInput: the spec has no section `gke`, or names no cluster with a login; names field and cure.
      Unreachable: Google's API does not answer.
    """
    from .api.credentials import api_client

    gke = login_of(_section(run), os.environ, own=run.own)
    observer = observer_of(Cluster(api_client(gke), gke.namespace), gke.interval)
    return GkePlatform(run, observer.cluster, observer)  # shared by all runs of this process


class GkePlatform:
    """`Platform` for a run's JobSet and Jobs in one namespace."""

    def __init__(self, run: Run, cluster: Cluster, observer: Observer) -> None:
        self._run, self._cluster, self._observer = run, cluster, observer
        self._gke = _section(run)
        self._plan = plan.make_plan(run.spec)
        self._deleter = Deleter(cluster, observer, run.run_id)
        self._record = SlicesRecord(run, self._gke.namespace, cluster.host)

    # -- slices -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The preflight. Refuses what the cluster would leave pending for ever without an error. Creates nothing.

        Raises:
          BadInput: a right, the service account or the namespace is missing, or another run has the JobSet's name.
        """
        require_rights(self._cluster, self._gke)
        found = self._deleter.get("JobSet", self._run.run_id)
        if found is not None:
            require_ours("JobSet", found, self._run, self._gke.namespace, self._record.uid)

    def acquire(self) -> None:
        """Record that the preflight passed, unless the JobSet is there. The slices come with it."""
        found = self._deleter.get("JobSet", self._run.run_id)
        if found is None or not is_active(found):
            self._record.checked()

    def slices(self) -> SliceState:
        """Look at the slices. Before the launch, `ready` means that the preflight passed."""
        wanted, recorded, name = self._run.spec.slices.count, self._record.state(), self._run.run_id
        if recorded == "absent":
            return SliceState("absent", 0, wanted)  # no JobSet is created before slices.json is written
        found = self._observer.jobset(name)
        if found is not None and self._is_ours(found) and is_active(found):
            return self._look(found).slices
        if recorded == "checked":
            passed = f"namespace {self._gke.namespace} passed the preflight"
            return SliceState("ready", 0, wanted, f"{passed}; {wanted} slices come with the JobSet")
        if recorded in ("releasing", "released"):
            return SliceState("released", 0, wanted)
        return SliceState("absent", 0, wanted, f"JobSet {name} is gone" if recorded == "created" else "")

    def release(self, jobs: bool = True, waiting: Waiting = lambda text: None) -> ReleaseReport:
        """Delete the run's JobSet and, with `jobs`, its Jobs; wait until they and their pods are gone."""
        if self._was_refused():
            return ReleaseReport((), (), ())
        ended = [self._release_jobset(waiting)]
        ended += [self._release_job(job, waiting) for job in ("export", "evaluate") if jobs]
        existed = tuple(name for found, _ in ended for name in found)
        left = tuple(name for found, gone in ended for name in found if not gone)
        return ReleaseReport(existed, tuple(name for name in existed if name not in left), left)

    def kill_slice(self, index: int, whole: bool = False) -> str:
        """Delete a worker pod of a slice by force; all of them if `whole`."""
        count = self._run.spec.slices.count
        if not 0 <= index < count:
            raise BadInput([Problem("slice", index, f"this run has {count} slices, numbered from 0")])
        found = self._deleter.get("JobSet", self._run.run_id)
        if found is not None:  # pods alone say the run's id only, which another directory may have
            require_ours("JobSet", found, self._run, self._gke.namespace, self._record.uid)
        of_slice = f"{names.REPLICATED_JOB}={names.WORKER},{names.JOB_INDEX}={index}"
        pods = [pod for pod in self._deleter.pods(of_slice) if _lives(pod)]
        if not pods:
            raise BadInput(f"{self._run.uri}: slice {index} has no worker pod now, so there is nothing to kill")
        chosen = sorted(pods, key=lambda p: str(p["metadata"]["name"]))[: None if whole else 1]
        killed = [str(pod["metadata"]["name"]) for pod in chosen if self._deleter.force(pod)]
        if not killed:
            return f"slice {index}: its pods are gone already"
        return f"slice {index}: pod{'s' * (len(killed) > 1)} {', '.join(killed)} deleted by force"

    # -- jobs -------------------------------------------------------------------------------------------------

    def launch(self, job: Job, waiting: Waiting = lambda text: None) -> None:
        """Create the job's JobSet or Job, or adopt the active one. One that is over is deleted first.

        Raises:
          BadInput: the name belongs to another run, or the object was created from another spec.
          Infrastructure: the old object is not gone after 900 s; says where to look.
        """
        kind, name = self._object_of(job)
        deadline = time.monotonic() + DELETION_TIMEOUT
        while time.monotonic() < deadline:
            found = self._deleter.get(kind, name)
            if found is not None:
                require_ours(kind, found, self._run, self._gke.namespace, self._record.uid)
                if is_active(found):
                    self._created(job, found)
                    return  # adopted
                if not is_being_deleted(found):
                    self._deleter.delete(kind, found)
                if not self._deleter.wait_gone(kind, name, waiting, found["metadata"]["uid"]):
                    break
            if job.slices and not self._deleter.clear_orphans(self._record.uid(), waiting):
                break
            with suppress(Exists):  # of another run, ours by a create whose answer was lost, or being deleted
                self._created(job, self._create(job))
                return
            time.sleep(_AGAIN)
        look = f"kubectl -n {self._gke.namespace} get pods -l {names.RUN_ID}={self._run.run_id} -o wide"
        raise Infrastructure(
            f"{kind} {name} is still being deleted after {show_duration(DELETION_TIMEOUT)}; look for pods on nodes "
            f"that do not answer: {look}"
        )

    def observe(self, job: Job) -> Observation:
        """Look at the job's object, and at its pods and events if something is wrong."""
        kind, name = self._object_of(job)
        found = self._observer.jobset(name) if job.slices else self._deleter.get(kind, name)
        if found is None or not self._is_ours(found):
            if job.slices and (ended := self._ended_before_it_was_gone()):
                return ended
            gone = {
                "created": f"JobSet {name} is gone: somebody deleted it, or it was over for longer than gke.ttl",
                "requested": f"JobSet {name} does not exist: it was deleted, or was never created",
            }
            return Observation("absent", detail=gone.get(self._record.state(), "") if job.slices else "")
        return (self._look(found) if job.slices else self._look_job(found, job)).observation

    def free_stuck_pods(self, job: Job) -> None:
        """Delete the job's stuck pods by force, and the Jobs that have to make their pods again on other nodes."""
        kind, name = self._object_of(job)
        found = self._observer.jobset(name) if job.slices else self._deleter.get(kind, name)
        if found is not None and self._is_ours(found):
            self._deleter.carry_out(deletions(self._pods_of(job), self._cluster.now()))

    def cancel(self, job: Job, now: bool = False) -> None:
        """Delete the job's JobSet or Job, unless it is over. Its pods get their grace, unless `now`."""
        kind, name = self._object_of(job)
        found = self._deleter.get(kind, name)
        if found is None or not self._is_ours(found) or state.is_over(found):
            return
        self._deleter.delete(kind, found)
        if now:
            for pod in self._pods_of(job):
                self._deleter.force(pod)

    # -- helpers ----------------------------------------------------------------------------------------------

    def _release_jobset(self, waiting: Waiting) -> tuple[tuple[str, ...], bool]:
        """Names of what existed, and whether it is gone."""
        name, recorded = self._run.run_id, self._record.read() or {}
        found = self._settled(recorded, waiting)
        mine = found if found is not None and self._is_ours(found) else None
        uid = str(mine["metadata"]["uid"] if mine is not None else recorded.get("uid", ""))
        # Without a JobSet there may still be pods: of an interrupted release, or of a JobSet that was deleted by hand.
        held = (
            mine is not None
            or recorded.get("state") == "releasing"
            or bool(self._deleter.pods_left("JobSet", uid, found))
            or bool(self._deleter.orphans(uid, found))
        )
        if mine is not None:
            self._record.releasing(uid)
            self._deleter.delete("JobSet", mine)
        gone = not held or self._deleter.wait_gone("JobSet", name, waiting, uid)
        if gone:
            self._record.released(uid)
        slices = [f"slice {index}" for index in range(self._run.spec.slices.count)]
        return (f"JobSet {name}", *slices) if held else (), gone

    def _settled(self, recorded: Json, waiting: Waiting) -> Json | None:
        """The JobSet of the run's name, once no create of it can be under way: one that was cut off may arrive late."""
        requested = records.time_of(recorded.get("requested")) if recorded.get("state") == "requested" else None
        while True:
            found = self._deleter.get("JobSet", self._run.run_id)
            late = requested is not None and datetime.now(UTC) - requested < _CREATE
            if found is not None or not late:
                return found
            waiting(
                f"waiting until JobSet {self._run.run_id}, which was being created, is there or cannot come any more"
            )
            time.sleep(_AGAIN)

    def _release_job(self, job: str, waiting: Waiting) -> tuple[tuple[str, ...], bool]:
        name = names.plain_job(self._run.run_id, job)
        found = self._deleter.get("Job", name)
        if found is None or not self._is_ours(found):
            return (), True
        self._deleter.delete("Job", found)
        return (f"Job {name}",), self._deleter.wait_gone("Job", name, waiting, found["metadata"]["uid"])

    def _create(self, job: Job) -> Json:
        if not job.slices:
            return self._cluster.create_job(manifest.job(self._run.spec, self._plan, job))
        self._record.requested()
        try:
            return self._cluster.create_jobset(manifest.jobset(self._run.spec, self._plan))
        except (BadInput, Exists):
            self._record.refused()
            raise

    def _created(self, job: Job, made: Json) -> None:
        if job.slices:
            self._record.created(str(made["metadata"]["uid"]))

    def _look(self, jobset: Json) -> state.ClusterLook:
        now, detailed = self._cluster.now(), state.needs_detail(jobset)
        pods = self._deleter.pods() if detailed else []
        events = self._observer.events(self._run.run_id) if detailed else []
        return self._completed(state.look(jobset, pods, events, now), pods, now)

    def _look_job(self, found: Json, job: Job) -> state.ClusterLook:
        now, pods = self._cluster.now(), self._pods_of(job)
        look = state.look_job(found, pods, self._observer.events(self._run.run_id), now)
        return self._completed(look, pods, now)

    def _completed(self, look: state.ClusterLook, pods: list[Json], now: datetime) -> state.ClusterLook:
        """Add the time, whether pods are stuck, and the last log lines of what failed: the cluster drops logs soon."""
        seen = replace(look.observation, seen_at=now, stuck=bool(deletions(pods, now)))
        if look.failed is not None and seen.exit_code != 0:
            with suppress(ElasticTPUError):
                lines = self._cluster.pod_log(look.failed.pod, look.failed.container, _LOG_LINES)
                seen = replace(seen, evidence={**seen.evidence, "tail": lines})
        return replace(look, observation=seen)

    def _pods_of(self, job: Job) -> list[Json]:
        """The job's pods; for the job with slices, all pods of the run."""
        return self._deleter.pods("" if job.slices else f"{names.ROLE}={job.name}")

    def _ended_before_it_was_gone(self) -> Observation | None:
        """The end of a trainer whose JobSet is gone, by `gke.ttl` or by hand: its last heartbeat tells the code."""
        recorded, status = self._record.read() or {}, read_status(self._run)
        if recorded.get("state") != "created" or status is None or status.phase != "ended" or status.exit is None:
            return None
        before = recorded.get("attempts")
        if not isinstance(before, int) or status.attempt <= before:
            return None  # of an earlier JobSet's trainer
        evidence = {"uid": recorded.get("uid"), "attempt": status.attempt}
        return Observation("over", status.exit, detail=status.reason, evidence=evidence, trainer_lives=False)

    def _was_refused(self) -> bool:
        """Whether the preflight refused this run: then nothing was created, and a release has nothing to do."""
        if self._run.store.list(paths.SLICES):
            return False
        try:
            self._deleter.get("JobSet", self._run.run_id)
        except BadInput:
            return True
        return False

    def _is_ours(self, found: Json) -> bool:
        return is_ours(found, self._run, self._record.uid)

    def _object_of(self, job: Job) -> tuple[str, str]:
        run_id = self._run.run_id
        return ("JobSet", run_id) if job.slices else ("Job", names.plain_job(run_id, job.name))


def _section(run: Run) -> Gke:
    if run.spec.gke is None:
        cure = "is missing; say where the run goes: `gke: {namespace: ..., image: ...}`"
        raise BadInput([Problem("gke", None, cure)])
    return run.spec.gke


def _lives(pod: Json) -> bool:
    return not is_being_deleted(pod) and phase(pod) in ("Pending", "Running")
