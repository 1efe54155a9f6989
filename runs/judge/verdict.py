"""From what was observed of a job to a verdict: pure, and the same for every platform and orchestrator.

Success needs proof; an exit code, a pod phase or a log line never is one. The order of evidence: the proof, then
whether the job lives, then its exit code, then the trainer's own word for the reason. Standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..errors import ExitCode
from ..record.status import Status

Phase = Literal["queued", "starting", "running", "recovering", "suspended", "finishing", "done"]
Outcome = Literal["none", "complete", "failed", "cancelled", "superseded"]
Act = Literal["none", "relaunch", "user"]


@dataclass(frozen=True)
class Observation:
    """One look at a job.

    `state`: absent (never launched, or gone with no trace), queued, starting, running, suspended (put back into a
    queue, or by hand, after it ran), over.
    `exit_code`: of a job that is over; negative for a signal (-9), None when nobody saw it end.
    `relaunching`: the platform itself starts the job again (so an exit is not the end).
    `evidence`: for people, but for two facts: `trainer_lives` is False when what status.json says is of a trainer
    before this one; `ran` is True when this very job has had all its slices before.
    `waited`: seconds that it has been queued, starting, suspended or relaunching; 0 if nothing tells.
    """

    state: Literal["absent", "queued", "starting", "running", "suspended", "over"]
    exit_code: int | None = None
    relaunching: bool = False
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    waited: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What one look came to: where the job is, how it ended, who must act, and why."""

    phase: Phase
    outcome: Outcome = "none"
    act: Act = "none"
    code: int = 0
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.phase == "done"

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


_WHO_ACTS: dict[int, tuple[Outcome, Act]] = {
    ExitCode.BAD_INPUT: ("failed", "user"),
    ExitCode.GATE_FAILED: ("failed", "user"),
    ExitCode.BUG: ("failed", "user"),
    ExitCode.INFRASTRUCTURE: ("failed", "relaunch"),
    ExitCode.ENDED_ON_REQUEST: ("cancelled", "none"),
    ExitCode.LIMIT_SPENT: ("failed", "user"),
    ExitCode.EVICTED: ("failed", "relaunch"),
}

_RUNNING_PHASES: dict[str, Phase] = {
    "starting": "starting",
    "waiting": "recovering",
    "restoring": "starting",
    "compiling": "starting",
    "training": "running",
    "saving": "running",
    "stopping": "finishing",
    "ended": "finishing",
}


def judge(job: str, seen: Observation, status: Status | None, proven: bool, unproven_reason: str = "") -> Verdict:
    """The verdict on a job.

    Args:
      job: its name, for the reason.
      seen: what the platform shows.
      status: the trainer's heartbeat, if the job writes one.
      proven: whether the job's proof (result.json, manifest.json, evaluation) holds.
      unproven_reason: why it does not, for the message of a job that is over.
    """
    if proven:
        if seen.state in ("starting", "running"):
            return Verdict(
                "finishing", reason=f"{job}: the result is proven, the process is ending", evidence=seen.evidence
            )
        return Verdict("done", "complete", evidence=seen.evidence)
    if seen.state in ("queued", "suspended"):
        return Verdict(seen.state, reason=seen.detail, evidence=seen.evidence)
    if seen.state in ("starting", "running") or seen.relaunching:
        return _alive(seen, status)
    if seen.state == "absent":
        reason = seen.detail or f"{job}: there is no such job (it was never launched, or was removed with no trace)"
        return Verdict("done", "failed", "relaunch", ExitCode.INFRASTRUCTURE, reason, seen.evidence)
    return _over(job, seen, status, unproven_reason)


def _alive(seen: Observation, status: Status | None) -> Verdict:
    if seen.relaunching and seen.state == "over":
        return Verdict("recovering", reason=seen.detail or "the trainer is being started again", evidence=seen.evidence)
    if status is None or (seen.state == "starting" and not seen.evidence.get("trainer_lives", True)):
        return Verdict(
            "starting" if seen.state == "starting" else "running", reason=seen.detail, evidence=seen.evidence
        )
    phase = _RUNNING_PHASES[status.phase]
    if status.recovery > 0 and phase == "starting":
        phase = "recovering"
    if seen.state == "starting" and status.recovery == 0 and phase == "recovering":
        phase = "starting"  # nothing was lost: the slices were never all there
    # What slices wait for is the platform's to say, and why the trainer waits is the trainer's.
    reason = "; ".join(dict.fromkeys(words for words in (status.reason, seen.detail) if words))
    if not reason and (phase == "recovering" or status.phase == "waiting"):
        reason = f"{status.slices.active} of {status.slices.wanted} slices"
    return Verdict(phase, reason=reason, evidence=seen.evidence)


def _over(job: str, seen: Observation, status: Status | None, unproven_reason: str) -> Verdict:
    code = seen.exit_code
    # The trainer's word counts for its own exit only: the platform may have made another code of it (limits), and after
    # a death without last words the status is still the living one's.
    ended = status is not None and status.phase == "ended"
    said = status.reason if status is not None and ended and status.exit == code else ""
    if code == 0:
        reason = f"{job} exited 0 but {unproven_reason or 'its result is not proven'}"
        return Verdict("done", "failed", "user", ExitCode.BUG, reason, seen.evidence)
    if code is None:
        reason = seen.detail or f"{job} ended and nobody saw how"
        return Verdict("done", "failed", "relaunch", ExitCode.INFRASTRUCTURE, reason, seen.evidence)
    if code < 0:
        reason = seen.detail or f"{job} was killed by signal {-code}"
        return Verdict("done", "failed", "relaunch", ExitCode.INFRASTRUCTURE, reason, seen.evidence)
    outcome, act = _WHO_ACTS.get(code, ("failed", "user"))
    if code == ExitCode.ENDED_ON_REQUEST and status is not None and not ended:
        # Who ends on request says so in status.json; who is silent found another trainer's words there.
        outcome = "superseded"
        said = f"another trainer has this run (attempt {status.attempt} in status.json); {job} ended without a write"
    # What the platform knows (which container, what failed before it) stands beside the trainer's own words.
    reason = f"{said} ({seen.detail})" if said and seen.detail and said not in seen.detail else seen.detail or said
    verdict_code = ExitCode.INFRASTRUCTURE if code == ExitCode.EVICTED else code
    if code not in _WHO_ACTS:
        verdict_code = ExitCode.BUG
    return Verdict("done", outcome, act, int(verdict_code), reason or f"{job} exited {code}", seen.evidence)
