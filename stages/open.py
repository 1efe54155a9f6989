"""Opens the stage of a step on a run, and starts the run where the step may do that.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..runs.judge.verdict import Verdict
from .results import StageResult
from .stage import SliceStep, Stage, Step
from .stage_claim import StageClaim

if TYPE_CHECKING:
    from ..runs.record.run import Run


def start_or_open_with_login(source: str, holder: str, *, person: bool = False) -> Run:
    """`start_or_open` for every caller outside `runs`: without a login to the spec's platform nothing is started.

    Raises:
      BadInput: of `start_or_open`; or there is no login.
      Unreachable: what gives the login does not answer.
    """
    from ..platforms.open import require_login
    from ..runs.record.start import start_or_open

    return start_or_open(source, holder, require_login, person=person)


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
    """The stage of a step. Every step but release starts the run of a spec that was not started yet.

    Args:
      run: URI of the run directory, or of a spec, whose name is expanded once per holder.
      holder: the orchestrator's run; the same for every stage of one pipeline run.
      instance: tells two processes of one holder apart: pod uid, try number, or ``pid:start time`` (the default).
      take_over: take the claim even if another holder renews it.
      term: for release: act only in this term, which an earlier stage of this process had.
      tell: called with a line before something that may take long.

    Raises:
      BadInput, Unreachable: the run cannot be started or opened, or the platform refuses this process.
    """
    from ..platforms.open import open_platform
    from ..runs.record.claim import this_instance
    from ..runs.record.driver import Driver
    from ..runs.record.events import EventLog
    from ..runs.record.start import find_run

    opened = find_run(run, holder) if step.name == "release" else start_or_open_with_login(run, holder)
    if opened is None:
        return NothingStarted(step.name)
    seconds = opened.spec.traits.claim_seconds
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
    """The release of a run that was never started."""

    interval = 0.5
    term = None
    uri = None

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(self) -> None:
        """Do nothing."""

    def poll(self) -> Verdict:
        """The stage is complete at once."""
        return Verdict("done", "complete", reason="no run was started; nothing to do")

    def collect(self) -> StageResult:
        """The result says that nothing was started."""
        return StageResult(self.name, "no run was started; nothing to do")

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        """Do nothing; no stop was asked for."""
        return False

    def give_up(self) -> None:
        """Do nothing."""
