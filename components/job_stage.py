"""A stage that is a job in the trainer image: launched or adopted, over when its proof holds.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..runs.errors import ElasticTPUError, Infrastructure
from ..runs.verdict import Verdict, judge
from .claimed import StageClaim
from .outcomes import PROOFS, RESULTS, StageResult, error_of, interval_of, last_stage
from .patience import patient
from .reported import reported

if TYPE_CHECKING:
    from ..platforms.base import Job, Platform
    from ..runs.run import Run
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

    def submit(self) -> None:
        self._claim.take(first=False) if self.step.claim == "take" else self._claim.join()
        if self._skipped:
            return
        self._wait_until_stopped()
        if self.platform.observe(self.job).state in ("queued", "starting", "running"):
            return  # adopted
        if self._proof(self.run)[0] is None:  # asked last: a job that was just running may have proven it
            self.platform.launch(self.job)

    @patient
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

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        if grace and self.step.claim == "join":
            return False  # a drained step: its CPU job goes on, and the step that follows adopts it
        self._claim.stop(grace, by)
        if now or self.name != "train" or self.platform.observe(self.job).state == "queued":
            self.platform.cancel(self.job, now)  # no trainer is there that would read the stop
        return True

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
