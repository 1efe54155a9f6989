"""From what the API shows of a JobSet or a Job to where it is: pure, without memory.

The order of evidence: terminal conditions, deletion, suspension, then `replicatedJobsStatus` (counts of child Jobs, in
random order), then pods and events for the words. The startup conditions flip on every loss of a slice, so their status
says nothing about where a run is. What does: `StartupPolicyCompleted` exists, true or false, from the moment when all
slices were ready for the first time. That tells a first start from a loss. Whether training gets on is the trainer's
word (status.json); whether it succeeded, its proof.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from ....runs.errors import ExitCode
from ....runs.judge.verdict import Observation
from ...base import SliceState
from .. import names
from ..api.k8s_json import (
    JOB_NAME,
    LONG_AGO,
    Raw,
    changed,
    condition,
    created,
    holds,
    is_being_deleted,
    label,
    name_of,
    newest,
    phase,
    runs,
    when,
)
from . import reasons
from .jobset_view import View

_SILENT = timedelta(seconds=30)  # a kubelet that lives has ended a pod this long after its grace
_QUEUE = "kueue.x-k8s.io/queue-name"
_FIRST_FAILED = re.compile(r"first failed job: ([^\s)]+)")
_SPENT = "ReachedMaxRestarts"  # said with no restarts allowed as well
_ENDED_WELL = frozenset({"Completed", "Complete"})


@dataclass(frozen=True)
class Seen:
    """One look at a JobSet: the job that it is, and the slices that come with it."""

    observation: Observation
    slices: SliceState


def is_over(found: Raw) -> bool:
    """Whether a JobSet or a Job has ended for good."""
    return _terminal(found) is not None


def needs_detail(jobset: Raw | None) -> bool:
    """Whether pods and events must be looked at: False while all is as it should be, or there is nothing."""
    if jobset is None:
        return False
    view = View.of(jobset, [])
    healthy = view.head["ready"] == 1 and view.ready == view.wanted
    return not healthy or is_over(jobset) or is_being_deleted(jobset) or view.suspended


def stuck(pods: Sequence[Raw], now: datetime) -> list[Raw]:
    """The pods that should be gone and are not: their nodes are silent, and only force ends them.

    A pod's deletionTimestamp is the end of its grace, not its beginning.
    """
    return [p for p in pods if (end := when(p["metadata"].get("deletionTimestamp"))) and now - end > _SILENT]


def stuck_head(pods: Sequence[Raw], now: datetime) -> Raw | None:
    """The head's pod, if it is stuck: until it is gone no other is made."""
    return newest(p for p in stuck(pods, now) if label(p, names.REPLICATED_JOB) == names.HEAD)


def look(jobset: Raw | None, pods: Sequence[Raw], events: Sequence[Raw], now: datetime) -> Seen:
    """What a JobSet's objects come to.

    Args:
      jobset: None if there is none.
      pods, events: of this run; empty if `needs_detail` says that they are not needed.
      now: by a clock that agrees with the server's to seconds.
    """
    if jobset is None:
        return Seen(Observation("absent"), SliceState("absent", 0, 0))
    view = View.of(jobset, pods)
    over = _terminal(jobset)
    if over is not None:
        return Seen(_over(view, over), view.slices("released"))
    if is_being_deleted(jobset):
        detail = f"JobSet {view.name} is being deleted"
        return Seen(Observation("over", detail=detail, evidence=view.evidence), view.slices("released", detail))
    if view.suspended:
        return _not_let_go(view, events, now)
    return _let_go(view, events, now)


