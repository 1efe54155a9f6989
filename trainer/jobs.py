"""`export` and `evaluate`: CPU jobs from the proven checkpoint to a published model and its figures."""

from __future__ import annotations

import logging
import signal
import traceback
from collections.abc import Callable
from types import FrameType

from ..runs.errors import BadInput, ElasticTPUError, ExitCode
from ..runs.record import paths, published
from ..runs.record.events import EventLog
from ..runs.record.result import proven_result
from ..runs.record.run import Run
from ..runs.spec import maxtext_config, plan
from .job_progress import ProgressRecord
from .session import AttemptLog, ProcessAttempt

_log = logging.getLogger("elastic_tpu.trainer")


def run_job(run: Run, job: str) -> int:
    """Run a CPU job to its end; always returns an exit code, with the events written."""
    attempt = ProcessAttempt(run, job, None)
    log = AttemptLog(run, f"{attempt.folder}/{attempt.number}/{job}.log")
    events = EventLog(run.store, job, attempt.number)
    events.write("attempt.started", job=job)
    progress = ProgressRecord(run, job, attempt.number)
    code, reason = int(ExitCode.COMPLETE), ""
    try:
        try:
            signal.signal(signal.SIGTERM, _evicted)
            _JOBS[job](run, events, progress)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing may interrupt the record of how it ended
    except _Evicted:
        code, reason = int(ExitCode.EVICTED), "SIGTERM"
    except ElasticTPUError as error:
        code, reason = int(error.code), str(error)
        _log.error("%s", error)
    except OSError as error:
        traceback.print_exception(error)
        code, reason = int(ExitCode.INFRASTRUCTURE), f"{type(error).__name__}: {error}"
    except Exception as error:
        traceback.print_exception(error)
        code, reason = int(ExitCode.BUG), f"{type(error).__name__}: {error}"
    events.write("attempt.ended", job=job, code=code, reason=reason[:500])
    progress.close()
    log.close()
    return code


class _Evicted(BaseException):
    pass


def _evicted(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would interrupt the handling of the first
    raise _Evicted


def export(run: Run, events: EventLog, progress: ProgressRecord) -> None:
    """Export the final, proven checkpoint."""
    progress.doing("importing the exporter")
    from .export.export import export_checkpoint
    from .export.qwen3 import architecture_from_maxtext

    progress.doing("checking the proof of the checkpoint")
    result, why = proven_result(run)
    if result is None:
        raise BadInput(f"nothing to export: {why}")
    if not run.spec.export:
        raise BadInput("export is switched off in the spec (`export: false`)")
    keys = maxtext_config.resolved(run.spec.model.name, plan.maxtext_overrides(run.spec))
    manifest = export_checkpoint(
        result.checkpoint,
        run.path(paths.export(result.final_step)),
        architecture=architecture_from_maxtext(keys),
        tokenizer=run.spec.model.tokenizer,
        dtype=run.spec.export.dtype,
        spec_hash=run.spec_hash,
        proof_digest=result.proof_digest,
        doing=progress.doing,
        progress=progress.counter("bytes"),
    )
    events.write(
        "export.published", step=result.final_step, export_digest=manifest.export_digest, files=len(manifest.files)
    )


def evaluate(run: Run, events: EventLog, progress: ProgressRecord) -> None:
    """Evaluate the export on held-out data; the gate is computed when it is read, not here."""
    from dataclasses import asdict

    manifest, why = published.export_of(run)
    if manifest is None:
        raise BadInput(f"nothing to evaluate: {why}")
    metrics: dict[str, object] = {}
    tasks: list[str] = []
    data_digest = ""
    if run.spec.evaluate and run.spec.evaluate.heldout:
        progress.doing("importing JAX")
        from .evaluate.heldout import evaluate_heldout

        assert run.spec.data.eval is not None
        keys = maxtext_config.resolved(run.spec.model.name, plan.maxtext_overrides(run.spec))
        heldout = evaluate_heldout(
            run.path(paths.export(manifest["step"])),
            [run.spec.data.eval],
            text_column=run.spec.data.text,
            max_target_length=int(keys.get("max_target_length", 2048)),
            doing=progress.doing,
            progress=progress.counter("documents"),
        )
        metrics["heldout"], data_digest = asdict(heldout), heldout.data_digest
        tasks.append("heldout")
        for warning in heldout.warnings:
            _log.warning("held-out evaluation: %s", warning)
    key = published.write_evaluation(run, manifest, data_digest, tasks, metrics)
    events.write("evaluation.done", step=manifest["step"], key=key)


_JOBS: dict[str, Callable[[Run, EventLog, ProgressRecord], None]] = {"export": export, "evaluate": evaluate}
