"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from ..runs.judge.verdict import Verdict
from ..runs.record.events import Event
from ..runs.record.job_progress import JobProgress
from ..runs.record.status import Status
from ..stages.progress import progress_text
from . import story

_PLAIN_EVERY = 10.0  # seconds between plain lines of progress


# ECMA-48 sequences (colours, cursor, clipboard), and what else a terminal obeys or that turns the direction of text.
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\n\x07\x1b]*(?:\x1b\\|\x07)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Text of a log, a status or an error as a terminal may have it: of what it obeys, tabs and line ends are left."""
    return _OBEYED.sub("", _SEQUENCE.sub("", text))


def print_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print a name and its value a line. Lines are not wrapped: paths get copied, and a pipe has no width."""
    for row in rows:
        console.print(row_text(*row), soft_wrap=True)


def row_text(name: str, text: str) -> Text:
    """A name and its value, for the console."""
    return Text(f"{name:<13} ", style="bold") + Text(plain(text))


def say_aside(text: str) -> None:
    """Tell a person something that is not part of a command's output."""
    print(plain(text), file=sys.stderr)  # noqa: T201


class Display(Protocol):
    """Shows a person what happens in a run."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def say(self, text: str) -> None:
        """Print a line that stays."""

    def event(self, event: Event) -> None:
        """Show an event of the run, if it is one for people."""

    def look(self, stage: str, verdict: Verdict, status: Status | None = None, job: JobProgress | None = None) -> None:
        """Show where the stage is now: by the trainer's status, or by the progress of a job on CPU."""


class PlainConsole(Console):
    """Prints what it is given as text: there is no markup in it, and nothing that a terminal obeys."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "markup": False})

    def render_str(self, text: str, **options: Any) -> Text:
        """Text for what is printed as a string, in tables too."""
        return super().render_str(plain(text), **options)

    def out(self, *objects: Any, **options: Any) -> None:
        """Print without wrapping."""
        super().out(*(plain(str(one)) for one in objects), **options)


class OutputConsole(PlainConsole):
    """The output of a command that only prints: when nobody reads it any more, the command ends."""

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError again, which `main` knows; rich would end the process with 1."""
        raise


class LastingConsole(PlainConsole):
    """Ignores that its output cannot be written (`| head -1`, a full disk): the run must go on."""

    def on_broken_pipe(self) -> None:
        """Discard all further output. By default rich ends the process, and the slices would not be given back."""
        self.file = Path(os.devnull).open("w")  # noqa: SIM115 - for the rest of the process

    def tell(self, text: str) -> None:
        """Print one line as it is."""
        try:
            self.print(text, highlight=False, soft_wrap=True)
        except OSError:
            self.on_broken_pipe()


class PlainDisplay:
    """Lines for a log file or a pipe: what changed, and progress from time to time."""

    def __init__(self, console: LastingConsole) -> None:
        self._console = console
        self._said = 0.0
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, text: str) -> None:
        self._console.tell(f"{time.strftime('%H:%M:%S')}  {text}")

    def event(self, event: Event) -> None:
        text = story.line(event)
        if text is not None:
            stamp = event.time.astimezone().strftime("%H:%M:%S")
            self._console.tell(f"{stamp}  {text}")

    def look(self, stage: str, verdict: Verdict, status: Status | None = None, job: JobProgress | None = None) -> None:
        shown = f"{status.phase} {status.doing}" if status and stage == "train" else job.doing if job else ""
        phase = f"{stage} {verdict.phase} {shown}"
        if phase == self._last and time.monotonic() - self._said < _PLAIN_EVERY:
            return
        self._last, self._said = phase, time.monotonic()
        self.say(progress_text(stage, verdict, status, job))


class LiveDisplay(PlainDisplay):
    """The same lines, and below them a progress bar with step, loss, time to go and slices."""

    def __init__(self, console: LastingConsole) -> None:
        super().__init__(console)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn())
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task("start", total=None)
        self._text = Text("")
        self._live = Live(Group(self._bar, self._text), console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def look(self, stage: str, verdict: Verdict, status: Status | None = None, job: JobProgress | None = None) -> None:
        if stage == "train" and status is not None:
            self._bar.update(self._task, description="train", completed=status.step + 1, total=status.steps)
        elif job is not None and job.total:
            one = 2**20 if job.unit == "bytes" else 1  # the bar has no room for more digits
            self._bar.update(self._task, description=stage, completed=job.done // one, total=max(1, job.total // one))
        else:
            self._bar.update(self._task, description=stage, completed=0, total=None)
        self._text.plain = "  " + plain(progress_text(stage, verdict, status, job))


def make_display() -> Display:
    """A live display on a terminal, plain lines elsewhere."""
    console = LastingConsole()
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)
