"""What export and evaluation published in the run directory, and whether it is of this run's proven checkpoint.

A set of files is published by its manifest, which is written last; here it is compared with a listing. The manifest
also has the sha256 of every file, for `elastic-tpu verify` and for users who copy the model.

Manifest, evaluation and gate carry a digest of their own content. An evaluator of the user's own writes none; then the
digest of the evaluation that was judged is in the gate's record, which the stage writes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Damaged, ElasticTPUError
from ..spec import gate
from ..spec.gke_rules import own_evaluator
from ..store import records
from . import paths
from .result import TrainingResult, read_result
from .run import Run

EVALUATION_VERSION = 1
_MANIFEST = ("step", "spec_hash", "proof_digest", "dtype", "files", "params", "ignored", "export_digest")
_EVALUATION = ("key", "step", "export_digest", "data_digest", "tasks", "version", "metrics", "time")
_EXPORT_AGAIN = "delete the manifest and export again"
_EVALUATE_AGAIN = "delete the file and evaluate again"


def export_of(run: Run, result: TrainingResult | None = None) -> tuple[dict[str, Any] | None, str]:
    """The manifest of the export of this run's final checkpoint and "", or None and why there is none that holds."""
    result = result or read_result(run)
    if result is None:
        return None, "training has no result yet"
    folder = paths.export(result.final_step)
    try:
        manifest = run.read(f"{folder}/manifest.json")
    except Damaged as error:
        return None, f"{error}; {_EXPORT_AGAIN}"
    except ElasticTPUError as error:
        return None, str(error)
    if manifest is None:
        return None, f"{folder}/manifest.json is missing: the export was never published"
    if not _is_manifest(manifest):
        return None, f"{folder}/manifest.json is not a manifest of an export; export again"
    wrong = records.unsealed_problem(manifest, _MANIFEST) or _contradicts_itself(manifest, result.final_step)
    if wrong:
        return None, f"{folder}/manifest.json: {wrong}; {_EXPORT_AGAIN}"
    if (manifest.get("spec_hash"), manifest.get("proof_digest")) != (run.spec_hash, result.proof_digest):
        return None, f"{folder} is the export of another spec or checkpoint"
    sizes = {entry.name.removeprefix(f"{folder}/"): entry.size for entry in run.store.list(f"{folder}/")}
    for name, entry in manifest["files"].items():
        if sizes.get(name) != entry["size"]:
            return None, f"{folder}/{name} has {sizes.get(name, 'no')} bytes, its manifest says {entry['size']}"
    return manifest, ""


def _is_manifest(record: Mapping[str, Any]) -> bool:
    files = record.get("files")
    return (
        isinstance(record.get("export_digest"), str)
        and isinstance(files, dict)
        and bool(files)
        and all(isinstance(entry, dict) and isinstance(entry.get("size"), int) for entry in files.values())
    )


def _contradicts_itself(manifest: Mapping[str, Any], step: int) -> str:
    if manifest.get("step", step) != step:
        return f"step is {manifest['step']!r}, the folder's is {step}"
    digest = export_digest(manifest["files"])
    if manifest["export_digest"] != digest:
        return f"export_digest is {manifest['export_digest'][:12]}, its files give {digest[:12]}"
    return ""


def export_digest(files: Mapping[str, Mapping[str, Any]]) -> str:
    """One digest for a whole export: the names, sizes and sha256 of its files."""
    content = {name: {"size": entry["size"], "sha256": entry.get("sha256")} for name, entry in files.items()}
    return hashlib.sha256(records.canonical(content)).hexdigest()


def evaluation_key(export_digest: str, data_digest: str, tasks: list[str]) -> str:
    """Name of an evaluation: 16 hexadecimal digits of a hash of everything that the evaluation depends on."""
    parts = [export_digest, data_digest, sorted(tasks), EVALUATION_VERSION]
    return hashlib.sha256(records.canonical(parts)).hexdigest()[:16]


def write_evaluation(
    run: Run, manifest: Mapping[str, Any], data_digest: str, tasks: list[str], metrics: Mapping[str, Any]
) -> str:
    """Write the evaluation of an export, with a digest; a figure that is not finite is written as null.

    Args:
      manifest: of the export.
      data_digest: of the data that the metrics were measured on.
      tasks: what was measured.

    Returns its key.
    """
    key = evaluation_key(manifest["export_digest"], data_digest, tasks)
    record = {
        "key": key,
        "step": manifest["step"],
        "export_digest": manifest["export_digest"],
        "data_digest": data_digest,
        "tasks": tasks,
        "version": EVALUATION_VERSION,
        "metrics": finite(metrics),
        "time": records.timestamp(),
    }
    run.store.put(f"evaluation/{key}.json", records.seal(record))
    return key


