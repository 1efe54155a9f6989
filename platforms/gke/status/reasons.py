"""The text of failures, from what a cluster leaves of them: which container ended how, and why a pod does not start.

Much that is wrong fails nothing in Kubernetes: without a service account, a priority class, room in a quota or a node
that fits, a JobSet sits in "starting" for ever, and only conditions of pods, waiting containers and events say why.
All of it is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ....runs.errors import ExitCode
from .. import names
from ..api.k8s_json import (
    JOB_NAME,
    LONG_AGO,
    Raw,
    condition,
    containers,
    created,
    holds,
    is_being_deleted,
    label,
    name_of,
    phase,
    seen_at,
    when,
)

_EVICTED = 143  # the one exit code above 128 that a process of ours chooses itself
_LINES = 3  # of what a container left as its last words
_LONGEST = 300  # characters of one message
_MOST = 3  # troubles that are named

_CURES = (
    (r"service ?account .*not found", "create it, or set gke.service_account"),
    (r"exceeded quota", "raise that ResourceQuota, or free some of it"),
    (
        r"PriorityClass .*(not|was) found|no PriorityClass",
        "create it, or change priorityClassName in gke.worker",
    ),
    (r"(secret|configmap) .*not found", "create it in this namespace, or change `secrets`"),
    (r"ImagePullBackOff|ErrImagePull|InvalidImageName", "check the image's name and the nodes' right to pull it"),
)
_WRONG_WAITS = (
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)
_AUTOSCALER = ("FailedScaleUp", "NotTriggerScaleUp", "TriggeredScaleUp")
_NODE_SIDE = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
_CONTROLLER = ("JobCreationFailed", "HeadlessServiceCreationFailed", "PVCCreationFailed")


@dataclass(frozen=True)
class End:
    """How a container ended: exit code as Kubernetes has it (137), reason (OOMKilled), its last words."""

    pod: str
    container: str
    code: int
    reason: str
    message: str
    at: datetime

    @property
    def exit_code(self) -> int:
        """Negative for a signal, as a parent process sees it; 143 is an exit code of ours (contracts.md 8).

        Out of memory is the user's to cure: the same process in the same memory ends the same way.
        """
        if self.reason == "OOMKilled":
            return int(ExitCode.BUG)
        return 128 - self.code if 128 < self.code <= 192 and self.code != _EVICTED else self.code

    def __str__(self) -> str:
        how = f"was killed by signal {-self.exit_code}" if self.exit_code < 0 else f"exited {self.code}"
        if self.reason == "OOMKilled":
            how = "ran out of memory and was killed"
        elif self.reason not in ("", "Error", "Completed"):
            how += f" ({self.reason})"
        words = "; ".join([line.strip() for line in self.message.splitlines() if line.strip()][-_LINES:])
        return f"{self.container} {how}" + (f": {cut(words)}" if words else "")


def ends(pod: Raw) -> list[End]:
    """Every end of a container that the pod still knows of, the first one first."""
    found = []
    for status in containers(pod):
        for state in (status.get("lastState"), status.get("state")):
            over = (state or {}).get("terminated")
            if over:
                at = when(over.get("finishedAt")) or LONG_AGO
                words = str(over.get("message") or "")
                found.append(
                    End(name_of(pod), status["name"], int(over["exitCode"]), str(over.get("reason") or ""), words, at)
                )
    return sorted(found, key=lambda end: end.at)


def end_of(pod: Raw, container: str) -> End | None:
    """The newest end of a container."""
    return next((end for end in reversed(ends(pod)) if end.container == container), None)


def how_it_ended(pod: Raw, container: str) -> tuple[End | None, str]:
    """The end that counts, and all that is known of it in words: what failed before it, who ended the pod."""
    end = end_of(pod, container)
    words = [str(end)] if end else []
    first = next((e for e in ends(pod) if e.code), None)
    if first is not None and first.container != container and (end is None or first.at < end.at):
        words.append(f"{first} before it" if end else str(first))
    status = pod.get("status") or {}
    if (ended_by := holds(pod, "DisruptionTarget")) is not None:
        words.append(f"the pod was ended by the cluster ({ended_by.get('reason')}: {cut(ended_by.get('message', ''))})")
    elif status.get("reason"):
        words.append(f"the pod was ended by the cluster ({status['reason']}: {cut(status.get('message', ''))})")
    return end, "; ".join(words)


def troubles(pods: Sequence[Raw], events: Sequence[Raw], since: datetime) -> list[str]:
    """Why pods do not start, what matters first, each said once.

    Args:
      pods: of one JobSet or Job.
      events: of the same objects; older ones than `since` are of predecessors with the same names.
    """
    recent = sorted((e for e in events if seen_at(e) >= since), key=seen_at, reverse=True)
    waiting = [p for p in pods if phase(p) == "Pending" and not is_being_deleted(p)]
    said: dict[str, list[str]] = {}
    for pod in [*waiting, *(p for p in pods if phase(p) == "Running" and not is_being_deleted(p))]:
        for text in _containers_that_wait(pod):
            said.setdefault(text, []).append(_where(pod))
    for pod in waiting:
        for text in _scheduling(pod, recent) or _node_side(pod, recent):
            said.setdefault(text, []).append(_where(pod))
    for event in recent:
        text = _of_controllers(event, pods)
        if text:
            said.setdefault(text, []).append(_owner(event))
    found = [f"{_list(where)}: {_cured(text)}" for text, where in said.items()]
    more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
    return [*found[:_MOST], *more]


def queue_words(events: Sequence[Raw], since: datetime) -> str:
    """The newest word of Kueue about its Workload, if it has said one."""
    ours = [e for e in events if seen_at(e) >= since and _is_kueues(e)]
    # "Pending" explains; "CreatedWorkload" and the like only say that Kueue has seen it.
    telling = [e for e in ours if e.get("reason") not in ("CreatedWorkload", "UpdatedWorkload", "SetWorkload")]
    event = max(telling or ours, key=seen_at, default=None)
    return f"{event.get('reason')}: {cut(event.get('message', ''))}" if event else ""


def cut(text: object) -> str:
    """One line, and not too long for one."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _containers_that_wait(pod: Raw) -> list[str]:
    found = []
    for status in containers(pod):
        waits = (status.get("state") or {}).get("waiting") or {}
        if waits.get("reason") in _WRONG_WAITS:
            last = end_of(pod, status["name"])
            why = str(last) if last and waits["reason"] == "CrashLoopBackOff" else cut(waits.get("message"))
            found.append(f"container {status['name']} waits: {waits['reason']}" + (f": {why}" if why else ""))
    return found


