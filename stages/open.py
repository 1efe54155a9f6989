"""Opens the stage of a step on a run, and starts the run where the step may do that.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..runs.errors import BadInput
from ..runs.judge.verdict import Verdict
from .allowed import refuse_local
from .results import StageResult
from .stage import SliceStep, Stage, Step
from .stage_claim import StageClaim

if TYPE_CHECKING:
    from datetime import datetime

    from ..runs.record.run import Run
    from ..runs.spec.run_spec import RunSpec


def start_or_open_with_login(
    source: str,
    holder: str,
    *,
    person: bool = False,
    allow_local: bool = False,
    moved: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    when: datetime | None = None,
) -> Run:
    """`start_or_open` for every caller outside `runs`: without login or rights on the platform nothing is started.

    Args:
      allow_local: as for `open_stage`.
      moved: a person says that the run's directory was moved here for good.
      tell: as for `start_or_open`.
      when: the logical date of the orchestrator's run, if it has one: `{date}` in a run's name.

    Raises:
      BadInput: of `start_or_open`; or there is no login; or the spec wants what is not allowed; or the platform would
        refuse a new run.
      Unreachable: the platform, or what gives the login, does not answer.
    """
    from ..platforms.open import require_login, require_rights
    from ..runs.record.start import start_or_open

    def login(spec: RunSpec) -> None:
        if not allow_local:
            refuse_local(spec)
        require_login(spec, allow_local)

    def admit(spec: RunSpec) -> None:
        require_rights(spec, allow_local)

    return start_or_open(source, holder, login, admit, person=person, moved=moved, tell=tell, when=when)


def open_stage(
    step: Step,
    run: str,
    holder: str,
    instance: str | None = None,
    *,
    take_over: bool = False,
    term: int | None = None,
    allow_local: bool = False,
    spec_hash: str = "",
    when: datetime | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Stage:
    """The stage of a step. Every step but release starts the run of a spec that was not started yet.

    Args:
      run: URI of the run directory, or of a spec, whose name is expanded once per holder.
      holder: the orchestrator's run; the same for every stage of one pipeline run.
      instance: tells two processes of one holder apart: pod uid, try number, or ``pid:start time`` (the default).
      take_over: take the claim even if another holder renews it.
      term: for release: act only in this term, which an earlier stage of this process had.
      allow_local: the spec may have programs run on this machine: platform `local`, `local.trainer`, and, if it has
        been looked at (`spec_hash`), the kubeconfig that it names. For who runs a command here and for a pipeline's
        author to say, not for who triggers it.
      spec_hash: of the run that the pipeline started with, or a person agreed to; empty if this is the first look.
      when: as for `start_or_open_with_login`.
      tell: called with a line before something that may take long.

    Raises:
      BadInput, Unreachable: the run cannot be started or opened, its spec is another one or wants what is not allowed,
        or the platform refuses this process.
    """
    from ..platforms.open import open_platform
    from ..runs.record.claim import this_instance
    from ..runs.record.driver import Driver
    from ..runs.record.events import EventLog
    from ..runs.record.start import find_run

    opened = (
        find_run(run, holder)
        if step.name == "release"
        else start_or_open_with_login(run, holder, allow_local=allow_local, tell=tell, when=when)
    )
    if opened is None:
        return NothingStarted(step.name)
    require_pinned(opened, spec_hash)
    if not allow_local:
        refuse_local(opened.spec)
    opened = replace(opened, own=allow_local and (opened.own or bool(spec_hash)))
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


def require_pinned(run: Run, spec_hash: str) -> None:
    """Check that a run has the spec that a pipeline started with.

    Raises:
      BadInput: it has another one; both hashes are named.
    """
    if spec_hash and run.spec_hash != spec_hash:
        raise BadInput(
            f"{run.path('spec.yaml')}: has the hash {run.spec_hash}, this pipeline started with {spec_hash}: it was "
            "changed meanwhile; put it back as it was, or start the pipeline again"
        )


class NothingStarted:
    """The release of a run that was never started."""

    interval = 0.5
    term = None
    uri = None
    spec_hash = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(self) -> None:
        """Do nothing."""

    def poll(self) -> Verdict:
        """The stage is complete at once."""
        return Verdict("done", "complete", reason="no run was started; nothing to do")

    def progress(self) -> str:
        """There is nothing to do."""
        return f"{self.name}: no run was started"

    def collect(self) -> StageResult:
        """The result says that nothing was started."""
        return StageResult(self.name, "no run was started; nothing to do")

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        """Do nothing; no stop was asked for."""
        return False

    def give_up(self) -> None:
        """Do nothing."""
