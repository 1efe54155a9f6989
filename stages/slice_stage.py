"""A stage that takes the slices of a run, or gives them back.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..runs.errors import ElasticTPUError, ExitCode, HeldByAnother
from ..runs.judge.verdict import Verdict
from ..runs.units import format_duration
from .progress import progress_text
from .report_hook import reported
from .results import StageResult, error_of, nothing_left_to_do
from .retry import waits_for_answer
from .stage_claim import StageClaim

if TYPE_CHECKING:
    from ..platforms.base import Platform
    from ..runs.record.run import Run
    from .stage import SliceStep


_QUIET = 2.0  # seconds of waiting before a person is told what for
_BETWEEN_LOOKS = 1.0  # seconds between two looks at the claim while a release waits


class SliceStage:
    """Takes the slices of a run, or gives them back. What its methods promise: see `Stage`."""

    def __init__(
        self, step: SliceStep, run: Run, platform: Platform, claim: StageClaim, tell: Callable[[str], None]
    ) -> None:
        self.run, self.platform, self._claim, self._tell = run, platform, claim, tell
        self.interval = run.spec.traits.look_interval
        self.name, self._last = step.name, step.last
        self._since = time.monotonic()
        self._asked: datetime | None = None
        self._looked, self._told = 0.0, ""
        self._verdict: Verdict | None = None
        self._report: Any = None
        self._refused: str | None = None

    def submit(self) -> None:
        if self.name == "release":
            self._submit_release()
            return
        if not self._needless:
            self.platform.check()
        self._claim.take()
        if self._needless:
            return
        if self._some_left():
            self._tell("waiting until what is left of the slices before is gone")
        self.platform.acquire()

    def _submit_release(self) -> None:
        try:
            self._claim.require_may_act()
        except HeldByAnother as error:
            self._refused = str(error)  # not raised: an exit handler runs also when its provision was refused
            return
        # A launcher that goes on with a run passes here again; the CPU job of its predecessor must go on.
        goes_on = self._claim.is_held() and not nothing_left_to_do(self.run)
        if self._holds_any():
            self._tell("giving the slices back")
        self._report = self.platform.release(not goes_on, self._waiting)

    def _waiting(self, what: str) -> None:
        """Called while what was deleted is still there: keep the claim if it is mine, and tell what is waited for."""
        now = time.monotonic()
        if now - self._since < _QUIET or now - self._looked < _BETWEEN_LOOKS:
            return
        self._looked = now
        if what != self._told:
            self._told = what
            self._tell(what)
        self._claim.keep()

    def _some_left(self) -> bool:
        try:
            return self.platform.slices().state == "failed"
        except ElasticTPUError:
            return False  # `acquire` raises all that is in the way

    def _holds_any(self) -> bool:
        try:
            return self.platform.slices().state not in ("absent", "released")
        except ElasticTPUError:
            return True  # unknown: `release` finds out

    @waits_for_answer
    def poll(self) -> Verdict:
        self._verdict = self._poll_release() if self.name == "release" else self._poll_provision()
        return self._verdict

    def _poll_release(self) -> Verdict:
        if self._refused is not None:
            return Verdict.ended(ExitCode.HELD_BY_ANOTHER, self._refused)
        report = self._report
        if report is None or report.left:
            left = ", ".join(report.left) if report else "everything"
            return Verdict.ended(ExitCode.INFRASTRUCTURE, f"not released: {left}")
        return Verdict("done", "complete", evidence=asdict(report))

    def _poll_provision(self) -> Verdict:
        if self._claim.renew():
            reason = f"stop asked for by {self._claim.stopped_by} while slices were taken"
            return Verdict.ended(ExitCode.ENDED_ON_REQUEST, reason)
        if self._needless:
            return Verdict("done", "complete", reason="training is complete already; no slices are needed")
        seen = self.platform.slices()
        evidence = asdict(seen)
        if seen.state == "ready" or (seen.state == "partly" and seen.ready >= self.run.spec.slices.minimum):
            return Verdict("done", "complete", evidence=evidence, reason=seen.detail)
        if seen.state in ("requested", "partly"):
            if seen.with_job:  # queued, suspended or recovering: the train stage counts its limits
                return Verdict("done", "complete", evidence=evidence, reason=seen.detail or "the run's job is there")
            limit = self.run.spec.limits.start
            if self._waited() > limit:
                reason = f"limits.start ({format_duration(limit)}) is spent: {seen.detail}"
                return Verdict.ended(ExitCode.LIMIT_SPENT, reason, evidence, limit="limits.start")
            return Verdict("starting", reason=seen.detail, evidence=evidence)
        return Verdict.ended(ExitCode.INFRASTRUCTURE, seen.detail or "no slices", evidence)

    def _waited(self) -> float:
        """Seconds since any process asked for the slices; since this one looks, if they have been ready since then."""
        from ..runs.record.events import EventReader

        here = time.monotonic() - self._since
        if self._asked is None:
            events = EventReader(self.run.store).all()
            asked = max((e.time for e in events if e.kind == "slice.requested"), default=None)
            ready = max((e.time for e in events if e.kind == "slice.ready"), default=None)
            if asked is None or (ready is not None and ready > asked):
                return here
            self._asked = asked
        return max(here, (datetime.now(UTC) - self._asked).total_seconds())

    def progress(self) -> str:
        return progress_text(self.name, self._verdict or Verdict("starting"), None)

    @reported
    def collect(self) -> StageResult:
        verdict = self._verdict or self.poll()
        if not verdict.done:
            raise ElasticTPUError(f"{self.name} is not over ({verdict.phase}{verdict.reason and ', '}{verdict.reason})")
        if verdict.outcome != "complete":
            raise error_of(verdict)
        if self.name == "release":
            return self._collect_release()
        wanted = self.run.spec.slices.count
        summary = verdict.reason or f"{wanted} slices ready"
        return StageResult("provision", summary, {"run": self.run.uri, "slices": wanted})

    def _collect_release(self) -> StageResult:
        if nothing_left_to_do(self.run) or (self._last and not self._job_lives()):
            self._claim.done()
        report, wanted = self._report, self.run.spec.slices.count
        released = sum(1 for name in report.deleted if name.startswith("slice"))
        gone = f"slices released: {released} of {wanted}" if released else "slices released: none were held"
        return StageResult("release", gone, {"run": self.run.uri, **asdict(report)})

    def _job_lives(self) -> bool:
        """Whether an export or evaluation still runs: one that lost its step, which a rerun of the pipeline adopts."""
        from ..platforms.base import Job

        jobs = (Job(name, (), slices=False) for name in ("export", "evaluate"))
        return any(self.platform.observe(job).state not in ("over", "absent") for job in jobs)

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        del now  # nothing runs yet that could save
        if self.name == "release":
            return False  # a release does already what a cancel asks for
        self._claim.stop(grace, by)
        return True

    def give_up(self) -> None:
        """Nothing to end: a release gives the slices back."""

    @property
    def uri(self) -> str | None:
        return self.run.uri

    @property
    def spec_hash(self) -> str:
        return self.run.spec_hash

    @property
    def term(self) -> int | None:
        return self._claim.term

    @property
    def _needless(self) -> bool:
        from ..runs.record.result import proven_result, read_result

        return read_result(self.run) is not None and proven_result(self.run)[0] is not None
