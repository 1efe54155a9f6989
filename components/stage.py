"""The protocol of a pipeline step, and its two kinds. Nothing here knows which orchestrator called.

    stage = open_stage(STEP, run="gs://bucket/runs/r", holder="my-dag/2026-01-01")
    stage.submit()                      # create or adopt; safe to call twice
    while not (verdict := stage.poll()).done:
        wait(stage.interval)
    result = stage.collect()            # positive proof, or an error that says who must act

A `JobStage` starts a job and is over when its proof holds. A `SliceStage` takes slices or gives them back. Who drives
the run is decided by its claim (contracts.md 4): a stage whose claim is refused changes nothing.
Importing this loads the standard library only: a scheduler does it every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..runs.errors import (
    ElasticTPUError,
    EndedOnRequest,
    ExitCode,
    GateFailed,
    HeldByAnother,
    Infrastructure,
    LimitSpent,
)
from ..runs.verdict import Verdict, judge
from .claimed import StageClaim
from .outcomes import PROOFS, RESULTS, StageResult, last_stage, nothing_left_to_do
from .reported import reported

if TYPE_CHECKING:
    from ..platforms.base import Job, Platform
    from ..runs.run import Run

__all__ = [
    "JobStage",
    "JobStep",
    "NothingStarted",
    "SliceStage",
    "SliceStep",
    "Stage",
    "StageResult",
    "Step",
    "error_of",
    "open_stage",
]

_STOP_WAIT = 600.0  # seconds a submit waits for a trainer that was told to stop


@dataclass(frozen=True)
class JobStep:
    """Declares a job: its name, what it needs, and whether it may take the claim or only join it."""

    name: Literal["train", "export", "evaluate"]
    slices: bool
    claim: Literal["take", "join"]

    @property
    def argv(self) -> tuple[str, ...]:
        """Arguments of the trainer's command, without the run."""
        return (self.name,)


@dataclass(frozen=True)
class SliceStep:
    """Declares a change of slices."""

    name: Literal["provision", "release"]


Step = JobStep | SliceStep


class Stage(Protocol):
    """What an adapter drives. `interval`: seconds between two looks."""

    @property
    def name(self) -> str:
        """The step's name."""

    interval: float

    @property
    def uri(self) -> str | None:
        """The run's, for a process that goes on with this stage; None when there is no run."""

    def submit(self) -> None:
        """Create or adopt what the stage is for. Raises HeldByAnother when somebody else drives the run."""

    def poll(self) -> Verdict:
        """One look: renew the claim, observe, judge."""

    def collect(self) -> StageResult:
        """The result, once `poll` said done; raises the error that the verdict stands for."""

    def cancel(self, grace: float, by: str = "", now: bool = False) -> None:
        """Stop what the stage is for, if the run is mine; a take by the same holder in `grace` seconds undoes it.

        With `now` the job gets no time to save.
        """

    @property
    def term(self) -> int | None:
        """The term of the claim that the stage acts in, once it has one."""


