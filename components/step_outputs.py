"""What a KFP step hands on once its stage is complete: its artifacts and its output parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.errors import NotFound
from ..stages.results import StageResult
from .step_end import REPORT

if TYPE_CHECKING:
    from ..runs.record.run import Run


def write_model_uri(path: str, result: StageResult) -> None:
    """Write an export's output parameter `model_uri`, empty if there is none: without the file a launcher fails it."""
    Path(path).write_text(result.values.get("model", ""), encoding="utf-8")


def fill(
    uri: str | None, result: StageResult, model: Any, metrics: Any, report: Any, tell: Callable[[str], None]
) -> None:
    """Fill the artifacts of a step; those of a stage that the spec switches off stay empty.

    Args:
      uri: of the run; None if none was started.
      model, metrics, report: `dsl.Model`, `dsl.Metrics`, `dsl.HTML`; None where the component has none.
      tell: called with a line for the log.

    Raises:
      Unreachable: the run's storage does not answer.
    """
    from ..runs.record.run import open_run

    artifacts = [artifact for artifact in (model, metrics, report) if artifact is not None]
    if uri is None or not artifacts:
        return
    opened = open_run(uri)
    for artifact in artifacts:
        artifact.metadata.update(_identity(opened, result))
    if model is not None and "model" in result.values:
        # Not model.uri: the launcher fails a step whose artifact lies outside the pipeline root, as the run does.
        model.metadata["model"] = result.values["model"]
    if metrics is not None:
        for name, value in _numbers(result).items():
            metrics.log_metric(name, value)
    if report is not None:
        _copy_report(opened, report, tell)


def _identity(run: Run, result: StageResult) -> dict[str, Any]:
    """Metadata that says what an artifact belongs to: run, spec hash, step, digests of checkpoint and export."""
    from ..runs.record.published import export_of

    found: dict[str, Any] = {"run": run.uri, "spec_hash": run.spec_hash, "summary": result.summary}
    if result.stage == "train":
        found |= {"step": result.values["final_step"], "proof_digest": result.values["proof_digest"]}
        return found | {"checkpoint": result.values["checkpoint"]}
    manifest = export_of(run)[0] if result.values else None
    return found | {key: manifest[key] for key in ("step", "proof_digest", "export_digest") if manifest}


def _numbers(result: StageResult) -> dict[str, float]:
    """The numbers of a result by dotted name: ``heldout.loss``, ``goodput``, ``seconds_by_kind.recovery``."""
    found: dict[str, float] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else str(key), inner)
        elif isinstance(value, (int, float)):
            found[name] = value

    walk("", result.values.get("metrics", result.values))
    return found


def _copy_report(run: Run, report: Any, tell: Callable[[str], None]) -> None:
    """Copy the run's report.html as it is now into the artifact."""
    try:
        Path(report.path).write_bytes(run.store.read(REPORT).data)
    except NotFound:
        tell("there is no report.html yet")
