"""status.json: the trainer's heartbeat and fence, as data (contracts.md 6)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from ..errors import BadInput
from ..store import records

Phase = Literal["starting", "waiting", "restoring", "compiling", "training", "saving", "stopping", "ended"]


@dataclass(frozen=True)
class SliceCount:
    """Slices in use and slices wanted."""

    active: int = 0
    wanted: int = 0


@dataclass(frozen=True)
class Status:
    """Where the trainer is. `step` is the last completed step (-1 before the first), seconds are of one step."""

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

    def dump(self) -> bytes:
        """As the bytes of status.json; a number that is not finite is written as null."""
        record = asdict(self)
        for name in ("loss", "step_seconds", "eta"):
            if record[name] is not None and not math.isfinite(record[name]):
                record[name] = None
        return records.dump(record)


def load_status(record: dict[str, Any] | None) -> Status | None:
    """A status from its record; fields of a newer writer that this version does not know are ignored.

    Raises:
      BadInput: it is no status.
    """
    if record is None:
        return None
    known = {f.name for f in fields(Status)}
    values = {key: value for key, value in record.items() if key in known}
    try:
        values["slices"] = SliceCount(**values.get("slices", {}))
        status = Status(**values)
    except TypeError as error:
        raise BadInput(f"status.json: not the status of a trainer ({error}); it was damaged or is not ours") from error
    if status.phase not in get_args(Phase):
        raise BadInput(f"status.json: unknown phase {status.phase!r}; it was damaged or is not ours")
    return status