def open_stage(
    step: Step,
    run: str,
    holder: str,
    instance: str | None = None,
    *,
    take_over: bool = False,
    term: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Stage:
    """The stage of a step.

    Args:
      run: URI of the run directory, or of a spec whose name is resolved once a holder.
      holder: the orchestrator's run; the same for every stage of one pipeline run.
      instance: tells two processes of one holder apart: pod uid, try number, or ``pid:start time`` (the default).
      take_over: take the claim even if another holder renews it.
      term: for release: act only in this term, which an earlier stage of this process had.
      tell: called with a line before something that may take long.
    """
    from ..platforms.base import open_platform
    from ..runs.claim import this_instance
    from ..runs.driver import Driver
    from ..runs.events import EventLog
    from ..runs.run import find_run, start_run

    starts = step.name != "release" and run.endswith((".yaml", ".yml"))
    opened = start_run(run, holder) if starts else find_run(run, holder)
    if opened is None:
        return NothingStarted(step.name)
    seconds = opened.spec.local.unclaimed if opened.spec.platform == "local" else 600.0
    who = instance or this_instance()
    driver = Driver(opened.store, holder, who, seconds, term=term, on_event=EventLog(opened.store, "stage").hook)
    claimed = StageClaim(driver, opened.store, (holder, who), seconds, take_over)
    platform = open_platform(opened)
    if isinstance(step, SliceStep):
        return SliceStage(step, opened, platform, claimed, tell)
    return JobStage(step, opened, platform, claimed, tell)


def _interval(run: Run) -> float:
    return 0.25 if run.spec.platform == "local" else 15.0


class JobStage:
    """A job in the trainer image and the file that proves it."""

    def __init__(
        self, step: JobStep, run: Run, platform: Platform, claim: StageClaim, tell: Callable[[str], None]
    ) -> None:
        self.run, self.platform, self._claim, self._tell = run, platform, claim, tell
        self.interval = _interval(run)
        from ..platforms.base import Job

        self.step, self.name = step, step.name
        self.job: Job = Job(step.name, (*step.argv, "--run", run.uri), step.slices)
        self._proof = PROOFS[step.name]
        self._verdict: Verdict | None = None

    def submit(self) -> None:
        self._claim.take() if self.step.claim == "take" else self._claim.join()
        if self._skipped:
            return
        self._wait_until_stopped()
        if self.platform.observe(self.job).state in ("queued", "starting", "running"):
            return  # adopted
        if self._proof(self.run)[0] is None:  # asked last: a job that was just running may have proven it
            self.platform.launch(self.job)

    def poll(self) -> Verdict:
        if self._claim.renew() and self.name != "train":
            self.platform.cancel(self.job)  # the trainer reads the claim itself, other jobs do not
        if self._skipped:
            self._verdict = Verdict("done", "complete", reason=f"{self.name} is switched off in the spec")
            return self._verdict
        seen = self.platform.observe(self.job)
        proven, why = False, ""
        if seen.state in ("over", "absent"):
            value, why = self._proof(self.run)
            proven = value is not None
        self._verdict = judge(self.name, seen, self._status(), proven, why)
        return self._verdict

    @reported
    def collect(self) -> StageResult:
        verdict = self._verdict or self.poll()
        if not verdict.done:
            raise ElasticTPUError(f"{self.name} is not over ({verdict.phase})")
        if verdict.outcome != "complete":
            raise error_of(verdict)
        if self._skipped:
            return StageResult(self.name, verdict.reason)
        value, why = self._proof(self.run)
        if value is None:
            raise ElasticTPUError(f"{self.name} was proven and is not any more: {why}")
        result = RESULTS[self.name](self.run, value)
        if self.name == last_stage(self.run):
            self._claim.done()
        return result

    def cancel(self, grace: float, by: str = "", now: bool = False) -> None:
        self._claim.stop(grace, by)
        if now or self.name != "train" or self.platform.observe(self.job).state == "queued":
            self.platform.cancel(self.job, now)  # no trainer is there that would read the stop

    @property
    def uri(self) -> str | None:
        return self.run.uri

    @property
    def term(self) -> int | None:
        return self._claim.term

    @property
    def _skipped(self) -> bool:
        return (self.name == "export" and not self.run.spec.export) or (
            self.name == "evaluate" and not self.run.spec.evaluate
        )

    def _status(self) -> Any:
        from ..runs import run as names
        from ..runs.status import load_status

        return load_status(self.run.read(names.STATUS)) if self.name == "train" else None

    def _wait_until_stopped(self) -> None:
        """A trainer that obeys a stop already cannot be adopted: wait until it is over."""
        deadline = time.monotonic() + _STOP_WAIT
        told = False
        while True:
            status = self._status()
            if status is None or status.phase not in ("stopping", "ended"):
                return
            if self.platform.observe(self.job).state not in ("starting", "running"):
                return
            if time.monotonic() > deadline:
                raise Infrastructure(f"the trainer was told to stop and has not ended for {_STOP_WAIT:.0f} s")
            if not told:
                told = True
                self._tell("waiting for the trainer, which was told to stop and is ending")
            self._claim.renew()
            time.sleep(self.interval)


class SliceStage:
    """Takes the slices of a run, or gives them back."""

    def __init__(
        self, step: SliceStep, run: Run, platform: Platform, claim: StageClaim, tell: Callable[[str], None]
    ) -> None:
        self.run, self.platform, self._claim, self._tell = run, platform, claim, tell
        self.interval = _interval(run)
        self.name = step.name
        self._since = time.monotonic()
        self._verdict: Verdict | None = None
        self._report: Any = None
        self._refused: str | None = None

    def submit(self) -> None:
        if self.name == "release":
            self._submit_release()
            return
        self._claim.take()
        if self._needless:
            return
        if self.platform.slices().state == "failed":
            self._tell("waiting until what is left of the slices before is gone")
        self.platform.acquire()

    def _submit_release(self) -> None:
        try:
            self._claim.require_may_act()
        except HeldByAnother as error:
            self._refused = str(error)  # an exit handler runs even when its provision was refused
            return
        # A launcher that was lost during an export is followed by one that passes here again: its job is adopted.
        goes_on = self._claim.is_held() and not nothing_left_to_do(self.run)
        if self._holds_any():
            self._tell("giving the slices back")
        self._report = self.platform.release(jobs=not goes_on)

    def _holds_any(self) -> bool:
        try:
            return self.platform.slices().state not in ("absent", "released")
        except Infrastructure:
            return True  # it does not answer; the release will see to it

    def poll(self) -> Verdict:
        self._verdict = self._poll_release() if self.name == "release" else self._poll_provision()
        return self._verdict

    def _poll_release(self) -> Verdict:
        if self._refused is not None:
            return Verdict("done", "superseded", code=ExitCode.HELD_BY_ANOTHER, reason=self._refused)
        report = self._report
        if report is None or report.left:
            left = ", ".join(report.left) if report else "everything"
            return Verdict("done", "failed", "relaunch", ExitCode.INFRASTRUCTURE, f"not released: {left}")
        return Verdict("done", "complete", evidence=asdict(report))

    def _poll_provision(self) -> Verdict:
        if self._claim.renew():
            reason = f"stop asked for by {self._claim.stopped_by} while slices were taken"
            return Verdict("done", "cancelled", code=ExitCode.ENDED_ON_REQUEST, reason=reason)
        if self._needless:
            return Verdict("done", "complete", reason="training is complete already; no slices are needed")
        seen = self.platform.slices()
        evidence = asdict(seen)
        if seen.state == "ready" or (seen.state == "partly" and seen.ready >= self.run.spec.slices.minimum):
            return Verdict("done", "complete", evidence=evidence, reason=seen.detail)
        if seen.state in ("requested", "partly"):
            limit = self.run.spec.limits.start
            if time.monotonic() - self._since > limit:
                reason = f"limits.start ({limit:.0f} s) is spent: {seen.detail}"
                return Verdict("done", "failed", "user", ExitCode.LIMIT_SPENT, reason, evidence)
            return Verdict("starting", reason=seen.detail, evidence=evidence)
        return Verdict("done", "failed", "relaunch", ExitCode.INFRASTRUCTURE, seen.detail or "no slices", evidence)

    @reported
    def collect(self) -> StageResult:
        verdict = self._verdict or self.poll()
        if verdict.outcome != "complete":
            raise error_of(verdict)
        if self.name == "release":
            return self._collect_release()
        wanted = self.run.spec.slices.count
        summary = verdict.reason or f"{wanted} slices ready"
        return StageResult("provision", summary, {"run": self.run.uri, "slices": wanted})

    def _collect_release(self) -> StageResult:
        if nothing_left_to_do(self.run):
            self._claim.done()
        report, wanted = self._report, self.run.spec.slices.count
        released = sum(1 for name in report.deleted if name.startswith("slice"))
        gone = f"slices released: {released} of {wanted}" if released else "slices released: none were held"
        return StageResult("release", gone, {"run": self.run.uri, **asdict(report)})

    def cancel(self, grace: float, by: str = "", now: bool = False) -> None:
        del now  # nothing runs yet that could save
        if self.name == "release":
            return  # giving back is what a cancel would ask for
        self._claim.stop(grace, by)

    @property
    def uri(self) -> str | None:
        return self.run.uri

    @property
    def term(self) -> int | None:
        return self._claim.term

    @property
    def _needless(self) -> bool:
        from ..runs.result import proven_result, read_result

        return read_result(self.run) is not None and proven_result(self.run)[0] is not None


class NothingStarted:
    """A stage of a run that was never started: there is nothing to release."""

    interval = 0.5
    term = None
    uri = None

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(self) -> None:
        """Nothing."""

    def poll(self) -> Verdict:
        """Done at once."""
        return Verdict("done", "complete", reason="no run was started; nothing to do")

    def collect(self) -> StageResult:
        """Nothing was there."""
        return StageResult(self.name, "no run was started; nothing to do")

    def cancel(self, grace: float, by: str = "", now: bool = False) -> None:
        """Nothing."""


def error_of(verdict: Verdict) -> ElasticTPUError:
    """The error that a verdict stands for."""
    kinds: dict[int, type[ElasticTPUError]] = {
        ExitCode.GATE_FAILED: GateFailed,
        ExitCode.HELD_BY_ANOTHER: HeldByAnother,
        ExitCode.INFRASTRUCTURE: Infrastructure,
        ExitCode.ENDED_ON_REQUEST: EndedOnRequest,
        ExitCode.LIMIT_SPENT: LimitSpent,
    }
    error = kinds.get(verdict.code, ElasticTPUError)(verdict.reason or verdict.outcome)
    error.code = ExitCode(verdict.code) if verdict.code in set(ExitCode) else ExitCode.BUG
    return error
