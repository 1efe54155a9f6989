"""What export and evaluation left in the run directory, and whether it belongs to this run's proven checkpoint.

A set of files is published by its manifest, written last; here it is read and compared with a listing. The manifest's
sha256 of every file is for `elastic-tpu verify` and for those who copy the model away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ..errors import ElasticTPUError
from ..spec import gate
from ..store import records
from . import paths
from .result import TrainingResult, read_result
from .run import Run

EVALUATION_VERSION = 1


def export_of(run: Run, result: TrainingResult | None = None) -> tuple[dict[str, Any] | None, str]:
    """The manifest of the export of this run's final checkpoint, or None and why there is none that holds."""
    result = result or read_result(run)
    if result is None:
        return None, "training has no result yet"
    folder = paths.export(result.final_step)
    try:
        manifest = run.read(f"{folder}/manifest.json")
    except ElasticTPUError as error:
        return None, str(error)
    if manifest is None:
        return None, f"{folder}/manifest.json is missing: the export was never published"
    if not _is_manifest(manifest):
        return None, f"{folder}/manifest.json is not a manifest of an export; export again"
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


def evaluation_key(export_digest: str, data_digest: str, tasks: list[str]) -> str:
    """Names an evaluation by everything that it depends on."""
    parts = [export_digest, data_digest, sorted(tasks), EVALUATION_VERSION]
    return hashlib.sha256(records.canonical(parts)).hexdigest()[:16]


def evaluation_of(run: Run) -> tuple[dict[str, Any] | None, str]:
    """The newest evaluation of this run's export, or None and why there is none."""
    manifest, why = export_of(run)
    if manifest is None:
        return None, why
    found: list[tuple[Any, dict[str, Any]]] = []
    for entry in run.store.list("evaluation/"):
        try:
            record = run.read(entry.name)
        except ElasticTPUError:
            continue
        sound = record is not None and isinstance(record.get("metrics"), dict)
        if record and sound and record.get("export_digest") == manifest["export_digest"]:
            found.append((entry.updated, record))
    if not found:
        return None, "there is no evaluation of this export"
    return max(found, key=lambda pair: pair[0])[1], ""


def judge_gate(run: Run, evaluation: Mapping[str, Any]) -> gate.GateReport:
    """The gate, computed when it is read: a changed gate needs no new evaluation."""
    conditions = run.spec.evaluate.gate if run.spec.evaluate else []
    return gate.evaluate_gate(conditions, evaluation["metrics"])
