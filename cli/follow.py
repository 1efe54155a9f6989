"""`elastic-tpu run`: drive the stages of a run from this terminal, and leave nothing behind."""

from __future__ import annotations

import time
import traceback
from contextlib import suppress

from ..runs import masking
from ..runs.errors import BadInput, ElasticTPUError, ExitCode, HeldByAnother, Unreachable
from ..runs.judge.verdict import Verdict
from ..runs.record.claim import read_claim
from ..runs.record.events import EventReader
from ..runs.record.result import read_result
from ..runs.record.run import Run, open_run
from ..runs.record.start import is_spec, this_person
from ..runs.record.status import read_status
from ..runs.spec import input_files
from ..runs.spec.load import read_spec
from ..runs.units import show_duration
from ..stages.open import open_stage, start_or_open_with_login
from ..stages.results import StageResult
from ..stages.retry import until_answered
from ..stages.stage import Stage, Step
from ..stages.steps import PROVISION, RELEASE_AT_END, STEPS, TRAIN
from ..stages.told import Told
from .display import Display, LastingConsole, make_display, say_aside
from .interrupts import HungUp, Stopped, ignoring_interrupts, signals_as_interrupts
from .login import settled_to_run
from .summary import after_detaching, summary

_LEAVES = 5.0  # seconds after a Ctrl-C in which another one stops a run that would go on by itself
_SAVE = 120.0  # seconds that a stopped trainer gets to save before the slices are taken from it


class _Detached(Exception):
    """This process leaves the run, which goes on."""


def follow(
    source: str, take_over: bool, moved: bool = False, detach: bool = False, how: type[Follower] | None = None
) -> int:
    """Drive a run to its end; returns the exit code.

    Args:
      source: a spec, or the directory of a run to go on with.
      take_over: take the run from another process that drives it.
      moved: the run's directory was moved here for good.
      detach: leave as soon as training is submitted, where it goes on by itself.
      how: what drives the stages; this process by default.
    """
    if detach:
        _require_goes_on_alone(source)
    who = this_person()
    found = start_or_open_with_login(source, who, person=True, allow_local=True, moved=moved, tell=say_aside)
    run = settled_to_run(found)
    was_driven = read_claim(run.store) is not None
    with signals_as_interrupts(), make_display() as display:
        display.say(f"run {run.uri}" + (f" (going on with it: {_so_far(run)})" if was_driven else ""))
        for line in input_files.unread(run.spec.model_dump()):
            display.say(f"note: {line}")
        driver = (how or Follower)(run, who, take_over, display)
        driver.detach = detach
        code = driver.drive()
    console = LastingConsole()
    if driver.detached:
        lines = after_detaching(run)
    else:
        lines = summary(run, driver.results, code, driver.error, superseded=driver.superseded, stage=driver.failed)
    for line in lines:
        console.tell(line)
    return code


def _require_goes_on_alone(source: str) -> None:
    """Before anything is started. Raises BadInput: the platform ends a run that nobody drives."""
    spec = read_spec(source, with_inputs=False) if is_spec(source) else open_run(source).spec
    if spec.traits.ends_unclaimed:
        raise BadInput(f"--detach: platform {spec.platform} ends a run that nobody drives; leave it out")


def _so_far(run: Run) -> str:
    """Where a run is that is gone on with."""
    if read_result(run) is not None:
        return "training is complete"
    status = read_status(run)
    if status is None or status.step < 0:
        return "no step is done yet"
    proven = "none" if status.proven_step is None else status.proven_step
    return f"step {status.step} of {status.steps} done, newest proven checkpoint: {proven}"


