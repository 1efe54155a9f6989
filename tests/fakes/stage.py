"""A stage that answers as its test tells it to: for adapters, which only drive."""

from __future__ import annotations

from collections.abc import Sequence

from ...runs.judge.verdict import Verdict
from ...stages.progress import progress_text
from ...stages.results import StageResult
from ...stages.stage import Stage


class ScriptedStage:
    """The `Stage` protocol with a verdict, or an error to raise, for each call of `poll`.

    Attributes:
      looks: what `poll` does next.
      collects: errors of the next calls of `collect`; after them it succeeds with the summary "well".
      stops: what `cancel` returns.
      cancelled: the calls of `cancel`, as (grace, by, now).
    """

    name = "train"
    uri: str | None = None
    term: int | None = 1

    def __init__(self, *looks: Verdict | BaseException, collects: Sequence[BaseException] = ()) -> None:
        self.interval = 10.0
        self.looks, self.collects = list(looks), list(collects)
        self.stops = True
        self.cancelled: list[tuple[float, str, bool]] = []

    spec_hash = ""

    def submit(self) -> None: ...

    def poll(self) -> Verdict:
        look = self.looks.pop(0)
        if isinstance(look, BaseException):
            raise look
        self._last = look
        return look

    def progress(self) -> str:
        return progress_text(self.name, self._last)

    def collect(self) -> StageResult:
        if self.collects:
            raise self.collects.pop(0)
        return StageResult("train", "well")

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        self.cancelled.append((grace, by, now))
        return self.stops

    def give_up(self) -> None: ...


_: type[Stage] = ScriptedStage
