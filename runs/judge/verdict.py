"""From what was observed of a job to a verdict: pure, and the same for every platform and orchestrator.

Success needs a proof; an exit code, a pod phase or a log line is none. What decides, in this order: the proof, whether
the job lives, its exit code, the reason in status.json. Standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from .. import masking
from ..errors import Act, ExitCode, Outcome
from ..record.status import Status

State = Literal["absent", "queued", "starting", "running", "suspended", "over"]
Phase = Literal["queued", "starting", "running", "recovering", "suspended", "finishing", "done"]


@dataclass(frozen=True)
class Observation:
    """One look at a job, as a platform sees it.

    Attributes:
      state: absent = never launched, or removed without a trace; suspended = put back into a queue, or suspended by
        hand, after it ran.
      exit_code: of a job that is over; negative for a signal (-9), None if the exit was not observed.
      relaunching: the platform starts the job again by itself, so an exit is not the end.
      detail: what the platform says about the state, for people.
      evidence: more details, for people. Code decides by the other fields only.
      waited: seconds that the job has been queued, starting, suspended or relaunching; 0 if unknown.
      trainer_lives: False if no trainer process of this job runs, so that status.json is an earlier trainer's.
      ran: this very job has had all its slices at once before, so a start is not its first.
      running_since: when all slices became ready; None while some are not, and if unknown.
      seen_at: time of the look by the cluster's clock; None if this machine's clock is the one that counts.
      stuck: pods of the job are on nodes that no longer answer and keep new pods from being made;
        `Platform.free_stuck_pods` removes them.
    """

    state: State
    exit_code: int | None = None
    relaunching: bool = False
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    waited: float = 0.0
    trainer_lives: bool = True
    ran: bool = False
    running_since: datetime | None = None
    seen_at: datetime | None = None
    stuck: bool = False

    def __post_init__(self) -> None:
        # A platform may show a trainer's last log line (a pod's termination message), and `status` shows this.
        object.__setattr__(self, "detail", masking.mask(self.detail))
        object.__setattr__(self, "evidence", masking.mask_all(self.evidence))


@dataclass(frozen=True)
class Verdict:
    """What one look means. All of it is JSON: an orchestrator may keep it in its database.

    Attributes:
      phase: where the job is.
      outcome: how it ended; none while it goes on.
      act: who must act: nobody, whoever relaunches jobs, or the user.
      code: the exit code that the outcome stands for; 0 while the job goes on.
      reason: why, for people.
      evidence: details of the observation, for people. No code decides by it, and an adapter may drop it.
      limit: the field of the spec whose limit the launcher found spent (`limits.start`); empty if none is. A trainer
        that ends by a limit of its own exits with 77 and is named in `reason` only.
    """

    phase: Phase
    outcome: Outcome = "none"
    act: Act = "none"
    code: int = 0
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    limit: str = ""

    def __post_init__(self) -> None:
        # What a platform says may end with a trainer's last log line; a verdict goes into logs and databases.
        object.__setattr__(self, "reason", masking.mask(self.reason))
        object.__setattr__(self, "evidence", masking.mask_all(self.evidence))

    @classmethod
    def ended(cls, code: ExitCode, reason: str, evidence: dict[str, Any] | None = None, *, limit: str = "") -> Verdict:
        """The verdict on what ended with this code without success; outcome and act follow from the code."""
        return cls("done", code.outcome, code.act, int(code), reason, evidence or {}, limit)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.phase == "done"

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


_RUNNING_PHASES: dict[str, Phase] = {
    "starting": "starting",
    "waiting": "recovering",
    "restoring": "starting",
    "compiling": "starting",
    "training": "running",
    "suspended": "suspended",
    "saving": "running",
    "stopping": "finishing",
    "ended": "finishing",
}


def judge(job: str, seen: Observation, status: Status | None, proven: bool, unproven_reason: str = "") -> Verdict:
    """The verdict on a job.

    Args:
      job: its name, for the reason.
      seen: the platform's look at it.
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
        return Verdict.ended(ExitCode.INFRASTRUCTURE, reason, seen.evidence)
    return _over(job, seen, status, unproven_reason)


def _alive(seen: Observation, status: Status | None) -> Verdict:
    if seen.relaunching and seen.state == "over":
        return Verdict("recovering", reason=seen.detail or "the trainer is being started again", evidence=seen.evidence)
    if seen.state == "running" and not seen.trainer_lives:
        return Verdict("finishing", reason=seen.detail, evidence=seen.evidence)
    if status is None or (seen.state == "starting" and not seen.trainer_lives):
        return Verdict(
            "starting" if seen.state == "starting" else "running", reason=seen.detail, evidence=seen.evidence
        )
    phase = _RUNNING_PHASES[status.phase]
    if status.recovery > 0 and phase == "starting":
        phase = "recovering"
    if seen.state == "starting" and status.recovery == 0 and phase == "recovering":
        phase = "starting"  # nothing was lost: the slices were never all ready
    # The platform knows what slices wait for, the trainer why it waits.
    reason = "; ".join(dict.fromkeys(words for words in (status.reason, seen.detail) if words))
    if not reason and (phase == "recovering" or status.phase == "waiting"):
        reason = f"{status.slices.active} of {status.slices.wanted} slices"
    if not reason and phase != "finishing":
        reason = status.doing  # without its seconds, which change with each look
    return Verdict(phase, reason=reason, evidence=seen.evidence)


def _over(job: str, seen: Observation, status: Status | None, unproven_reason: str) -> Verdict:
    code = seen.exit_code
    # The reason in status.json counts only for the exit code that stands there: the platform may have replaced the code
    # (a spent limit), and a process that was killed left the status from before its death.
    ended = status is not None and status.phase == "ended"
    said = status.reason if status is not None and ended and status.exit == code else ""
    if code == 0:
        reason = f"{job} exited 0 but {unproven_reason or 'its result is not proven'}"
        return Verdict.ended(ExitCode.BUG, reason, seen.evidence)
    meant = ExitCode.of(code, "job")
    if code is None:
        return Verdict.ended(meant, seen.detail or f"{job} ended; its exit was not observed", seen.evidence)
    if code < 0:
        return Verdict.ended(meant, seen.detail or f"{job} was killed by signal {-code}", seen.evidence)
    outcome = meant.outcome
    if meant is ExitCode.ENDED_ON_REQUEST and status is not None and not ended:
        # A trainer that ends on request writes so into status.json; one that found another trainer's status there
        # exits with the same code and writes nothing.
        outcome = "superseded"
        said = f"another trainer has this run (attempt {status.attempt} in status.json); {job} ended without a write"
    # The platform knows other things than the trainer: which container, what failed before it. Give both.
    reason = f"{said} ({seen.detail})" if said and seen.detail and said not in seen.detail else seen.detail or said
    # An eviction is told as what it is for whoever reads the verdict: infrastructure.
    told = ExitCode.INFRASTRUCTURE if meant is ExitCode.EVICTED else meant
    return replace(Verdict.ended(told, reason or f"{job} exited {code}", seen.evidence), outcome=outcome)