def look_job(job: Raw | None, pods: Sequence[Raw], events: Sequence[Raw], now: datetime) -> Observation:
    """What a plain Job's objects come to; arguments as in `look`."""
    if job is None:
        return Observation("absent")
    mine = [p for p in pods if label(p, JOB_NAME) in ("", name_of(job)) and created(p) >= created(job)]
    status = job.get("status") or {}
    evidence: dict[str, Any] = {"uid": job["metadata"].get("uid"), "failed": int(status.get("failed") or 0)}
    over = _terminal(job)
    if over is not None:
        return _job_over(job, mine, over, evidence)
    if is_being_deleted(job):
        return Observation("over", detail=f"Job {name_of(job)} is being deleted", evidence=evidence)
    words = reasons.troubles(mine, events, created(job))
    if (job.get("spec") or {}).get("suspend"):
        ran = bool(status.get("startTime"))
        put_back = changed(suspended) if (suspended := holds(job, "Suspended")) else None
        waited = _seconds(put_back if ran else created(job), now)
        return Observation("suspended" if ran else "queued", None, False, _queue_words(job, events), evidence, waited)
    if status.get("ready") or any(runs(p) for p in mine):
        return Observation("running", detail="; ".join(words), evidence=evidence)
    last = newest(p for p in mine if phase(p) == "Failed")
    if last is not None and last is newest(mine):
        end, how = reasons.how_it_ended(last, names.TRAINER)
        detail = f"{how or 'the pod failed'}; it is being started again"
        return Observation("over", end.exit_code if end else None, True, detail, evidence)
    gone = not mine and (status.get("failed") or (status.get("uncountedTerminatedPods") or {}).get("failed"))
    # A pod that is replaced after hours begins anew; before the next one is made, nothing tells since when.
    since = max([created(job), changed(condition(job, "Suspended")), *map(created, mine)])
    return Observation("starting", None, False, "; ".join(words), evidence, 0.0 if gone else _seconds(since, now))


# -- a JobSet ---------------------------------------------------------------------------------------------------


def _not_let_go(view: View, events: Sequence[Raw], now: datetime) -> Seen:
    """Suspended: in the queue before it ever ran, or put back (preempted, or by hand)."""
    since = view.put_back if view.ran else created(view.jobset)
    detail, waited = _queue_words(view.jobset, events), _seconds(since, now)
    observation = Observation(
        "suspended" if view.ran else "queued", None, False, detail, {**view.evidence, "trainer_lives": False}, waited
    )
    return Seen(observation, SliceState("requested", 0, view.wanted, detail, with_job=True))


def _let_go(view: View, events: Sequence[Raw], now: datetime) -> Seen:
    complete = view.ready >= view.wanted
    words = [] if complete and view.head_up else reasons.troubles([*view.heads, *view.workers], events, view.since)
    lost = view.lost if view.ran and not complete else []
    if view.head_up and not complete:
        which = f" (not ready: slice {', '.join(map(str, lost[:8]))}{', ...' if len(lost) > 8 else ''})" if lost else ""
        words.insert(0, f"{view.ready} of {view.wanted} slices ready{which}")
    elif not view.head_up:
        words = words or ["the head is starting"]
    detail = "; ".join(words)
    evidence = {**view.evidence, **({"lost": lost} if lost else {})}
    some: Literal["requested", "partly"] = "partly" if view.ready or view.ran else "requested"
    slices = view.slices("ready" if complete and view.wanted else some, "" if complete else detail)

    ended = newest(view.heads)
    died = view.head["failed"] > 0 or (ended is not None and phase(ended) == "Failed")
    if not view.head_up and (died or holds(view.jobset, "RestartingJobSet")):
        return Seen(_again(view, ended, words, evidence, now), slices)
    if view.head_up and (view.ran or complete):
        return Seen(Observation("running", detail=detail, evidence={**evidence, **_ready_since(view)}), slices)
    if not view.head_up and view.ran and (view.head["succeeded"] or (ended is not None and is_being_deleted(ended))):
        # On its way out; JobSet will say in a second or two which way.
        silent = stuck(view.heads, now)
        node = (silent[0].get("spec") or {}).get("nodeName") if silent else ""
        detail = f"the head's pod does not end: node {node} is silent" if silent else "the head is ending"
        return Seen(Observation("running", detail=detail, evidence=evidence), slices)
    waited = _seconds(view.let_go if view.ran else view.since, now)
    return Seen(Observation("starting", None, False, detail, evidence, waited), slices)


def _again(view: View, ended: Raw | None, words: list[str], evidence: dict[str, Any], now: datetime) -> Observation:
    """The head died and JobSet starts everything again, or is about to say that it does not."""
    allowed = ((view.jobset["spec"].get("failurePolicy")) or {}).get("maxRestarts")
    code, how = None, ""
    if ended is not None and phase(ended) == "Failed":
        end, how = reasons.how_it_ended(ended, names.TRAINER)
        code = end.exit_code if end else None
    if holds(view.jobset, "RestartingJobSet"):
        told = f"the head is being started again (restart {view.restarts}{f' of {allowed}' if allowed else ''})"
    else:
        told = "the head has ended"
    said = [told, how, *(w for w in words if w != "the head is starting")]
    return Observation("over", code, True, "; ".join(w for w in said if w), evidence, _seconds(view.begun_anew, now))


