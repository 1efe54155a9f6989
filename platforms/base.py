"""What every platform offers: take slices, run a job, look at it, end it, give the slices back.

Effects only; what a look means is decided in `runs/judge/verdict.py`. Every call is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ..runs.judge.verdict import Observation


@dataclass(frozen=True)
class Job:
    """Something to run in the trainer image: arguments of `python -m elastic_tpu.trainer`, with slices or CPU only."""

    name: str
    argv: tuple[str, ...]
    slices: bool


@dataclass(frozen=True)
class SliceState:
    """One look at the slices of a run. `state` absent: none were taken; failed: they cannot be had.

    `with_job`: they come with the run's job, which is there already; how long it may wait is decided by who watches it.
    """

    state: Literal["absent", "requested", "ready", "partly", "released", "failed"]
    ready: int
    wanted: int
    detail: str = ""
    with_job: bool = False


@dataclass(frozen=True)
class ReleaseReport:
    """What a release found and did, by name: existed before, deleted now, left behind."""

    existed: tuple[str, ...]
    deleted: tuple[str, ...]
    left: tuple[str, ...]


class Platform(Protocol):
    """Where slices come from and jobs run."""

    def acquire(self) -> None:
        """Ask for the slices (intent on record first); adopts what is already there."""

    def slices(self) -> SliceState:
        """Look at the slices."""

    def release(self, jobs: bool = True, waiting: Callable[[str], None] = ...) -> ReleaseReport:
        """Give the slices back and end what runs on them, and verify that it is gone; with `jobs`, CPU jobs as well.

        Args:
          waiting: called with what is waited for, again and again, while it takes long.
        """

    def launch(self, job: Job, waiting: Callable[[str], None] = lambda text: None) -> None:
        """Start a job, or adopt the one that runs.

        `waiting` is called again and again, with what for, while something of its predecessor has to go first.
        """

    def observe(self, job: Job) -> Observation:
        """Look at a job."""

    def cancel(self, job: Job, now: bool = False) -> None:
        """End a job that nobody wants any more: in order, or with no time to save if `now`; one that is over stays."""

    def kill_slice(self, index: int, whole: bool = False) -> str:
        """Kill a slice's worker without notice, to rehearse its loss; says what was killed."""
