"""Opens the stage of a step on a run.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runs.judge.verdict import Verdict
from .results import StageResult
from .stage import SliceStep, Stage, Step
from .stage_claim import StageClaim


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
    from ..platforms.open import open_platform, require_login
    from ..runs.record.claim import this_instance
    from ..runs.record.driver import Driver
    from ..runs.record.events import EventLog
    from ..runs.record.start import find_run, start_run
    from ..runs.spec.load import read_spec

    starts = step.name != "release" and run.endswith((".yaml", ".yml"))
    if starts:
        require_login(read_spec(run))
    opened = start_run(run, holder) if starts else find_run(run, holder)
    if opened is None:
        return NothingStarted(step.name)
    seconds = opened.spec.local.unclaimed if opened.spec.platform == "local" else 600.0
    who = instance or this_instance()
    driver = Driver(opened.store, holder, who, seconds, term=term, on_event=EventLog(opened.store, "stage").hook)
    claimed = StageClaim(driver, opened.store, (holder, who), seconds, take_over)
    platform = open_platform(opened)
    from .job_stage import JobStage
    from .slice_stage import SliceStage

    if isinstance(step, SliceStep):
        return SliceStage(step, opened, platform, claimed, tell)
    return JobStage(step, opened, platform, claimed, tell)


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

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        """Nothing."""
        return False

    def give_up(self) -> None:
        """Nothing."""
