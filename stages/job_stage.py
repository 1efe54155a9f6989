"""A stage that is a job in the trainer image: launched or adopted, complete when its proof holds.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..runs.errors import ElasticTPUError, EndedOnRequest, ExitCode, Infrastructure
from ..runs.judge.verdict import Observation, Verdict, judge
from ..runs.units import show_duration
from .progress import progress_text
from .report_hook import reported, write_report
from .results import PROOFS, RESULTS, StageResult, error_of, last_stage
from .retry import waits_for_answer
from .stage_claim import StageClaim
from .told import Told

if TYPE_CHECKING:
    from ..platforms.base import Job, Platform
    from ..runs.record.run import Run
    from ..runs.record.status import Status
    from .stage import JobStep

_REPORT_EVERY = 15.0  # seconds, at least, between two reports of a job that goes on
_STOP_WAIT = 600.0  # seconds a submit waits for a trainer that was told to stop


class JobStage:
    """A job in the trainer image, and the file that proves it. What its methods promise: see `Stage`."""

    def __init__(
        self, step: JobStep, run: Run, platform: Platform, claim: StageClaim, tell: Callable[[str], None]
    ) -> None:
        self.run, self.platform, self._claim, self._tell = run, platform, claim, tell
        self.interval = run.spec.traits.look_interval
        from ..platforms.base import Job

        self.step, self.name = step, step.name
        self.job: Job = Job(step.name, (*step.argv, "--run", run.uri), step.slices)
        self._proof = PROOFS[step.name]
        self._job_told = Told(run, step.name)
        self._verdict: Verdict | None = None
        self._told = ""
        self._in_report = (1, 0, -1)  # attempt, recoveries of it and newest proven step that the report tells of
        self._next_report = float("-inf")  # monotonic seconds

    def submit(self) -> None:
        if self.step.claim == "take":
            if self._proof(self.run)[0] is None:
                self.platform.check()
            self._claim.take(first=False)
        else:
            self._claim.join(again=not self._skipped and self._proof(self.run)[0] is None)
        if self._skipped:
            return
        self._wait_until_stopped()
        lives = self._look().state in ("queued", "starting", "running", "suspended")
        # After the look: a job that has just ended may have written its proof since.
        if lives or self._proof(self.run)[0] is None:
            if not lives:
                self._job_told.hide()
            if self.job.slices and not lives:
                self._take_slices()
            self.platform.launch(self.job, self._waiting)  # adopts a living job of the same spec

    def _take_slices(self) -> None:
        """Take slices that a release, or the death of what held them, took away: train may be run again alone."""
        if self.platform.slices().state in ("absent", "released", "failed"):
            self._tell("there are no slices now: taking them again")
            self.platform.acquire()

    @waits_for_answer
    def poll(self) -> Verdict:
        stopped = self._claim.renew()
        if self._skipped:
            self._verdict = Verdict("done", "complete", reason=f"{self.name} is switched off in the spec")
            return self._verdict
        seen = self._look()
        if stopped and seen.state not in ("over", "absent") and self._ignores_stop(seen):
            self.platform.cancel(self.job)
        proven, why = False, ""
        if seen.state in ("over", "absent"):
            value, why = self._proof(self.run)
            proven = value is not None
        status = self._job_told.read()
        if status is not None:
            self._report(status)
        verdict = judge(self.name, seen, status, proven, why)
        if stopped and verdict.act == "relaunch" and seen.exit_code is None:
            # Do not restart: the exit was not observed, so the stop may have been obeyed.
            reason = f"stop asked for by {self._claim.stopped_by}; {verdict.reason}"
            verdict = Verdict.ended(ExitCode.ENDED_ON_REQUEST, reason, seen.evidence)
        if not verdict.done:
            reason = "; ".join(text for text in (verdict.reason, self._claim.unrenewed) if text)
            verdict = self._limited(seen, status) or replace(verdict, reason=reason)
        self._verdict = verdict
        return self._verdict

    def progress(self) -> str:
        told, verdict = self._job_told, self._verdict or Verdict("starting")
        return progress_text(self.name, told.shown(verdict), told.status, told.progress)

    @reported
    def collect(self) -> StageResult:
        verdict = self._verdict or self.poll()
        if not verdict.done:
            raise ElasticTPUError(f"{self.name} is not over ({verdict.phase})")
        if verdict.outcome != "complete":
            if verdict.limit:
                self.give_up()
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

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        if grace and self.step.claim == "join":
            return False  # a drained step: its CPU job goes on, and the step's next process adopts it
        self._claim.stop(grace, by)
        # With a grace the job keeps its place in the queue: the step's next process undoes the stop, or a trainer that
        # starts obeys it.
        if now or (not grace and self._ignores_stop(self.platform.observe(self.job))):
            self.platform.cancel(self.job, now)
        return True

    def _ignores_stop(self, seen: Observation) -> bool:
        """Whether no process reads the stop in the claim: only a trainer does, and there may be none yet."""
        no_trainer = seen.state == "starting" and not seen.trainer_lives
        return self.name != "train" or seen.state in ("queued", "suspended") or no_trainer

    def give_up(self) -> None:
        if self.poll().limit:  # renews the claim first: another process may drive the run by now
            self.platform.cancel(self.job)

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
    def _skipped(self) -> bool:
        return (self.name == "export" and not self.run.spec.export) or (
            self.name == "evaluate" and not self.run.spec.evaluate
        )

    def _report(self, status: Status) -> None:
        """Write the report anew at each recovery and proven checkpoint, in at most a fiftieth of the time.

        It reads every event of the run, which takes long in a bucket after weeks.
        """
        news = (status.attempt, status.recovery, -1 if status.proven_step is None else status.proven_step)
        began = time.monotonic()
        if news > self._in_report and began >= self._next_report:
            self._in_report = news
            write_report(self)
            took = time.monotonic() - began
            self._next_report = began + max(_REPORT_EVERY, 50 * took)

    def _look(self) -> Observation:
        """Observe the job, and free its stuck pods if it has any: nothing else does while the run goes on."""
        seen = self.platform.observe(self.job)
        if seen.stuck:
            self.platform.free_stuck_pods(self.job)
        return seen

    def _limited(self, seen: Observation, status: Status | None) -> Verdict | None:
        """The verdict on a job whose limit before the first step is spent, where the launcher counts those limits."""
        if not self.run.spec.traits.launcher_limits:
            return None
        from ..runs.judge.launch_limits import spent_limit

        now = seen.seen_at or datetime.now(UTC)
        spent = spent_limit(seen, status, self.run.spec.limits, now, trains=self.name == "train")
        if spent is None:
            return None
        return Verdict.ended(ExitCode.LIMIT_SPENT, spent.reason, seen.evidence, limit=spent.field)

    def _waiting(self, what: str) -> None:
        """Called while what is left of an earlier job is removed: keep the claim, and end if a stop was asked for."""
        if what != self._told:
            self._told = what
            self._tell(what)
        if self._claim.renew():
            raise EndedOnRequest(f"stop asked for by {self._claim.stopped_by}; nothing more is started")

    def _wait_until_stopped(self) -> None:
        """Wait until a trainer that is ending has ended: it cannot be adopted."""
        deadline = time.monotonic() + _STOP_WAIT
        told = False
        while True:
            status = self._job_told.read()
            if status is None or status.phase not in ("stopping", "ended"):
                return
            seen = self._look()
            if seen.state not in ("starting", "running") or not seen.trainer_lives:
                return  # status.json is an earlier trainer's
            if time.monotonic() > deadline:
                raise Infrastructure(f"the trainer was told to stop and has not ended for {show_duration(_STOP_WAIT)}")
            if not told:
                told = True
                self._tell("waiting for the trainer, which was told to stop and is ending")
            self._claim.renew()
            time.sleep(self.interval)
