"""The result of training, and whether it holds: `result.json` is of this run, and its final checkpoint is proven."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from ..errors import Damaged
from ..store import records
from . import paths, proof
from .run import Run

# Of a ratio: seconds are rounded to milliseconds, which is much of a short run; older versions wrote 1.0002.
_ROUNDING = 0.01
Count = Annotated[int, Field(ge=0, strict=True)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class TrainingResult:
    """The result of training (docs/contracts.md 10). `goodput` is a ratio; `seconds_by_kind` is wall time.

    `checkpoint` is the URI of the final checkpoint: as read, below the run directory that was opened.
    """

    final_step: Count
    checkpoint: str
    proof_digest: str
    spec_hash: str
    attempts: Count
    recoveries: Count
    steps_lost: Count
    goodput: Annotated[float, Field(ge=0, le=1 + _ROUNDING, allow_inf_nan=False)] | None
    seconds_by_kind: dict[str, Seconds]
    early_stop: bool

    @property
    def counted(self) -> str:
        """The number of recoveries in words."""
        return f"{self.recoveries} recover{'y' if self.recoveries == 1 else 'ies'}"

    def dump(self) -> bytes:
        """As the bytes of result.json, with a digest."""
        return records.seal(asdict(self))

    @property
    def contradiction(self) -> str:
        """Where the figures do not agree with one another; empty if they do."""
        total = sum(self.seconds_by_kind.values())
        share = self.seconds_by_kind.get("training", 0.0) / total if total > 1 else None
        if self.goodput is None or share is None or abs(self.goodput - share) <= _ROUNDING:
            return ""
        return f"goodput is {self.goodput}, but seconds_by_kind give {share:.4f}"


_RESULT = TypeAdapter(TrainingResult)
_CURE = "put it back, or move it aside: running again writes it anew from the final checkpoint"


def read_result(opened: Run) -> TrainingResult | None:
    """The content of result.json, proven or not; None when there is no such file.

    Raises:
      Damaged: it is not a training result, or not what was written; the cure is named.
      BadInput: a newer version wrote it.
    """
    try:
        record = opened.read(paths.RESULT)
        if record is None:
            return None
        result = _RESULT.validate_python(record)
        wrong = result.contradiction or records.unsealed_problem(record, [field.name for field in fields(result)])
        if wrong:
            raise Damaged(f"{opened.path(paths.RESULT)}: {wrong}")
    except Damaged as error:
        raise Damaged(f"{error}; {_CURE}") from error
    except ValidationError as error:
        wrong = records.wrong_fields(error)
        raise Damaged(f"{opened.path(paths.RESULT)}: not a training result ({wrong}); {_CURE}") from error
    # Not the recorded place: the directory may have been copied or moved since.
    return replace(result, checkpoint=opened.path(paths.checkpoint(result.final_step)))


def proven_result(opened: Run) -> tuple[TrainingResult | None, str]:
    """The result if it holds: it is of this spec, and its checkpoint on storage is the one that was proven.

    Returns (result, ""), or (None, why it does not hold).
    """
    result = read_result(opened)
    if result is None:
        return None, f"there is no {paths.RESULT}"
    if result.spec_hash != opened.spec_hash:
        return (
            None,
            f"{paths.RESULT} is of another spec (hash {result.spec_hash[:12]}, this is {opened.spec_hash[:12]})",
        )
    last = opened.spec.train.steps - 1
    if result.final_step != last and not result.early_stop:
        return None, f"{paths.RESULT} is of step {result.final_step}, the last is {last} and the data did not end early"
    recorded = proof.read_proof(opened.store, result.final_step)
    if recorded is None or recorded.digest != result.proof_digest:
        return None, f"the proof of the final checkpoint (step {result.final_step}) is missing, or not the result's"
    problems = proof.check(opened.store, result.final_step)
    if problems:
        return None, f"the final checkpoint (step {result.final_step}) is not what was proven: {problems[0]}"
    return result, ""
