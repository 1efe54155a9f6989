"""A platform that shows what its test told it to, and remembers what was asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...platforms.base import Job, Platform, ReleaseReport, SliceState
from ...runs.judge.verdict import Observation


@dataclass
class FakePlatform:
    """The `Platform` protocol; nothing is started anywhere.

    Attributes:
      observation: of every job.
      slice_state: of the slices.
      waits_for: what a release and a launch say that they wait for; "" = they do not wait.
      launched, freed, cancelled: names of the jobs, in the order of the calls.
    """

    observation: Observation = field(default_factory=lambda: Observation("absent"))
    slice_state: SliceState = field(default_factory=lambda: SliceState("requested", 0, 2, "0 of 2"))
    waits_for: str = ""
    launched: list[str] = field(default_factory=list)
    freed: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def check(self) -> None: ...

    def acquire(self) -> None: ...

    def slices(self) -> SliceState:
        return self.slice_state

    def release(self, jobs: bool = True, waiting: Callable[[str], None] = lambda text: None) -> ReleaseReport:
        if self.waits_for:
            waiting(self.waits_for)
        return ReleaseReport((), (), ())

    def launch(self, job: Job, waiting: Callable[[str], None] = lambda text: None) -> None:
        if self.waits_for:
            waiting(self.waits_for)
        self.launched.append(job.name)

    def observe(self, job: Job) -> Observation:
        return self.observation

    def free_stuck_pods(self, job: Job) -> None:
        self.freed.append(job.name)

    def cancel(self, job: Job, now: bool = False) -> None:
        self.cancelled.append(job.name)

    def kill_slice(self, index: int, whole: bool = False) -> str:
        return ""


_: type[Platform] = FakePlatform
