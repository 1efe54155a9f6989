"""status.json: the trainer's heartbeat and fence, as data (docs/contracts.md 6).

Standard library only at import: verdicts need the types, and a scheduler imports them every few seconds.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from ..errors import Damaged, NotFound
from ..store import records
from . import paths

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from ..store.base import Item
    from .run import Run

Phase = Literal["starting", "waiting", "restoring", "compiling", "training", "suspended", "saving", "stopping", "ended"]
_DAMAGED = "the file is damaged, or elastic-tpu did not write it"


@dataclass(frozen=True)
class SliceCount:
    """Slices in use and slices wanted."""

    active: int = 0
    wanted: int = 0


@dataclass(frozen=True)
class Status:
    """Where the trainer is, as of its last heartbeat.

    Attributes:
      attempt: process start, from 1.
      nonce: of the process that writes the file; another trainer's differs.
      recovery: recoveries within this process so far.
      step: last completed step, -1 before the first.
      steps: that the spec asks for.
      loss: of `step`.
      step_seconds: smoothed wall seconds of a step.
      eta: seconds until the last step.
      proven_step: newest checkpoint that is proven.
      reason: why the trainer waits or has ended, in words.
      exit: exit code, once the phase is ended.
      trained_seconds: wall seconds in steps since the last recovery or the start of the process.
      doing: what takes long in this phase, in words (`importing MaxText`); empty if nothing does.
      doing_seconds: since when, as of this beat.
    """

    run_id: str
    attempt: int
    nonce: str
    recovery: int = 0
    phase: Phase = "starting"
    step: int = -1
    steps: int = 0
    loss: float | None = None
    step_seconds: float | None = None
    eta: float | None = None
    slices: SliceCount = field(default_factory=SliceCount)
    proven_step: int | None = None
    reason: str = ""
    exit: int | None = None
    trained_seconds: float = 0.0
    doing: str = ""
    doing_seconds: float = 0.0

    def dump(self) -> bytes:
        """As the bytes of status.json; a number that is not finite is written as null."""
        record = asdict(self)
        for name in ("loss", "step_seconds", "eta"):
            if record[name] is not None and not math.isfinite(record[name]):
                record[name] = None
        return records.dump(record)


@cache
def _adapter() -> TypeAdapter[Status]:
    from pydantic import TypeAdapter

    return TypeAdapter(Status)


def load_status(record: dict[str, Any] | None) -> Status | None:
    """A status from its record; fields that only a newer version knows are ignored.

    Raises:
      Damaged: the record is not a status.
    """
    from pydantic import ValidationError

    if record is None:
        return None
    try:
        return _adapter().validate_python(record)
    except ValidationError as error:
        wrong = records.wrong_fields(error)
        raise Damaged(f"{paths.STATUS}: not the status of a trainer ({wrong}); {_DAMAGED}") from error


def read_status(run: Run) -> Status | None:
    """The status of the run's trainer; None if there is none, or if the file is damaged: the next trainer replaces it.

    Raises:
      BadInput: a newer version wrote it.
    """
    try:
        return status_in(run, run.store.read(paths.STATUS))
    except NotFound:
        return None


def status_in(run: Run, item: Item) -> Status | None:
    """The status in a status.json that was read; None and errors as of `read_status`."""
    try:
        return load_status(records.load(item.data, run.path(paths.STATUS)))
    except Damaged:
        return None
