"""The result of training, and whether it holds: `result.json` of this run and a final checkpoint that proves."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from ..errors import BadInput
from ..store import records
from . import paths, proof
from .run import Run


@dataclass(frozen=True)
class TrainingResult:
    """What training came to (contracts.md 10). `goodput` is a ratio; seconds are wall time."""

    final_step: int
    checkpoint: str
    proof_digest: str
    spec_hash: str
    attempts: int
    recoveries: int
    steps_lost: int
    goodput: float | None
    seconds_by_kind: dict[str, float]
    early_stop: bool

    @property
    def counted(self) -> str:
        """Its recoveries, for a person."""
        return f"{self.recoveries} recover{'y' if self.recoveries == 1 else 'ies'}"

    def dump(self) -> bytes:
        """As the bytes of result.json."""
        return records.dump(asdict(self))


def read_result(opened: Run) -> TrainingResult | None:
    """result.json as it stands, proven or not; None when it is not there.

    Raises:
      BadInput: it cannot be read, or a newer version wrote it.
    """
    record = opened.read(paths.RESULT)
    if record is None:
        return None
    known = {f.name for f in fields(TrainingResult)}
    try:
        result = TrainingResult(**{k: v for k, v in record.items() if k in known})
    except TypeError as error:
        raise BadInput(f"{opened.path(paths.RESULT)}: not a training result ({error})") from error
    if not isinstance(result.final_step, int) or not isinstance(result.spec_hash, str):
        raise BadInput(f"{opened.path(paths.RESULT)}: not a training result; it was damaged or is not ours")
    return result


def proven_result(opened: Run) -> tuple[TrainingResult | None, str]:
    """The result if it proves: it is of this spec, and its checkpoint on storage is the one that was proven.

    Returns the result, or None and the reason.
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
        return None, f"the proof of the final checkpoint (step {result.final_step}) is missing or another one"
    problems = proof.check(opened.store, result.final_step)
    if problems:
        return None, f"the final checkpoint (step {result.final_step}) is not what was proven: {problems[0]}"
    return result, ""
