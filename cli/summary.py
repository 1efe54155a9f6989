"""What `elastic-tpu run` prints at its end, in at most 25 lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..runs.errors import ElasticTPUError, ExitCode
from ..runs.judge import goodput
from ..runs.record import slice_counts
from ..runs.record.events import EventReader, is_simulated
from ..runs.record.published import evaluation_of, judge_gate
from ..runs.record.result import read_result
from ..runs.record.run import Run
from ..runs.spec.gate import HELDOUT, is_figure
from ..stages.results import StageResult
from .story import recovery_parts


def summary(
    run: Run, results: Mapping[str, StageResult], code: int, error: str, *, superseded: bool = False, stage: str = ""
) -> list[str]:
    """What happened, the results, and what to do next.

    Args:
      results: of the stages that are complete, by name.
      code: the exit code of the command.
      error: why it is not 0.
      superseded: another process drives the run.
      stage: name of the stage that failed, if one did.
    """
    lines = ["", f"run            {run.uri}"]
    events = EventReader(run.store).all()
    story = goodput.measure(events, datetime.now(UTC))
    for number, recovery in enumerate(story.recoveries[-4:], start=max(1, len(story.recoveries) - 3)):
        where = "in the same process" if recovery.in_process else "in a new process"
        lines += [
            f"recovery {number}     {recovery.cause}: killed at step {recovery.reached}, restored {recovery.restored}, "
            f"{recovery.steps_lost} steps lost, {where}",
            f"               {recovery_parts(recovery)}" + (f"; {words}" if (words := recovery.result_words) else ""),
        ]
    lines += [f"slices         {change}" for change in slice_counts.changes(events)[-4:]]
    result = read_result(run)
    if result is not None:
        simulated = " (simulated slices)" if is_simulated(run.spec.traits, events) else ""
        share = "" if result.goodput is None else f", goodput {100 * result.goodput:.0f} %{simulated}"
        lines.append(f"training       step {result.final_step} proven, {result.counted}{share}")
        kinds = ", ".join(f"{k.replace('_', ' ')} {v:.1f}" for k, v in result.seconds_by_kind.items() if v >= 0.05)
        lines.append(f"seconds        {kinds}")
    lines += _evaluation(run)
    if "export" in results and "model" in results["export"].values:
        lines.append(f"model          {results['export'].values['model']}")
    if "release" in results:
        lines.append(f"slices         {results['release'].summary}")
    if code:
        lines.append(f"not complete   exit code {code}: {error}")
    if superseded:
        lines.append(f"follow it      elastic-tpu status --watch {shlex.quote(run.uri)}")
    elif ExitCode.of(code).resumable:
        lines.append(f"go on with     elastic-tpu run {shlex.quote(run.uri)}")
    elif code == ExitCode.LIMIT_SPENT:
        lines.append("go on with     a larger limit, under another run.name: the spec of a run never changes")
        lines.append(f"look into      elastic-tpu report {shlex.quote(run.uri)}")
    elif code == ExitCode.GATE_FAILED:
        lines.append(f"look into      elastic-tpu report {shlex.quote(run.uri)}")
    elif code:
        job = f" --job {stage}" if stage in ("export", "evaluate") else ""
        lines.append(f"look into      elastic-tpu logs {shlex.quote(run.uri)}{job}")
    return lines


def after_detaching(run: Run) -> list[str]:
    """What to do with a run that this process has left."""
    uri = shlex.quote(run.uri)
    return [
        "",
        f"run            {run.uri}",
        "left           training goes on by itself and frees the slices at its end; attach to export and evaluate",
        f"attach         elastic-tpu run {uri}",
        f"look           elastic-tpu status --watch {uri}",
        f"stop           elastic-tpu release {uri}",
    ]


def _evaluation(run: Run) -> list[str]:
    try:
        evaluation, _ = evaluation_of(run)
        if evaluation is None:
            return []
        report = judge_gate(run, evaluation)
    except ElasticTPUError as error:
        return [f"evaluation     {error}"]
    rows = evaluation_rows(evaluation["metrics"], [str(line) for line in report.lines], report.invalid)
    return [f"{label:<15}{text}" for label, text in rows]


def evaluation_rows(
    metrics: Mapping[str, Any], gate_lines: Sequence[str], invalid: Sequence[str]
) -> list[tuple[str, str]]:
    """What an evaluation comes to, as labels and texts: the held-out figures, what is wrong with them, the gate."""
    rows = _heldout(metrics.get(HELDOUT)) + [("evaluation", f"INVALID: {why}") for why in invalid]
    return rows + [("gate", line) for line in gate_lines or ("no gate",)]


def _heldout(metrics: object) -> list[tuple[str, str]]:
    """The held-out figures that are finite numbers; an evaluator of the user's own may have others, or none."""
    found = metrics if isinstance(metrics, Mapping) else {}
    texts = {
        "loss": "loss {:.4f} a token",
        "perplexity": "perplexity {:.2f}",
        "bits_per_byte": "{:.3f} bits a byte",
        "tokens": "{} tokens",
        "uniform_loss": "a model that knows nothing: loss {:.4f}",
    }
    told = {name: text.format(found[name]) for name, text in texts.items() if is_figure(found.get(name))}
    first = ", ".join(told[name] for name in ("loss", "perplexity", "bits_per_byte") if name in told)
    second = "; ".join(told[name] for name in ("tokens", "uniform_loss") if name in told)
    return [(label, text) for label, text in (("held-out", first), ("", second)) if text]