def _scheduling(pod: Raw, recent: Sequence[Raw]) -> list[str]:
    scheduled = condition(pod, "PodScheduled") or {}
    mine = [e for e in recent if e["involvedObject"].get("uid") == pod["metadata"].get("uid")]
    if scheduled.get("status") == "False":
        why = scheduled.get("message")
    elif not scheduled and (event := _first(mine, ("FailedScheduling",))):
        why = event.get("message")
    else:
        return []
    # What follows is about devices and preemption, the same for every pod.
    why = cut(re.split(r"[.,]? (?:no new claims|preemption:)", str(why or ""))[0])
    selector = (pod.get("spec") or {}).get("nodeSelector") or {}
    wanted = [f"{key}={value}" for key, value in sorted(selector.items())]
    text = f"no node for the pod{' with ' + ', '.join(wanted) if wanted else ''}: {why}"
    scaling = _first(mine, _AUTOSCALER)
    return [text + (f"; autoscaler: {cut(scaling.get('message'))}" if scaling else "")]


def _node_side(pod: Raw, recent: Sequence[Raw]) -> list[str]:
    mine = [e for e in recent if e["involvedObject"].get("uid") == pod["metadata"].get("uid")]
    event = _first(mine, _NODE_SIDE)
    return [f"{event['reason']}: {cut(event.get('message'))}"] if event else []


def _of_controllers(event: Raw, pods: Sequence[Raw]) -> str:
    """Pods that could not be made: the event counts until a pod of that Job is made after all."""
    reason, message = event.get("reason"), str(event.get("message") or "")
    if reason in _CONTROLLER:
        return f"{reason}: {cut(message)}"
    # A follower is refused until its leader has a node; the leader says why it has none.
    if reason != "FailedCreate" or "follower pod node selector" in message:
        return ""
    made = [created(p) for p in pods if label(p, JOB_NAME) == event["involvedObject"].get("name")]
    if made and max(made) >= seen_at(event):
        return ""
    refused = re.sub(r'^pods? "[^"]*" is forbidden: ', "", message.removeprefix("Error creating: "))
    return f"the pod is refused: {cut(refused)}"


def _is_kueues(event: Raw) -> bool:
    who = f"{(event.get('source') or {}).get('component', '')} {event.get('reportingComponent', '')}"
    return event["involvedObject"].get("kind") == "Workload" or "kueue" in who


def _first(events: Iterable[Raw], reasons: Sequence[str]) -> Raw | None:
    return next((e for e in events if e.get("reason") in reasons), None)


def _where(pod: Raw) -> str:
    part, index = label(pod, names.REPLICATED_JOB), label(pod, names.JOB_INDEX)
    if part == names.HEAD:
        return "head"
    return f"slice {index}" if part == names.WORKER else label(pod, names.ROLE) or name_of(pod)


def _owner(event: Raw) -> str:
    name = str(event["involvedObject"].get("name", ""))
    if f"-{names.HEAD}-" in name:
        return "head"
    _, worker, index = name.rpartition(f"-{names.WORKER}-")
    return f"slice {index}" if worker else name


def _list(where: Sequence[str]) -> str:
    once = sorted(set(where), key=lambda w: (len(w), w))
    if len(once) < 2:
        return "".join(once)
    numbers = [w.removeprefix("slice ") for w in once if w.startswith("slice ")]
    if len(numbers) == len(once):
        shown = ", ".join(numbers[:8]) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
        return f"slices {shown}"
    return ", ".join(once)


def _cured(text: str) -> str:
    cure = next((cure for pattern, cure in _CURES if re.search(pattern, text, re.IGNORECASE)), "")
    return f"{text} ({cure})" if cure else text
