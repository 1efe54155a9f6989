"""Says why in words: which container ended how, and why a pod does not start. Pure.

Kubernetes does not fail a JobSet for most mistakes: without its service account, its priority class, room in a quota
or a node that fits, it stays "starting" for ever. Only pod conditions, waiting containers and events tell why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ....runs.errors import ExitCode
from .. import names
from ..k8s_json import (
    JOB_NAME,
    LONG_AGO,
    Json,
    condition,
    containers,
    created,
    event_time,
    holds,
    is_being_deleted,
    label,
    name_of,
    parse_time,
    phase,
)

_EVICTED = int(ExitCode.EVICTED)  # the only exit code above 128 that our trainer returns itself
_LINES = 3  # the last lines of a termination message that are shown
_LONGEST = 300  # characters of one message
_MOST = 3  # problems that are listed, the others are counted

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
_BAD_WAITS = (
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
_MOUNT = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
_CONTROLLER = ("JobCreationFailed", "HeadlessServiceCreationFailed", "PVCCreationFailed")


@dataclass(frozen=True)
class ContainerEnd:
    """How a container ended.

    Attributes:
      code: the exit code as Kubernetes reports it: 128 + n after signal n (137 for SIGKILL).
      reason: Kubernetes' reason, such as OOMKilled, Error, Completed; empty if there is none.
      message: the termination message.
    """

    pod: str
    container: str
    code: int
    reason: str
    message: str
    at: datetime

    @property
    def exit_code(self) -> int:
        """The exit code as `subprocess` reports it: negative for a signal (-9).

        143 stays as it is, since the trainer returns it itself when it is evicted (docs/contracts.md 8). OOMKilled
        becomes 70, which is not relaunched: the same process in the same memory ends the same way.
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


def ends(pod: Json) -> list[ContainerEnd]:
    """The ends of the pod's containers that its status still shows (current and last state), oldest first."""
    found = []
    for status in containers(pod):
        for state in (status.get("lastState"), status.get("state")):
            over = (state or {}).get("terminated")
            if over:
                at = parse_time(over.get("finishedAt")) or LONG_AGO
                reason, words = str(over.get("reason") or ""), str(over.get("message") or "")
                found.append(ContainerEnd(name_of(pod), status["name"], int(over["exitCode"]), reason, words, at))
    return sorted(found, key=lambda end: end.at)


def end_of(pod: Json, container: str) -> ContainerEnd | None:
    """The newest end of this container; None if none is shown."""
    return next((end for end in reversed(ends(pod)) if end.container == container), None)


def how_it_ended(pod: Json, container: str) -> tuple[ContainerEnd | None, str]:
    """How this container ended (None if unknown), and the same in words.

    The words also name another container that failed before it, and the cluster if the cluster ended the pod.
    """
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


def troubles(pods: Sequence[Json], events: Sequence[Json], since: datetime) -> list[str]:
    """Why pods do not start: each cause once, with its pods and its cure, waiting containers first.

    At most three causes are named; a last line counts the others.

    Args:
      pods: of one JobSet or Job.
      events: of the same objects.
      since: older events are left out: they are about an earlier start, or an earlier object with the same name.
    """
    recent = sorted((e for e in events if event_time(e) >= since), key=event_time, reverse=True)
    waiting = [p for p in pods if phase(p) == "Pending" and not is_being_deleted(p)]
    said: dict[str, list[str]] = {}
    for pod in [*waiting, *(p for p in pods if phase(p) == "Running" and not is_being_deleted(p))]:
        for text in _waiting_containers(pod):
            said.setdefault(text, []).append(_part_of(pod))
    for pod in waiting:
        for text in _scheduling_failure(pod, recent) or _mount_failure(pod, recent):
            said.setdefault(text, []).append(_part_of(pod))
    for event in recent:
        text = _creation_failure(event, pods)
        if text:
            said.setdefault(text, []).append(_part_of_event(event))
    found = [f"{_join(where)}: {_with_cure(text)}" for text, where in said.items()]
    more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
    return [*found[:_MOST], *more]


def queue_words(events: Sequence[Json], since: datetime) -> str:
    """The newest event of Kueue that says why a run waits (else its newest one) as "reason: message"; or empty."""
    ours = [e for e in events if event_time(e) >= since and _is_kueues(e)]
    # "Pending" says why the run waits; "CreatedWorkload" and the like only say that Kueue has seen the Job.
    telling = [e for e in ours if e.get("reason") not in ("CreatedWorkload", "UpdatedWorkload", "SetWorkload")]
    event = max(telling or ours, key=event_time, default=None)
    return f"{event.get('reason')}: {cut(event.get('message', ''))}" if event else ""


