"""What proves the job of each stage, and its result: read from the run directory, the same for every orchestrator.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..runs.errors import ElasticTPUError, ExitCode, GateFailed, error_for
from ..runs.judge.verdict import Verdict
from ..runs.units import show_size

if TYPE_CHECKING:
    from ..runs.record.run import Run


@dataclass(frozen=True)
class StageResult:
    """The result of a stage: a line for people, and a few values and URIs, small enough for any orchestrator."""

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


# Job to what proves it: (proof, "") if the proof holds, else (None, why not).
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
    return StageResult("export", f"{show_size(size)} in {uri}", values)


def _evaluate_result(run: Run, evaluation: Any) -> StageResult:
    from ..runs.record.published import judge_gate, record_gate
    from ..runs.spec.gate import HELDOUT, is_figure

    report = judge_gate(run, evaluation)
    record_gate(run, evaluation, report)
    values = {"run": run.uri, "metrics": evaluation["metrics"], "key": evaluation["key"]}
    if report.problems:
        from ..runs.record.events import EventLog

        EventLog(run.store, "stage").write("gate.failed", lines=list(report.problems))
        raise GateFailed(report.why)
    heldout = evaluation["metrics"].get(HELDOUT)
    loss = heldout.get("loss") if isinstance(heldout, dict) else None
    figure = f"held-out loss {loss:.4f}" if is_figure(loss) else f"evaluation {evaluation['key']}"
    return StageResult("evaluate", f"{figure}, {report.words}", values)


# Job to the result that its proof gives; the one of an evaluation raises GateFailed.
RESULTS = {"train": _train_result, "export": _export_result, "evaluate": _evaluate_result}


def last_stage(run: Run) -> str:
    """The stage that ends the run."""
    return "evaluate" if run.spec.evaluate else "export" if run.spec.export else "release"


def nothing_left_to_do(run: Run) -> bool:
    """Whether a release ends the run: no proven result is left to export or evaluate."""
    if _train_proof(run)[0] is None:
        return True
    last = last_stage(run)
    return last == "release" or PROOFS[last](run)[0] is not None


def error_of(verdict: Verdict) -> ElasticTPUError:
    """The error that a verdict stands for."""
    # A failure never has code 0: a job that exited 0 and left no proof is a bug.
    code = ExitCode.of(verdict.code) if verdict.code > 0 else ExitCode.BUG
    return error_for(code, verdict.reason or verdict.outcome)
