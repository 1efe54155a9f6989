"""Where a JobSet or a Job is, from its JSON, pods and events. Pure, without memory.

What decides, in this order: terminal conditions, deletion, suspension, `replicatedJobsStatus` (counts of child Jobs, in
random order); pods and events give the words. The startup conditions flip on every loss of a slice, so their status
does not tell where a run is. But `StartupPolicyCompleted` exists, true or false, since all slices were ready for the
first time, which tells a first start from a loss. Whether training makes progress is in status.json, and whether it
succeeded is shown by its proof, not here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from ....runs.errors import ExitCode, final_codes
from ....runs.judge.verdict import Observation, State
from ...base import SliceState
from .. import names
from ..k8s_json import (
    JOB_NAME,
    LONG_AGO,
    Json,
    changed,
    condition,
    container_runs,
    created,
    holds,
    is_being_deleted,
    label,
    name_of,
    newest,
    phase,
)
from . import reasons
from .jobset_view import JobSetView
from .stuck_pods import kept, lacking, lingering, stuck

_QUEUE = "kueue.x-k8s.io/queue-name"
_FIRST_FAILED = re.compile(r"first failed job: ([^\s)]+)")
_SPENT = "ReachedMaxRestarts"  # the reason also if no restart was allowed
_MOST = 3  # pods and pools that are named
_ENDED_WELL = frozenset({"Completed", "Complete"})
_NO_SLICES = SliceState("absent", 0, 0)


@dataclass(frozen=True)
class ClusterLook:
    """What the objects of a job mean.

    Attributes:
      slices: those that come with a JobSet; absent for a plain Job.
      failed: the container whose log tells more about a failure; None if there is none.
    """

    observation: Observation
    slices: SliceState = _NO_SLICES
    failed: reasons.ContainerEnd | None = None


def is_over(found: Json) -> bool:
    """Whether a JobSet or Job has a terminal condition: it succeeded or failed, and will not run again."""
    return _terminal_condition(found) is not None


def needs_detail(found: Json | None) -> bool:
    """Whether `look` needs pods and events: False if the JobSet is healthy, or if there is none (None)."""
    if found is None:
        return False
    jobset = JobSetView.of(found, [])
    healthy = jobset.head["ready"] == 1 and jobset.ready == jobset.wanted
    return not healthy or is_over(found) or is_being_deleted(found) or jobset.suspended


def look(found: Json | None, pods: Sequence[Json], events: Sequence[Json], now: datetime) -> ClusterLook:
    """Where a JobSet and its slices are.

    Args:
      found: the JobSet, whole or as the observer trims it; None if there is none.
      pods, events: of this run; may be empty if `needs_detail` is False.
      now: by a clock that agrees with the API server's to seconds.
    """
    if found is None:
        return ClusterLook(Observation("absent"))
    jobset = JobSetView.of(found, pods)
    over = _terminal_condition(found)
    if over is not None:
        return _ended(jobset, over)
    if is_being_deleted(found):
        detail = f"JobSet {jobset.name} is being deleted"
        observation = replace(_common(jobset), state="over", detail=detail)
        return ClusterLook(observation, jobset.slice_state("released", detail))
    if jobset.suspended:
        return _suspended(jobset, events, now)
    return _started(jobset, events, now)


def look_job(job: Json | None, pods: Sequence[Json], events: Sequence[Json], now: datetime) -> ClusterLook:
    """Where a plain Job is; arguments as for `look`, but pods and events are always needed."""
    if job is None:
        return ClusterLook(Observation("absent"))
    mine = [p for p in pods if label(p, JOB_NAME) in ("", name_of(job)) and created(p) >= created(job)]
    status = job.get("status") or {}
    evidence: dict[str, Any] = {"uid": job["metadata"].get("uid"), "failed": int(status.get("failed") or 0)}
    over = _terminal_condition(job)
    if over is not None:
        return _ended_job(job, mine, over, evidence)
    if is_being_deleted(job):
        return ClusterLook(Observation("over", detail=f"Job {name_of(job)} is being deleted", evidence=evidence))
    words = reasons.troubles(mine, events, created(job))
    if (job.get("spec") or {}).get("suspend"):
        ran = bool(status.get("startTime"))
        suspended_since = changed(suspended) if (suspended := holds(job, "Suspended")) else None
        waited = _seconds(suspended_since if ran else created(job), now)
        detail = _queue_words(job, events)
        return ClusterLook(Observation("suspended" if ran else "queued", None, False, detail, evidence, waited))
    if status.get("ready") or any(container_runs(p) for p in mine):
        return ClusterLook(Observation("running", detail="; ".join(words), evidence=evidence))
    if (ended := lingering(mine, now)) is not None:
        return ClusterLook(_lingers(Observation("over", evidence=evidence), *ended), failed=ended[1])
    last = newest(p for p in mine if phase(p) == "Failed")
    if last is not None and last is newest(mine):
        end, how = reasons.how_it_ended(last, names.TRAINER)
        detail = f"{how or 'the pod failed'}; the Job starts another pod"
        return ClusterLook(Observation("over", end.exit_code if end else None, True, detail, evidence))
    gone = not mine and (status.get("failed") or (status.get("uncountedTerminatedPods") or {}).get("failed"))
    # The start of a pod that replaces another one counts from its own creation; until then the time is unknown.
    since = max([created(job), changed(condition(job, "Suspended")), *map(created, mine)])
    waited = 0.0 if gone else _seconds(since, now)
    return ClusterLook(Observation("starting", None, False, "; ".join(words), evidence, waited))


# -- a JobSet ---------------------------------------------------------------------------------------------------


def _common(jobset: JobSetView) -> Observation:
    """The fields of the observation that do not depend on the state; `state` is to be replaced."""
    return Observation("starting", evidence=jobset.evidence, trainer_lives=jobset.head_up, ran=jobset.ran)


def _suspended(jobset: JobSetView, events: Sequence[Json], now: datetime) -> ClusterLook:
    """Of a suspended JobSet: queued before it ever ran, else put back (preempted by Kueue, or by hand)."""
    since = jobset.suspended_since if jobset.ran else created(jobset.json)
    detail, waited = _queue_words(jobset.json, events), _seconds(since, now)
    state: State = "suspended" if jobset.ran else "queued"
    observation = replace(_common(jobset), state=state, detail=detail, waited=waited, trainer_lives=False)
    return ClusterLook(observation, SliceState("requested", 0, jobset.wanted, detail, with_job=True))


def _started(jobset: JobSetView, events: Sequence[Json], now: datetime) -> ClusterLook:
    """Of a JobSet that is not suspended and not over."""
    complete = jobset.ready >= jobset.wanted
    pods = [*jobset.heads, *jobset.workers]
    words = [] if complete and jobset.head_up else reasons.troubles(pods, events, jobset.start_began)
    words = [*[*lacking(pods), *kept(pods, now)][:_MOST], *words]
    lost = jobset.not_ready if jobset.ran and not complete else []
    if jobset.head_up and not complete:
        which = f" (not ready: slice {', '.join(map(str, lost[:8]))}{', ...' if len(lost) > 8 else ''})" if lost else ""
        words.insert(0, f"{jobset.ready} of {jobset.wanted} slices ready{which}")
    elif not jobset.head_up:
        words = words or ["the head is starting"]
    detail = "; ".join(words)
    seen = replace(_common(jobset), detail=detail, evidence=jobset.evidence | ({"lost": lost} if lost else {}))
    some: Literal["requested", "partly"] = "partly" if jobset.ready or jobset.ran else "requested"
    slices = jobset.slice_state("ready" if complete and jobset.wanted else some, "" if complete else detail)

    if (lingers := lingering(jobset.heads, now)) is not None:
        return ClusterLook(_lingers(seen, *lingers), slices, lingers[1])
    ended = newest(jobset.heads)
    died = jobset.head["failed"] > 0 or (ended is not None and phase(ended) == "Failed")
    if not jobset.head_up and (died or holds(jobset.json, "RestartingJobSet")):
        return ClusterLook(_restarting(jobset, ended, words, seen, now), slices)
    if jobset.head_up and (jobset.ran or complete):
        return ClusterLook(replace(seen, state="running", running_since=_ready_since(jobset)), slices)
    ending = jobset.head["succeeded"] or (ended is not None and is_being_deleted(ended))
    if not jobset.head_up and jobset.ran and ending:
        # The head has ended or is ending: in a second or two JobSet's conditions tell whether it restarts.
        silent = stuck(jobset.heads, now)
        node = (silent[0].get("spec") or {}).get("nodeName") if silent else ""
        detail = f"the head's pod does not end: node {node} does not answer" if silent else "the head is ending"
        return ClusterLook(replace(seen, state="running", detail=detail), slices)
    waited = _seconds(jobset.head_starting_since if jobset.ran else jobset.start_began, now)
    return ClusterLook(replace(seen, state="starting", waited=waited), slices)


def _lingers(seen: Observation, pod: Json, end: reasons.ContainerEnd) -> Observation:
    """Of a pod whose trainer has ended while another container goes on: the job is over all the same."""
    again = end.exit_code not in (0, *final_codes("trainer"))
    detail = f"{end}; another container of pod {name_of(pod)} goes on and keeps it from ending"
    evidence = seen.evidence | _log_evidence(end)
    over = replace(seen, state="over", exit_code=end.exit_code, relaunching=again, detail=detail, evidence=evidence)
    return replace(over, trainer_lives=False)


def _restarting(
    jobset: JobSetView, ended: Json | None, words: list[str], seen: Observation, now: datetime
) -> Observation:
    """Of a JobSet whose head died: JobSet starts everything again, or is about to tell that it does not.

    Args:
      ended: the head's pod, if it is still there.
      words: why pods do not start.
      seen: the observation so far.
    """
    allowed = ((jobset.json["spec"].get("failurePolicy")) or {}).get("maxRestarts")
    code, how = None, ""
    if ended is not None and phase(ended) == "Failed":
        end, how = reasons.how_it_ended(ended, names.TRAINER)
        code = end.exit_code if end else None
    if holds(jobset.json, "RestartingJobSet"):
        told = f"the head is being started again (restart {jobset.restarts}{f' of {allowed}' if allowed else ''})"
    else:
        told = "the head has ended"
    said = [told, how, *(w for w in words if w != "the head is starting")]
    detail, waited = "; ".join(w for w in said if w), _seconds(jobset.restarting_since, now)
    return replace(seen, state="over", exit_code=code, relaunching=True, detail=detail, waited=waited)


def _ended(jobset: JobSetView, over: Json) -> ClusterLook:
    evidence = jobset.evidence | {"condition": f"{over['type']}/{over.get('reason', '')}"}
    seen = replace(_common(jobset), state="over", evidence=evidence, trainer_lives=False)
    slices = jobset.slice_state("released")
    if over["type"] in _ENDED_WELL:
        return ClusterLook(replace(seen, exit_code=0), slices)
    said = str(over.get("message") or "")
    match = _FIRST_FAILED.search(said)
    first = match[1] if match else ""
    only_worker = bool(jobset.worker["failed"]) and not jobset.head["failed"]
    of_worker = f"-{names.WORKER}-" in first or (not first and only_worker)
    spent = f"; all {jobset.restarts} restarts are spent" if over.get("reason") == _SPENT and jobset.restarts else ""
    if of_worker:
        # The pods of a slice failed more often than backoffLimitPerIndex, so JobSet ended the head as well.
        index = first.rpartition("-")[2]
        failed = [p for p in jobset.workers if phase(p) == "Failed"]
        failed = [p for p in failed if not first or label(p, names.JOB_INDEX) == index]
        end, how = _newest_end(failed, names.WORKER)
        which = f"slice {index}" if first else "a slice"
        detail = f"{which} failed more often than its Job allows ({how or _condition_words(over)}){spent}"
        return ClusterLook(replace(seen, detail=detail, evidence=evidence | _log_evidence(end)), slices, end)
    # Only the head of the last restart can be there, and it may be gone as well.
    head = newest(jobset.heads)
    end, how = _newest_end([head] if head else [], names.TRAINER)
    detail = f"{how}{spent}" if how else f"the head ended and its pod is gone: {_condition_words(over)}{spent}"
    if end is not None and end.reason == "OOMKilled":
        detail += "; raise the memory of container trainer in gke.head"
    code, evidence = end.exit_code if end else None, evidence | _log_evidence(end)
    return ClusterLook(replace(seen, exit_code=code, detail=detail, evidence=evidence), slices, end)


def _ended_job(job: Json, pods: Sequence[Json], over: Json, evidence: dict[str, Any]) -> ClusterLook:
    evidence = {**evidence, "condition": f"{over['type']}/{over.get('reason', '')}"}
    if over["type"] in _ENDED_WELL:
        return ClusterLook(Observation("over", 0, evidence=evidence))
    if over.get("reason") == "DeadlineExceeded":
        seconds = (job.get("spec") or {}).get("activeDeadlineSeconds")
        detail = f"the Job's activeDeadlineSeconds ({seconds}) is spent"
        return ClusterLook(Observation("over", int(ExitCode.LIMIT_SPENT), False, detail, evidence))
    end, how = _newest_end(pods, names.TRAINER)
    detail = how or f"the pod is gone: {_condition_words(over)}"
    if end is not None and end.reason == "OOMKilled":
        detail += f"; raise gke.jobs.{label(job, names.ROLE) or '<job>'}.memory"
    code = end.exit_code if end else None
    return ClusterLook(Observation("over", code, False, detail, evidence | _log_evidence(end)), failed=end)


# -- helpers --------------------------------------------------------------------------------------------------------


def _terminal_condition(found: Json) -> Json | None:
    return next((c for kind in ("Completed", "Complete", "Failed") if (c := holds(found, kind)) is not None), None)


def _condition_words(over: Json) -> str:
    return f"{over.get('reason', '')}: {reasons.cut(over.get('message', ''))}"


def _ready_since(jobset: JobSetView) -> datetime | None:
    """Since when all slices are ready; None while some are not."""
    since = changed(holds(jobset.json, "StartupPolicyCompleted"))
    return since if jobset.ready >= jobset.wanted and since > LONG_AGO else None


def _newest_end(pods: Sequence[Json], container: str) -> tuple[reasons.ContainerEnd | None, str]:
    """How the container ended in the pod that ended last, and the same in words."""
    ended = [
        (end.at if end else created(p), end, how) for p in pods for end, how in [reasons.how_it_ended(p, container)]
    ]
    _, end, how = max(ended, key=lambda e: e[0], default=(LONG_AGO, None, ""))
    return end, how


def _log_evidence(end: reasons.ContainerEnd | None) -> dict[str, Any]:
    """Where to look for more: pod, container and its exit code."""
    return {"pod": end.pod, "container": end.container, "exit": end.code} if end else {}


def _queue_words(found: Json, events: Sequence[Json]) -> str:
    queue, said = label(found, _QUEUE), reasons.queue_words(events, created(found))
    if not queue and not said:
        kind = "JobSet" if "replicatedJobs" in (found.get("spec") or {}) else "Job"
        return f"{kind} {name_of(found)} is suspended and in no queue; set its spec.suspend to false to resume it"
    return f"waits in queue {queue or 'of Kueue'}" + (f": {said}" if said else "")


def _seconds(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