def finite(value: Any) -> Any:
    """The value with null in place of each number that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class StoredEvaluation:
    """A file below evaluation/: its name and its record, or why it cannot be trusted, with the cure."""

    name: str
    record: Mapping[str, Any]
    why: str = ""


def evaluations(run: Run) -> list[StoredEvaluation]:
    """Every evaluation in the run directory, newest first; JSON with neither metrics nor export digest is none."""
    found = []
    for entry in sorted(run.store.list("evaluation/"), key=lambda entry: entry.updated, reverse=True):
        if not entry.name.endswith(".json"):
            continue
        try:
            record = run.read(entry.name) or {}
        except Damaged as error:
            found.append(StoredEvaluation(entry.name, {}, f"{error}; {_EVALUATE_AGAIN}"))
            continue
        if not {"metrics", "export_digest"} & record.keys():
            continue
        wrong = _wrong_in(run, entry.name, record)
        found.append(StoredEvaluation(entry.name, record, f"{entry.name}: {wrong}; {_EVALUATE_AGAIN}" if wrong else ""))
    return found


def _wrong_in(run: Run, name: str, record: Mapping[str, Any]) -> str:
    """What in the record of an evaluation cannot be right, with its value; its figures are judged by the gate."""
    ours = not own_evaluator(run.spec)
    versioned = ours and record.get("version") == EVALUATION_VERSION
    for field in ("key", "export_digest", *(("data_digest",) if versioned else ())):
        if not isinstance(record.get(field), str):
            return f"{field} is {record.get(field)!r}, must be text"
    metrics = record.get("metrics")
    if not isinstance(metrics, dict):
        return f"metrics is {metrics!r:.40}, must be a mapping of names to figures"
    if not ours:
        return "" if gate.has_figure(metrics) else "metrics has no figure"
    unsealed = records.unsealed_problem(record, _EVALUATION)
    if unsealed or not versioned:
        return unsealed
    tasks = record.get("tasks")
    if not isinstance(tasks, list):
        return f"tasks is {tasks!r}, must be a list"
    key = evaluation_key(record["export_digest"], record["data_digest"], [str(task) for task in tasks])
    if record["key"] != key or name != f"evaluation/{key}.json":
        return f"key is {record['key']}, its export_digest, data_digest and tasks give {key}"
    heldout = metrics.get(gate.HELDOUT)
    if not isinstance(heldout, dict):
        return ""
    for field in ("step", "export_digest", "data_digest"):
        if heldout.get(field, record.get(field)) != record.get(field):
            return f"{field} is {record.get(field)!r}, but metrics.{gate.HELDOUT}.{field} is {heldout[field]!r}"
    return ""


def evaluation_of(run: Run, result: TrainingResult | None = None) -> tuple[Mapping[str, Any] | None, str]:
    """The newest evaluation of this run's export and "", or None and why there is none.

    A newer file that cannot be trusted stands in its way: whose evaluation it was is not known.
    """
    manifest, why = export_of(run, result)
    if manifest is None:
        return None, why
    for found in evaluations(run):
        if found.why:
            return None, found.why
        if found.record["export_digest"] == manifest["export_digest"]:
            return found.record, ""
    return None, "there is no evaluation of this export"


def judge_gate(run: Run, evaluation: Mapping[str, Any]) -> gate.GateReport:
    """The gate, computed from the stored metrics each time: a changed gate needs no new evaluation."""
    wanted = run.spec.evaluate
    measured = wanted and wanted.heldout and not own_evaluator(run.spec)
    required = (gate.HELDOUT,) if measured else ()
    return gate.evaluate_gate(wanted.gate if wanted else [], evaluation["metrics"], required=required)


def record_gate(run: Run, evaluation: Mapping[str, Any], report: gate.GateReport) -> None:
    """Write gate.json: what was judged, the evaluation with its digest, and the verdict."""
    record = {
        "key": evaluation["key"],
        "evaluation_digest": records.digest(evaluation),
        "outcome": report.outcome,
        "lines": [str(line) for line in report.lines],
        "invalid": list(report.invalid),
        "time": records.timestamp(),
    }
    run.store.put(paths.GATE, records.seal(record))


def check_gate(run: Run, evaluation: Mapping[str, Any], report: gate.GateReport) -> tuple[str, str]:
    """Compare gate.json with the evaluation and its verdict now: (why it does not hold, what else to know)."""
    cure = "delete it and run again: the stage `evaluate` writes it anew"
    try:
        record = run.read(paths.GATE)
    except Damaged as error:
        return f"{error}; {cure}", ""
    if record is None:
        return "", f"no {paths.GATE} (written by an older version, or before the stage `evaluate` ended)"
    if records.DIGEST not in record:
        return f"{paths.GATE}: {records.DIGEST} is missing; {cure}", ""
    if record.get("key") != evaluation["key"]:
        return "", f"{paths.GATE} is of another evaluation, {record.get('key')}; the stage `evaluate` writes it anew"
    judged, now = str(record.get("evaluation_digest")), records.digest(evaluation)
    if judged != now and records.DIGEST in evaluation:  # that one has proven itself
        return "", f"{paths.GATE} is of an earlier evaluation; the stage `evaluate` writes it anew"
    if judged != now:
        changed = f"evaluation_digest is {judged[:12]}, the evaluation's content now gives {now[:12]}"
        return f"{paths.GATE}: {changed}: its figures were changed after they were judged; {_EVALUATE_AGAIN}", ""
    if record.get("outcome") != report.outcome:
        return f"{paths.GATE}: outcome is {record.get('outcome')!r}, judged again it is {report.outcome!r}; {cure}", ""
    return "", ""
