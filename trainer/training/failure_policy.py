"""What an error in training means, decided with context and never by its text alone. Pure.

`Manager.elastic_retry` looks at the text of an error before it asks any policy (pathwaysutils 0.1.13). So an error to
recover from is raised again as ``DATA_LOSS`` from the original; every other leaves the loop with its own exit code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum


class Cause(Enum):
    """What an error means: recover from a lost slice, retry in this process, report a bug, or start a new process."""

    SLICE_LOST = "slice lost"
    RETRY = "retry"
    BUG = "bug"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True)
class Failure:
    """An error and what was known when it was raised.

    `kind`: jax (a JaxRuntimeError somewhere in the chain), storage (OSError, Unreachable), other.
    `step`: the step during which it was raised; `progressed`: this attempt had completed a step; `recovering`: it was
    raised during a recovery, which may fail for reasons of its own.
    """

    kind: str
    message: str
    step: int
    progressed: bool
    slices_lost: frozenset[int]
    recovering: bool = False


# Status codes that begin the text: an error of the user's code or model, a head that is gone, a lost slice.
_USERS = re.compile(r"^\s*(RESOURCE_EXHAUSTED|INVALID_ARGUMENT|UNIMPLEMENTED|FAILED_PRECONDITION)\b")
_HEAD = re.compile(r"^\s*(UNAVAILABLE|ABORTED|CANCELLED)\b")
_LOSS = re.compile(r"^\s*DATA_LOSS\b")


def classify(failure: Failure, before: Failure | None) -> Cause:
    """The cause of a failure; `before` is the last failure in this process, if its step was not completed since."""
    if failure.slices_lost:
        return Cause.SLICE_LOST
    if failure.kind == "storage":
        return Cause.INFRASTRUCTURE
    if failure.kind != "jax" or _USERS.match(failure.message):
        return Cause.BUG
    if _HEAD.match(failure.message):
        return Cause.INFRASTRUCTURE
    if before is not None and before.step == failure.step and _same(before.message, failure.message):
        return Cause.BUG
    if failure.recovering and not failure.progressed:
        return Cause.INFRASTRUCTURE  # about one recovery in four needs a new process (maxtext #4632)
    if failure.progressed:
        return Cause.RETRY
    # A cluster reports a silent node up to 50 s late, so this may be a lost slice although none shows. If it is not,
    # the error repeats after each start until `attempts_without_progress` ends the run.
    return Cause.INFRASTRUCTURE if _LOSS.match(failure.message) else Cause.BUG


def _same(a: str, b: str) -> bool:
    def bare(text: str) -> str:
        return re.sub(r"0x[0-9a-f]+|\d+", "#", text)

    return bare(a) == bare(b)


@dataclass
class Budget:
    """Counts failed attempts without a new proven step; a lost slice does not count, a new proven step starts at 0."""

    allowed: int
    spent: int = 0
    _proven: int | None = field(default=None)

    def note(self, cause: Cause, proven: int | None) -> bool:
        """Count a failed attempt; True while another may follow. `proven`: newest proven step."""
        if proven is not None and (self._proven is None or proven > self._proven):
            self._proven, self.spent = proven, 0
        if cause is not Cause.SLICE_LOST:
            self.spent += 1
        return self.spent < self.allowed


def starts_without_progress(proven_at_start: list[int | None], proven_now: int | None) -> int:
    """How many of the last process starts, the newest excluded, ended with no new proven step.

    Args:
      proven_at_start: the newest proven step when each earlier attempt began, oldest first.
      proven_now: the newest proven step now.
    """
    count = 0
    later = proven_now
    for before in reversed(proven_at_start):
        if later is not None and (before is None or later > before):
            break
        count += 1  # also if `later` is the smaller one: a proven step that was set aside is no progress
        later = before
    return count
