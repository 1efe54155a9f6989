"""A stage that is a job in the trainer image: launched or adopted, over when its proof holds.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..runs.errors import ElasticTPUError, EndedOnRequest, ExitCode, Infrastructure
from ..runs.judge.verdict import Observation, Verdict, judge
from .report_hook import reported
from .results import PROOFS, RESULTS, StageResult, error_of, interval_of, last_stage
from .retry import patient
from .stage_claim import StageClaim

if TYPE_CHECKING:
    from ..platforms.base import Job, Platform
    from ..runs.record.run import Run
    from ..runs.record.status import Status
    from .stage import JobStep

_STOP_WAIT = 600.0  # seconds a submit waits for a trainer that was told to stop


class JobStage:
    """A job in the trainer image and the file that proves it."""

    def __init__(
        self, step: JobStep, run: Run, platform: Platform, claim: StageClaim, tell: Callable[[str], None]
    ) -> None:
        self.run, self.platform, self._claim, self._tell = run, platform, claim, tell
        self.interval = interval_of(run)
        from ..platforms.base import Job

        self.step, self.name = step, step.name
        self.job: Job = Job(step.name, (*step.argv, "--run", run.uri), step.slices)
        self._proof = PROOFS[step.name]
        self._verdict: Verdict | None = None
        self._told = ""

    def submit(self) -> None:
        self._claim.take(first=False) if self.step.claim == "take" else self._claim.join()
        if self._skipped:
            return
        self._wait_until_stopped()
        lives = self.platform.observe(self.job).state in ("queued", "starting", "running", "suspended")
        # The proof is asked for last: a job that was just running may have proven it.
        if lives or self._proof(self.run)[0] is None:
            self.platform.launch(self.job, self._waiting)  # adopts what lives, if it is of this spec

    @patient
    def poll(self) -> Verdict:
        stopped = self._claim.renew()
        if self._skipped:
            self._verdict = Verdict("done", "complete", reason=f"{self.name} is switched off in the spec")
            return self._verdict
        seen = self.platform.observe(self.job)
        if stopped and seen.state not in ("over", "absent") and self._is_deaf(seen):
            self.platform.cancel(self.job)
        proven, why = False, ""
        if seen.state in ("over", "absent"):
            value, why = self._proof(self.run)
            proven = value is not None
        status = self._status()
        verdict = judge(self.name, seen, status, proven, why)
        if stopped and verdict.act == "relaunch" and seen.exit_code is None:
            # Taken away as was asked for: nobody is to begin anew because nobody saw how it ended.
            reason = f"stop asked for by {self._claim.stopped_by}; {verdict.reason}"
            verdict = Verdict("done", "cancelled", "none", ExitCode.ENDED_ON_REQUEST, reason, seen.evidence)
        self._verdict = verdict if verdict.done else self._limited(seen, status) or verdict
        return self._verdict

    @reported
    def collect(self) -> StageResult:
        verdict = self._verdict or self.poll()
        if not verdict.done:
            raise ElasticTPUError(f"{self.name} is not over ({verdict.phase})")
        if verdict.outcome != "complete":
            if "limit" in verdict.evidence:
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
            return False  # a drained step: its CPU job goes on, and the step that follows adopts it
        self._claim.stop(grace, by)
        # A drained step keeps its place in the queue: whoever follows it takes over, or its trainer obeys the stop.
        if now or (not grace and self._is_deaf(self.platform.observe(self.job))):
            self.platform.cancel(self.job, now)
        return True

    def _is_deaf(self, seen: Observation) -> bool:
        """Whether nothing is there that would read the stop: the trainer reads the claim itself, other jobs do not."""
        absent = seen.state == "starting" and not seen.evidence.get("trainer_lives", True)
        return self.name != "train" or seen.state in ("queued", "suspended") or absent

    def give_up(self) -> None:
        if "limit" in self.poll().evidence:  # renews the claim first: the job may be somebody else's by now
            self.platform.cancel(self.job)

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

    def _limited(self, seen: Observation, status: Status | None) -> Verdict | None:
        """The verdict on a job that has waited for too long; on the local platform the trainer's own limits count."""
        if self.run.spec.platform == "local":
            return None
        from ..runs.judge.launch_limits import spent

        at = seen.evidence.get("seen_at")  # by the cluster's clock: this one's may be off
        now = datetime.fromisoformat(at) if at else datetime.now(UTC)
        limit = spent(seen, status, self.run.spec.limits, now, trains=self.name == "train")
        if limit is None:
            return None
        evidence = {**seen.evidence, "limit": limit.limit}
        return Verdict("done", "failed", "user", ExitCode.LIMIT_SPENT, limit.reason, evidence)

    def _status(self) -> Status | None:
        from ..runs.record import paths
        from ..runs.record.status import load_status

        return load_status(self.run.read(paths.STATUS)) if self.name == "train" else None

    def _waiting(self, what: str) -> None:
        """While the job before this one goes: keep the claim, and begin nothing for a run that is being stopped."""
        if what != self._told:
            self._told = what
            self._tell(what)
        if self._claim.renew():
            raise EndedOnRequest(f"stop asked for by {self._claim.stopped_by}; nothing more is started")

    def _wait_until_stopped(self) -> None:
        """A trainer that obeys a stop already cannot be adopted: wait until it is over."""
        deadline = time.monotonic() + _STOP_WAIT
        told = False
        while True:
            status = self._status()
            if status is None or status.phase not in ("stopping", "ended"):
                return
            seen = self.platform.observe(self.job)
            if seen.state not in ("starting", "running") or not seen.evidence.get("trainer_lives", True):
                return  # no trainer, or a new one: the words are those of one before
            if time.monotonic() > deadline:
                raise Infrastructure(f"the trainer was told to stop and has not ended for {_STOP_WAIT:.0f} s")
            if not told:
                told = True
                self._tell("waiting for the trainer, which was told to stop and is ending")
            self._claim.renew()
            time.sleep(self.interval)
