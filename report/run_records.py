"""The records of a run as they were read, which the report is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..runs.errors import exit_words
from ..runs.record.claim import StoredClaim
from ..runs.record.events import Event
from ..runs.record.loss_log import Loss
from ..runs.record.proof import Proof
from ..runs.record.result import TrainingResult
from ..runs.record.status import Status
from ..runs.spec.gate import GateReport
from ..runs.spec.plan import Plan
from ..runs.spec.run_spec import RunSpec


@dataclass(frozen=True)
class AttemptRow:
    """One process start of a job, from its started.json and exit.json; `code` is negative for a signal."""

    job: str
    number: int
    began: datetime | None = None
    ended: datetime | None = None
    code: int | None = None
    reason: str = ""

    @property
    def meaning(self) -> str:
        """The exit code in words."""
        return exit_words(self.code)


@dataclass(frozen=True)
class Records:
    """What was found in the run directory at `now` (the storage's clock); None or empty for what is not there.

    Attributes:
      sizes: bytes by file name, by step, of each finished checkpoint on storage.
      seen: when status.json was last written.
      gaps: what could not be read, and why.
    """

    uri: str
    spec: RunSpec
    now: datetime
    events: tuple[Event, ...] = ()
    status: Status | None = None
    seen: datetime | None = None
    claim: StoredClaim | None = None
    result: TrainingResult | None = None
    losses: tuple[Loss, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    proofs: Mapping[int, Proof] | None = None
    sizes: Mapping[int, Mapping[str, int]] | None = None
    manifest: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    gate: GateReport | None = None
    plan: Plan | None = None
    gaps: tuple[str, ...] = ()
