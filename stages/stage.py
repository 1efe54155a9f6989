"""The protocol of a pipeline step, and its two kinds; the same for every orchestrator.

    stage = open_stage(STEP, run="gs://bucket/runs/r", holder="my-dag/2026-01-01")
    stage.submit()                      # create or adopt
    while not (verdict := stage.poll()).done:
        wait(stage.interval)
    result = stage.collect()            # positive proof, or an error that says who must act

A `JobStage` starts a job and is complete when its proof holds. A `SliceStage` takes slices or gives them back. Who
drives the run is decided by its claim (docs/contracts.md 4): a stage whose claim is refused changes nothing.
Importing this loads the standard library only: a scheduler imports it every few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from ..runs.judge.verdict import Verdict
from .results import StageResult


@dataclass(frozen=True)
class JobStep:
    """Declares a job in the trainer image.

    Attributes:
      slices: whether it runs on the run's slices, or on CPU only.
      claim: take = it may become the driver of the run; join = it goes on in its holder's term.
    """

    name: Literal["train", "export", "evaluate"]
    slices: bool
    claim: Literal["take", "join"]

    @property
    def argv(self) -> tuple[str, ...]:
        """Arguments of the trainer's command, without the run."""
        return (self.name,)


@dataclass(frozen=True)
class SliceStep:
    """Declares what takes the slices of a run, or gives them back.

    Attributes:
      last: of a release: no stage of the pipeline follows, whatever the stages before came to, so it gives the claim up
        as well, unless an export or evaluation still runs. A retry or another pipeline takes the run from there.
    """

    name: Literal["provision", "release"]
    last: bool = False


Step = JobStep | SliceStep


class Stage(Protocol):
    """One step of a pipeline on one run, as an adapter drives it.

    Every method is safe to repeat, from any process: what is there is adopted, what is done is left. Every method but
    `poll` may raise `Unreachable` while the storage or the cluster does not answer: nothing is known then, call again.

    Attributes:
      interval: seconds to wait between two calls of `poll`.
    """

    @property
    def name(self) -> str:
        """The step's name."""

    interval: float

    @property
    def uri(self) -> str | None:
        """URI of the run, by which another process goes on with this stage; None if no run was started."""

    @property
    def spec_hash(self) -> str:
        """Hash of the run's spec, by which that process knows that it is the same one; empty if no run was started."""

    def submit(self) -> None:
        """Create the job or ask for the slices, or adopt what is there; a release gives all back before it returns.

        Raises:
          HeldByAnother: somebody else drives the run; nothing was changed. A release does not raise this: its `poll`
            says so.
          EndedOnRequest: the run is being stopped; nothing was started.
          NotFound: an export or evaluation of a run that nobody has driven yet.
          BadInput: the platform refuses what the spec asks for.
          Infrastructure: the platform failed; calling again may succeed.
        """

    def poll(self) -> Verdict:
        """One look: renew the claim, observe, judge.

        While the storage or the cluster does not answer, the verdict says that this is waited for. Two things are
        changed in the cluster: stuck pods of the job are freed, and a job that cannot read the stop that was asked for
        is ended.

        Raises:
          EndedOnRequest: another process drives the run now; end without cancelling anything.
          BadInput: the platform refuses this process a look.
        """

    def progress(self) -> str:
        """The last look of `poll` as a line for people: of a training with step, loss, time to go and slices."""

    def collect(self) -> StageResult:
        """The result, once `poll` has said done. Writes report.html, and ends a job whose limit is spent.

        Raises:
          ElasticTPUError: the stage is not done, or did not succeed: then the error of the verdict (`error_of`).
        """

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        """Ask for a stop, if this stage's holder drives the run. Does not wait for it.

        Args:
          grace: seconds in which a take by the same holder undoes the stop; 0 for a person's.
          by: who asks, for people.
          now: end the job at once, with no time to save.

        Returns:
          Whether a stop was asked for: a release, and a drained export or evaluation, have nothing to stop.

        Raises:
          HeldByAnother, EndedOnRequest: another process drives the run; nothing was changed.
        """

    def give_up(self) -> None:
        """End a job whose limit is spent (`Verdict.limit`), if a new look says so too; other jobs stay."""

    @property
    def term(self) -> int | None:
        """The term of the claim in which the stage acts; None until it has taken or joined the claim."""
