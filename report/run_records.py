"""What the report is told from: the records of a run as they were read, and nothing made of them yet."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..runs.errors import ExitCode
from ..runs.record.claim import Seen
from ..runs.record.events import Event
from ..runs.record.loss_log import Loss
from ..runs.record.proof import Proof
from ..runs.record.result import TrainingResult
from ..runs.record.status import Status
from ..runs.spec.gate import GateReport
from ..runs.spec.plan import Plan
from ..runs.spec.run_spec import RunSpec

_MEANING: Mapping[int, str] = {
    ExitCode.COMPLETE: "complete",
    ExitCode.BAD_INPUT: "bad spec or input",
    ExitCode.GATE_FAILED: "the gate did not pass",
    ExitCode.HELD_BY_ANOTHER: "held by another",
    ExitCode.BUG: "a bug or user error",
    ExitCode.INFRASTRUCTURE: "infrastructure, or stalled",
    ExitCode.ENDED_ON_REQUEST: "ended on request",
    ExitCode.LIMIT_SPENT: "a limit of the spec is spent",
    ExitCode.EVICTED: "evicted",
}


def meaning_of(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "has not ended, or nobody saw how"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return _MEANING.get(code, "not a code of the trainer")


@dataclass(frozen=True)
class Attempt:
    """One process start of a job as its two small files tell it; `code` is negative for a signal."""

    job: str
    number: int
    began: datetime | None = None
    ended: datetime | None = None
    code: int | None = None
    reason: str = ""

    @property
    def meaning(self) -> str:
        """The exit code in words."""
        return meaning_of(self.code)


@dataclass(frozen=True)
class Records:
    """What was found in the run directory at `now` (the storage's clock); None or empty for what is not there.

    Attributes:
      sizes: of the checkpoints on storage: bytes by file name, by step.
      seen: when status.json was last written.
      gaps: what could not be read, and why.
    """

    uri: str
    spec: RunSpec
    now: datetime
    events: tuple[Event, ...] = ()
    status: Status | None = None
    seen: datetime | None = None
    claim: Seen | None = None
    result: TrainingResult | None = None
    losses: tuple[Loss, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    proofs: Mapping[int, Proof] | None = None
    sizes: Mapping[int, Mapping[str, int]] | None = None
    manifest: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    gate: GateReport | None = None
    plan: Plan | None = None
    gaps: tuple[str, ...] = ()
