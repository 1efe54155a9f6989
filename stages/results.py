"""What proves each stage's job, and what it comes to: the same whoever asks, read from the run directory.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..runs.errors import (
    ElasticTPUError,
    EndedOnRequest,
    ExitCode,
    GateFailed,
    HeldByAnother,
    Infrastructure,
    LimitSpent,
)
from ..runs.judge.verdict import Verdict

if TYPE_CHECKING:
    from ..runs.record.run import Run


@dataclass(frozen=True)
class StageResult:
    """What a stage came to: a few values and URIs, small enough for any orchestrator."""

    stage: str
    summary: str
    values: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def _train_proof(run: Run) -> tuple[Any, str]:
    from ..runs.record.result import proven_result

    return proven_result(run)


def _export_proof(run: Run) -> tuple[Any, str]:
    from ..runs.record.published import export_of

    return export_of(run)


def _evaluate_proof(run: Run) -> tuple[Any, str]:
    from ..runs.record.published import evaluation_of

    return evaluation_of(run)


PROOFS = {"train": _train_proof, "export": _export_proof, "evaluate": _evaluate_proof}


def _train_result(run: Run, result: Any) -> StageResult:
    lost = f", {result.steps_lost} steps done again" if result.steps_lost else ""
    summary = f"step {result.final_step} proven; {result.counted}{lost}"
    return StageResult("train", summary, {"run": run.uri, **asdict(result)})


def _export_result(run: Run, manifest: Any) -> StageResult:
    from ..runs.record import paths

    uri = run.path(paths.export(manifest["step"]))
    size = sum(f["size"] for f in manifest["files"].values())
    values = {"run": run.uri, "model": uri, "step": manifest["step"], "export_digest": manifest["export_digest"]}
    return StageResult("export", f"{size / 2**20:.1f} MiB in {uri}", values)


def _evaluate_result(run: Run, evaluation: Any) -> StageResult:
    from ..runs.record.published import judge_gate

    report = judge_gate(run, evaluation)
    values = {"run": run.uri, "metrics": evaluation["metrics"], "key": evaluation["key"]}
    if not report.passed:
        from ..runs.record.events import EventLog

        EventLog(run.store, "stage").write("gate.failed", lines=list(report.problems))
        raise GateFailed("the gate did not pass: " + "; ".join(report.problems))
    heldout = evaluation["metrics"].get("heldout", {})
    return StageResult("evaluate", f"held-out loss {heldout.get('loss', float('nan')):.4f}", values)


RESULTS = {"train": _train_result, "export": _export_result, "evaluate": _evaluate_result}


def last_stage(run: Run) -> str:
    return "evaluate" if run.spec.evaluate else "export" if run.spec.export else "release"


def nothing_left_to_do(run: Run) -> bool:
    """Whether a release ends the run: training has no result that export and evaluation could go on from."""
    if _train_proof(run)[0] is None:
        return True
    last = last_stage(run)
    return last == "release" or PROOFS[last](run)[0] is not None


def interval_of(run: Run) -> float:
    """Seconds between two looks at a run."""
    return 0.25 if run.spec.platform == "local" else run.spec.beat


def error_of(verdict: Verdict) -> ElasticTPUError:
    """The error that a verdict stands for."""
    kinds: dict[int, type[ElasticTPUError]] = {
        ExitCode.GATE_FAILED: GateFailed,
        ExitCode.HELD_BY_ANOTHER: HeldByAnother,
        ExitCode.INFRASTRUCTURE: Infrastructure,
        ExitCode.ENDED_ON_REQUEST: EndedOnRequest,
        ExitCode.LIMIT_SPENT: LimitSpent,
    }
    error = kinds.get(verdict.code, ElasticTPUError)(verdict.reason or verdict.outcome)
    # Code 0 is no failure's: a job that ended well and left no proof is a bug.
    error.code = ExitCode(verdict.code) if verdict.code and verdict.code in set(ExitCode) else ExitCode.BUG
    return error
