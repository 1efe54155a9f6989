"""The events of a recovery, recovery.started and recovery.finished, as the trainer writes and others read them.

`data` is what the event file keeps (docs/contracts.md 9). `of` reads an event of any writer: a
field that is missing or of another type, as an older or damaged writer leaves it, has its default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

from .events import Event

Account = Literal["exact", "estimated"]

# The result of a recovery after which training does what it would have done without it.
IDENTICAL = "bit-identical"

RECOVERY_PARTS = ("detect", "wait", "rebuild", "first_step")


@dataclass(frozen=True)
class RecoveryStarted:
    """A recovery has begun: the trainer judged an error, or a new process follows one that died.

    Attributes:
      cause: in words.
      slices: that were lost.
      reached: last completed step, -1 before the first; the event's own `step`, None where it has none.
      in_process: whether the process that trained recovers; otherwise a new process does.
      detect: seconds from the last completed step to the error.
      trained_seconds: wall seconds in steps since the recovery before this one.
      time: when the event was recorded; None in the writer.
    """

    KIND: ClassVar[str] = "recovery.started"

    cause: str = ""
    slices: tuple[int, ...] = ()
    reached: int | None = None
    in_process: bool = True
    detect: float = 0.0
    trained_seconds: float = 0.0
    time: datetime | None = None

    @classmethod
    def of(cls, event: Event) -> RecoveryStarted:
        """From an event of this kind."""
        data = event.data
        return cls(
            cause=str(data.get("cause", "")),
            slices=_integers(data.get("slices")),
            reached=event.step,
            in_process=bool(data.get("in_process", True)),
            detect=_number(data.get("detect")),
            trained_seconds=_number(data.get("trained_seconds")),
            time=event.time,
        )

    def data(self) -> dict[str, Any]:
        """The data of the event; `reached` is its `step`."""
        return {
            "cause": self.cause,
            "slices": list(self.slices),
            "in_process": self.in_process,
            "detect": round(self.detect, 3),
            "trained_seconds": round(self.trained_seconds, 3),
        }


@dataclass(frozen=True)
class RecoveryFinished:
    """The first new step is done. Steps are numbers of completed steps, -1 before the first.

    Attributes:
      cause: in words, of each failure before the first new step.
      slices: that were lost.
      reached: last step that was completed before.
      restored: step of the checkpoint, -1 when training began anew; None where the event does not say.
      steps_lost: steps that had to be done again.
      seconds: of each of `RECOVERY_PARTS`.
      repeated_seconds: wall seconds that the lost steps had taken.
      in_process: whether the process that trained recovered; otherwise a new process did.
      account: whether `steps_lost` and `repeated_seconds` were measured (exact), or estimated after a process died.
      result: `IDENTICAL`, or why what is trained is not bit for bit what it would be without interruptions; empty where
        the event does not say.
      time: when the event was recorded; None in the writer.
    """

    KIND: ClassVar[str] = "recovery.finished"

    cause: str = ""
    slices: tuple[int, ...] = ()
    reached: int = -1
    restored: int | None = None
    steps_lost: int = 0
    seconds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(RECOVERY_PARTS, 0.0))
    repeated_seconds: float = 0.0
    in_process: bool = True
    account: Account = "exact"
    result: str = ""
    time: datetime | None = None

    @property
    def total_seconds(self) -> float:
        """From the last completed step to the first new one."""
        return sum(self.seconds.values())

    @property
    def result_words(self) -> str:
        """The result for people; empty where it was not told."""
        return self.result if self.result in ("", IDENTICAL) else f"not {IDENTICAL}: {self.result}"

    @classmethod
    def of(cls, event: Event) -> RecoveryFinished:
        """From an event of this kind."""
        data, restored = event.data, event.data.get("restored")
        seconds = data.get("seconds")
        parts = seconds if isinstance(seconds, Mapping) else {}
        return cls(
            cause=str(data.get("cause", "")),
            slices=_integers(data.get("slices")),
            reached=int(_number(data.get("reached"), -1)),
            restored=restored if isinstance(restored, int) else None,
            steps_lost=int(_number(data.get("steps_lost"))),
            seconds={part: _number(parts.get(part)) for part in RECOVERY_PARTS},
            repeated_seconds=_number(data.get("repeated_seconds")),
            in_process=bool(data.get("in_process", True)),
            account=_account(data),
            result=str(data.get("result") or ""),
            time=event.time,
        )

    def data(self) -> dict[str, Any]:
        """The data of the event."""
        return {
            "cause": self.cause,
            "slices": list(self.slices),
            "reached": self.reached,
            "restored": self.restored,
            "steps_lost": self.steps_lost,
            "seconds": {part: round(self.seconds[part], 3) for part in RECOVERY_PARTS},
            "repeated_seconds": round(self.repeated_seconds, 3),
            "in_process": self.in_process,
            "account": self.account,
            "exact": self.account == "exact",  # for readers of older versions
            "result": self.result,
        }


def finished_recoveries(events: Iterable[Event]) -> list[RecoveryFinished]:
    """The recoveries that finished, in order."""
    return [RecoveryFinished.of(event) for event in events if event.kind == RecoveryFinished.KIND]


def _account(data: Mapping[str, Any]) -> Account:
    told = data.get("account")
    if told in ("exact", "estimated"):
        return "exact" if told == "exact" else "estimated"
    return "exact" if data.get("exact", True) else "estimated"


def _number(value: object, default: float = 0.0) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else default


def _integers(value: object) -> tuple[int, ...]:
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, (list, tuple)) else ()
