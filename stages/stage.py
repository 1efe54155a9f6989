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

from dataclasses import dataclass
from typing import Literal, Protocol

from ..runs.judge.verdict import Verdict
from .results import StageResult


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
