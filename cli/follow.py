"""`elastic-tpu run`: drive the stages of a run from this terminal, and leave nothing behind."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ..platforms.open import require_login
from ..runs.errors import ElasticTPUError, ExitCode, HeldByAnother, Unreachable
from ..runs.record import paths, start
from ..runs.record.events import EventReader
from ..runs.record.result import read_result
from ..runs.record.run import Run
from ..runs.record.status import load_status
from ..runs.spec import load
from ..stages.open import open_stage
from ..stages.results import StageResult
from ..stages.retry import patiently
from ..stages.stage import Stage, Step
from ..stages.steps import PROVISION, RELEASE, STEPS
from .display import Display, LastingConsole, make_display
from .summary import summary

_SAVE = 120.0  # seconds that a stopped trainer gets to save before the slices are taken from it


def follow(source: str, take_over: bool, how: type[Follower] | None = None) -> int:
    """Drive a run to its end, stage by stage or as `how` does; returns the exit code."""
    who = start.holder()
    if source.endswith((".yaml", ".yml")):
        require_login(load.read_spec(source))
    started = start.start(source, who)
    run = started.run
    with _sigterm_as_interrupt(), make_display() as display:
        display.say(f"run {run.uri}" + (" (going on with it)" if started.resumed else ""))
        driver = (how or Follower)(run, who, take_over, display)
        code = driver.drive()
    console = LastingConsole()
    for line in summary(run, driver.results, code, driver.error, superseded=driver.superseded, stage=driver.failed):
        console.tell(line)
    return code


class Follower:
    """Drives the stages of a run in this process; a subclass may let something else drive them."""

    def __init__(self, run: Run, who: str, take_over: bool, display: Display) -> None:
        self.run, self.who, self.take_over, self._display = run, who, take_over, display
        self._events = EventReader(run.store)
        self._shown = len(self._events.all())
        self._term: int | None = None  # of the claim, once this process has it
        self.results: dict[str, StageResult] = {}
        self.error: str = ""
        self.superseded = False
        self.failed = ""  # the stage that did
        self._was_trained = read_result(run) is not None

    def drive(self) -> int:
        """All stages, then a release in any case."""
        code = 0
        try:
            self.do_stages()
        except HeldByAnother as error:
            self.error, self.superseded = str(error), True
            return int(error.code)  # nothing of the run is touched, the release included
        except KeyboardInterrupt:
            code, self.error = int(ExitCode.INTERRUPTED), "interrupted"
        except ElasticTPUError as error:
            code, self.error = int(error.code), str(error)
        except Exception as error:
            code, self.error = int(ExitCode.BUG), f"a bug of elastic-tpu: {type(error).__name__}: {error}"
            self._display.say(traceback.format_exc())
        if code and self._term is not None:
            self._give_back()
        elif not code:
            self.failed = ""
            code, self.error = self._rehearsed()
        with suppress(Unreachable):
            self._tell_events()
        return code

    def do_stages(self) -> None:
        """Every stage to its end; raises what ended it otherwise."""
        for step in STEPS.values():
            stage = patiently(lambda step=step: self._open(step), self.say)  # type: ignore[misc]
            self.follow_stage(stage)
            self.results[step.name] = patiently(stage.collect, self.say)
            self._tell_events()
            self._display.say(f"{step.name}: {self.results[step.name].summary}")

    def _rehearsed(self) -> tuple[int, str]:
        """Faults that were to be rehearsed and did not happen make a run that proves nothing."""
        asked = self.run.spec.platform == "local" and not self._was_trained  # what is over cannot be rehearsed again
        faults = self.run.spec.local.faults if asked else []
        done = {entry.name for entry in self.run.store.list("local/faults/")}
        missing = [i for i in range(len(faults)) if f"local/faults/{i}.json" not in done]
        if missing:
            return int(ExitCode.BUG), f"local.faults {missing} did not happen: training was over too soon"
        return 0, ""

    def follow_stage(self, stage: Stage) -> None:
        """Submit and watch one stage to its end; Ctrl-C stops what it is for."""
        try:
            try:
                self.failed = stage.name
                patiently(stage.submit, self.say)
                self._watch(stage)
            finally:
                self._term = stage.term or self._term  # without it nothing is given back: the run may be another's
        except KeyboardInterrupt:
            self._cancel(stage)
            raise

    def _watch(self, stage: Stage, until: float | None = None) -> None:
        while True:
            verdict = stage.poll()
            with suppress(Unreachable):  # the verdict says that the storage is waited for
                self._tell_events()
                if not verdict.done:
                    self._display.look(stage.name, verdict, load_status(self.run.read(paths.STATUS)))
            if verdict.done:
                return
            if until is not None and time.monotonic() > until:
                self._display.say(f"the save is not done after {_SAVE:.0f} s; the trainer is told to end")
                return
            time.sleep(stage.interval)

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
        with _ignoring_interrupts(self._display):
            self._display.say("not waiting for the save: steps since the newest proven checkpoint will be done again")
            try:
                stage.cancel(0.0, by=self.who, now=True)
            except ElasticTPUError as error:
                self._display.say(str(error))

    def _give_back(self) -> None:
        with _ignoring_interrupts(self._display):
            try:
                self.results.setdefault("release", patiently(self._release, self.say, limit=_SAVE))
            except HeldByAnother:
                self.superseded = True  # whoever took the run over has the slices now
            except ElasticTPUError as error:
                self.error += f"; release: {error}"

    def _release(self) -> StageResult:
        release = self._open(RELEASE)
        release.submit()
        release.poll()
        return release.collect()

    def _open(self, step: Step) -> Stage:
        return open_stage(
            step,
            self.run.uri,
            self.who,
            take_over=self.take_over and step is PROVISION,
            # Who was taken over gives nothing back, though it is the same person; join and take find the term alone.
            term=self._term if step is RELEASE else None,
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


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM, and a terminal that is closed, end everything in order, as Ctrl-C does."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: list[tuple[signal.Signals, Any]] = [
        (number, signal.signal(number, interrupt))
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup: a closed terminal is meant to be outlived
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _ignoring_interrupts(display: Display) -> Iterator[None]:
    def say(signum: int, frame: FrameType | None) -> None:
        display.say("the slices are being given back; this is not interrupted")

    before: list[tuple[signal.Signals, Any]] = [
        (number, signal.signal(number, say)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
