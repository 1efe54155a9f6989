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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ..runs.verdict import Verdict
from .claimed import StageClaim
from .outcomes import StageResult

__all__ = [
    "JobStep",
    "NothingStarted",
    "SliceStep",
    "Stage",
    "StageResult",
    "Step",
    "open_stage",
]


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

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        """Stop what the stage is for, if the run is mine; a take by the same holder in `grace` seconds undoes it.

        With `now` the job gets no time to save. Returns whether a stop was asked for: some have nothing to stop.
        """

    def give_up(self) -> None:
        """End a job that a limit of the spec has ended, if that still stands: nobody waits for it any more."""

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
    from ..platforms.base import open_platform, require_login
    from ..runs.claim import this_instance
    from ..runs.driver import Driver
    from ..runs.events import EventLog
    from ..runs.load import read_spec
    from ..runs.run import find_run, start_run

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