def cut(text: object) -> str:
    """The text as one line, cut to 300 characters."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _waiting_containers(pod: Json) -> list[str]:
    found = []
    for status in containers(pod):
        waits = (status.get("state") or {}).get("waiting") or {}
        if waits.get("reason") in _BAD_WAITS:
            last = end_of(pod, status["name"])
            why = str(last) if last and waits["reason"] == "CrashLoopBackOff" else cut(waits.get("message"))
            found.append(f"container {status['name']} waits: {waits['reason']}" + (f": {why}" if why else ""))
    return found


def _scheduling_failure(pod: Json, recent: Sequence[Json]) -> list[str]:
    scheduled = condition(pod, "PodScheduled") or {}
    mine = [e for e in recent if e["involvedObject"].get("uid") == pod["metadata"].get("uid")]
    if scheduled.get("status") == "False":
        why = scheduled.get("message")
    elif not scheduled and (event := _first(mine, ("FailedScheduling",))):
        why = event.get("message")
    else:
        return []
    # The rest of the message is about devices and preemption, the same for every pod.
    why = cut(re.split(r"[.,]? (?:no new claims|preemption:)", str(why or ""))[0])
    selector = (pod.get("spec") or {}).get("nodeSelector") or {}
    wanted = [f"{key}={value}" for key, value in sorted(selector.items())]
    text = f"no node for the pod{' with ' + ', '.join(wanted) if wanted else ''}: {why}"
    scaling = _first(mine, _AUTOSCALER)
    return [text + (f"; autoscaler: {cut(scaling.get('message'))}" if scaling else "")]


def _mount_failure(pod: Json, recent: Sequence[Json]) -> list[str]:
    mine = [e for e in recent if e["involvedObject"].get("uid") == pod["metadata"].get("uid")]
    event = _first(mine, _MOUNT)
    return [f"{event['reason']}: {cut(event.get('message'))}"] if event else []


def _creation_failure(event: Json, pods: Sequence[Json]) -> str:
    """Why a controller could not create an object; empty if a pod of the same Job was created later."""
    reason, message = event.get("reason"), str(event.get("message") or "")
    if reason in _CONTROLLER:
        return f"{reason}: {cut(message)}"
    # JobSet's webhook refuses the other pods of a slice until the first one has a node; the first one says why not.
    if reason != "FailedCreate" or "follower pod node selector" in message:
        return ""
    made = [created(p) for p in pods if label(p, JOB_NAME) == event["involvedObject"].get("name")]
    if made and max(made) >= event_time(event):
        return ""
    refused = re.sub(r'^pods? "[^"]*" is forbidden: ', "", message.removeprefix("Error creating: "))
    return f"the pod is refused: {cut(refused)}"


def _is_kueues(event: Json) -> bool:
    who = f"{(event.get('source') or {}).get('component', '')} {event.get('reportingComponent', '')}"
    return event["involvedObject"].get("kind") == "Workload" or "kueue" in who


def _first(events: Iterable[Json], reasons: Sequence[str]) -> Json | None:
    return next((e for e in events if e.get("reason") in reasons), None)


def _part_of(pod: Json) -> str:
    part, index = label(pod, names.REPLICATED_JOB), label(pod, names.JOB_INDEX)
    if part == names.HEAD:
        return "head"
    return f"slice {index}" if part == names.WORKER else label(pod, names.ROLE) or name_of(pod)


def _part_of_event(event: Json) -> str:
    name = str(event["involvedObject"].get("name", ""))
    if f"-{names.HEAD}-" in name:
        return "head"
    _, worker, index = name.rpartition(f"-{names.WORKER}-")
    return f"slice {index}" if worker else name


def _join(where: Sequence[str]) -> str:
    once = sorted(set(where), key=lambda w: (len(w), w))
    if len(once) < 2:
        return "".join(once)
    numbers = [w.removeprefix("slice ") for w in once if w.startswith("slice ")]
    if len(numbers) == len(once):
        shown = ", ".join(numbers[:8]) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
        return f"slices {shown}"
    return ", ".join(once)


def _with_cure(text: str) -> str:
    cure = next((cure for pattern, cure in _CURES if re.search(pattern, text, re.IGNORECASE)), "")
    return f"{text} ({cure})" if cure else text