def _over(view: View, over: Raw) -> Observation:
    evidence = {**view.evidence, "condition": f"{over['type']}/{over.get('reason', '')}", "trainer_lives": False}
    if over["type"] in _ENDED_WELL:
        return Observation("over", 0, evidence=evidence)
    said = str(over.get("message") or "")
    match = _FIRST_FAILED.search(said)
    first = match[1] if match else ""
    of_worker = f"-{names.WORKER}-" in first or (not first and bool(view.worker["failed"]) and not view.head["failed"])
    spent = f"; all {view.restarts} restarts are spent" if over.get("reason") == _SPENT and view.restarts else ""
    if of_worker:
        # The budget of a slice is spent, and JobSet took the head down with it.
        index = first.rpartition("-")[2]
        failed = [p for p in view.workers if phase(p) == "Failed" and (not first or label(p, names.JOB_INDEX) == index)]
        end, how = _last_end(failed, names.WORKER)
        which = f"slice {index}" if first else "a slice"
        detail = f"{which} failed more often than it may ({how or _words_of(over)}){spent}"
        return Observation("over", None, False, detail, {**evidence, **_named(end)})
    # A head from before the last restart is gone, and none may be left.
    head = newest(view.heads)
    end, how = _last_end([head] if head else [], names.TRAINER)
    detail = f"{how}{spent}" if how else f"the head ended and its pod is gone: {_words_of(over)}{spent}"
    if end is not None and end.reason == "OOMKilled":
        detail += "; raise the memory of container trainer in gke.head"
    return Observation("over", end.exit_code if end else None, False, detail, {**evidence, **_named(end)})


def _job_over(job: Raw, pods: Sequence[Raw], over: Raw, evidence: dict[str, Any]) -> Observation:
    evidence = {**evidence, "condition": f"{over['type']}/{over.get('reason', '')}"}
    if over["type"] in _ENDED_WELL:
        return Observation("over", 0, evidence=evidence)
    if over.get("reason") == "DeadlineExceeded":
        seconds = (job.get("spec") or {}).get("activeDeadlineSeconds")
        detail = f"the Job's activeDeadlineSeconds ({seconds}) is spent"
        return Observation("over", int(ExitCode.LIMIT_SPENT), False, detail, evidence)
    end, how = _last_end(pods, names.TRAINER)
    detail = how or f"the pod is gone: {_words_of(over)}"
    if end is not None and end.reason == "OOMKilled":
        detail += "; give the job more memory"
    return Observation("over", end.exit_code if end else None, False, detail, {**evidence, **_named(end)})


# -- helpers --------------------------------------------------------------------------------------------------------


def _terminal(found: Raw) -> Raw | None:
    return next((c for kind in ("Completed", "Complete", "Failed") if (c := holds(found, kind)) is not None), None)


def _words_of(over: Raw) -> str:
    return f"{over.get('reason', '')}: {reasons.cut(over.get('message', ''))}"


def _ready_since(view: View) -> dict[str, str]:
    """Since when all slices are ready; nothing while some are not."""
    if view.ready < view.wanted:
        return {}
    since = changed(holds(view.jobset, "StartupPolicyCompleted"))
    return {"running_since": since.isoformat()} if since > LONG_AGO else {}


def _last_end(pods: Sequence[Raw], container: str) -> tuple[reasons.End | None, str]:
    """How the pod that ended last did, and in words."""
    ended = [
        (end.at if end else created(p), end, how) for p in pods for end, how in [reasons.how_it_ended(p, container)]
    ]
    _, end, how = max(ended, key=lambda e: e[0], default=(LONG_AGO, None, ""))
    return end, how


def _named(end: reasons.End | None) -> dict[str, Any]:
    """Whose log tells more."""
    return {"pod": end.pod, "container": end.container, "exit": end.code} if end else {}


def _queue_words(found: Raw, events: Sequence[Raw]) -> str:
    queue, said = label(found, _QUEUE), reasons.queue_words(events, created(found))
    if not queue and not said:
        return "suspended (spec.suspend) and in no queue: somebody must resume it"
    return f"waits in queue {queue or 'of Kueue'}" + (f": {said}" if said else "")


def _seconds(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