class Follower:
    """Drives the stages of a run in this process; a subclass may let something else drive them."""

    def __init__(self, run: Run, who: str, take_over: bool, display: Display) -> None:
        self.run, self.who, self.take_over, self._display = run, who, take_over, display
        self._events = EventReader(run.store)
        self._shown = len(self._events.all())
        self._told = {job: Told(run, job) for job in ("train", "export", "evaluate")}
        for told in self._told.values():
            told.hide()  # of an earlier process, or of one that beats again soon
        self._term: int | None = None  # of the claim, once this process has it
        self.results: dict[str, StageResult] = {}
        self.error: str = ""
        self.superseded = False
        self.failed = ""  # name of the stage that failed
        self.detach = self.detached = False  # whether this process is to leave once training is submitted, and has left
        self._was_trained = read_result(run) is not None

    def drive(self) -> int:
        """Run all stages, and release the slices if one of them fails; returns the exit code."""
        code = 0
        try:
            self.do_stages()
        except HeldByAnother as error:
            self.error, self.superseded = str(error), True
            return int(error.code)  # change nothing of the run, do not even release it
        except _Detached:
            self.detached = True
            return 0 if self.detach else int(ExitCode.INTERRUPTED)
        except KeyboardInterrupt:
            code, self.error = int(ExitCode.INTERRUPTED), "interrupted"
        except ElasticTPUError as error:
            code, self.error = int(error.code), str(error)
        except Exception as error:
            code = int(ExitCode.BUG)
            self.error = masking.mask(f"a bug of elastic-tpu: {type(error).__name__}: {error}")
            self._display.say(masking.mask(traceback.format_exc()))
        if code and self._term is not None:
            self._give_back()
        elif not code:
            self.failed = ""
            code, self.error = self._rehearsed()
        with suppress(Unreachable):
            self._tell_events()
        return code

    def do_stages(self) -> None:
        """Run every stage to its end. Raises the error of the first one that fails."""
        for step in STEPS.values():
            stage = until_answered(lambda step=step: self._open(step), self.say)  # type: ignore[misc]
            self.follow_stage(stage)
            self.results[step.name] = until_answered(stage.collect, self.say)
            self._tell_events()
            self._display.say(f"{step.name}: {self.results[step.name].summary}")

    def _rehearsed(self) -> tuple[int, str]:
        """The exit code and its reason if faults that were to be rehearsed did not happen: the run proves nothing."""
        faults = [] if self._was_trained else self.run.spec.faults  # after training nothing can be rehearsed
        done = {entry.name for entry in self.run.store.list("local/faults/")}
        missing = [i for i in range(len(faults)) if f"local/faults/{i}.json" not in done]
        if missing:
            return int(ExitCode.BUG), f"local.faults {missing} did not happen: training was over too soon"
        return 0, ""

    def follow_stage(self, stage: Stage) -> None:
        """Submit a stage and watch it to its end; Ctrl-C cancels it, or leaves it where it goes on by itself."""
        submitted = False
        try:
            try:
                self.failed = stage.name
                until_answered(stage.submit, self.say)
                submitted = self._goes_on_alone(stage)
                if submitted and self.detach:
                    raise _Detached
                self._watch(stage)
            finally:
                self._term = stage.term or self._term  # without a term nothing is released: another may drive
        except KeyboardInterrupt as interrupt:
            if submitted and self._leaves(interrupt):
                raise _Detached from None
            self._cancel(stage)
            raise

    def _goes_on_alone(self, stage: Stage) -> bool:
        """Whether a stage that was submitted needs no launcher."""
        return stage.name == TRAIN.name and not self.run.spec.traits.ends_unclaimed

    def _leaves(self, interrupt: KeyboardInterrupt) -> bool:
        """Whether this process leaves training to itself; False if another Ctrl-C asks for its stop."""
        if isinstance(interrupt, HungUp | Stopped):
            return isinstance(interrupt, HungUp)
        self._display.say(f"leaving in {_LEAVES:.0f} s: training goes on by itself; Ctrl-C again stops it")
        try:
            time.sleep(_LEAVES)
        except KeyboardInterrupt as again:
            return isinstance(again, HungUp)
        return True

    def _watch(self, stage: Stage, until: float | None = None) -> None:
        while True:
            verdict = stage.poll()
            with suppress(Unreachable):  # the verdict says already that the storage does not answer
                self._tell_events()
                if not verdict.done:
                    self._look(stage, verdict)
            if verdict.done:
                return
            if until is not None and time.monotonic() > until:
                self._display.say(f"the save is not done after {show_duration(_SAVE)}; the trainer is told to end")
                return
            time.sleep(stage.interval)

    def _look(self, stage: Stage, verdict: Verdict) -> None:
        """Show where the stage is, by what was written since this process began."""
        told = self._told.get(stage.name)
        if told is None:
            self._display.look(stage.name, verdict)
            return
        told.read()
        self._display.look(stage.name, told.shown(verdict), told.status, told.progress)

    def _cancel(self, stage: Stage) -> None:
        if stage.name == "train":
            self._display.say("stopping: training saves and ends, then the slices are given back")
            self._display.say("Ctrl-C again: do not wait for the save")
        else:
            self._display.say(f"stopping {stage.name}")
        try:
            stage.cancel(0.0, by=self.who)
            if stage.name == "train":
                self._watch(stage, until=time.monotonic() + _SAVE)
        except KeyboardInterrupt:
            self._cancel_now(stage)
        except ElasticTPUError as error:
            self._display.say(str(error))

    def _cancel_now(self, stage: Stage) -> None:
        with ignoring_interrupts(self._display):
            self._display.say("not waiting for the save: steps since the newest proven checkpoint will be done again")
            try:
                stage.cancel(0.0, by=self.who, now=True)
            except ElasticTPUError as error:
                self._display.say(str(error))

    def _give_back(self) -> None:
        with ignoring_interrupts(self._display):
            try:
                self.results.setdefault("release", until_answered(self._release, self.say, limit=_SAVE))
            except HeldByAnother:
                self.superseded = True  # the process that took the run over has the slices now
            except ElasticTPUError as error:
                self.error += f"; release: {error}"

    def _release(self) -> StageResult:
        release = self._open(RELEASE_AT_END)
        release.submit()
        release.poll()
        return release.collect()

    def _open(self, step: Step) -> Stage:
        return open_stage(
            step,
            self.run.uri,
            self.who,
            take_over=self.take_over and step is PROVISION,
            # A person is the same holder in every terminal: only the term keeps one whose run was taken over from
            # releasing the slices. Other stages read the term themselves.
            term=self._term if step.name == "release" else None,
            allow_local=True,
            spec_hash=self.run.spec_hash,
            tell=self._display.say,
        )

    def say(self, text: str) -> None:
        """A line for the person who follows."""
        self._display.say(text)

    def _tell_events(self) -> None:
        events = self._events.all()
        for event in events[self._shown :]:
            self._display.event(event)
        self._shown = len(events)
