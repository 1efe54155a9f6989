"""`elastic-tpu verify`: every proof of a run against storage, a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..runs.errors import Damaged, ElasticTPUError, ExitCode
from ..runs.record import paths, proof, published
from ..runs.record.result import TrainingResult, proven_result, read_result
from ..runs.record.run import Run
from ..runs.spec.gke_rules import own_evaluator
from ..runs.spec.run_spec import is_bucket
from ..runs.store import records
from .display import OutputConsole
from .given import open_given

_OLDER = "written by an older version"


def verify(uri: str) -> int:
    """Check every proof and print a line for each; returns the exit code."""
    run = open_given(uri)
    console = OutputConsole(highlight=False, soft_wrap=True)
    bad = 0

    def tell(what: str, why: str, note: str = "") -> None:
        nonlocal bad
        bad += bool(why)
        more = why or note
        console.print(f"{'FAIL' if why else 'ok  '} {what}" + (f": {more}" if more else ""))

    steps = proof.recorded_steps(run.store)
    for step in steps:
        if step != steps[-1] and not proof.is_finished(run.store, step):
            console.print(f"gone checkpoint {step}: removed by retention; its proof will be removed too")
            continue
        problems = proof.check(run.store, step)
        tell(f"checkpoint {step}", "; ".join(problems[:3]))
    damaged = False
    try:
        result = read_result(run)
    except Damaged as error:
        tell("result", str(error))
        result, damaged = _result_by_proof(run, steps), True
    if result is None:
        if not damaged:
            nothing = "no checkpoint is proven yet, so there is nothing to verify"
            console.print("     " + ("no result yet: training is not complete" if steps else nothing))
        return int(ExitCode.BUG) if bad else 0
    if not damaged:
        tell("result", proven_result(run)[1], _age(run.read(paths.RESULT)))
    if run.spec.export:
        # A bucket has the crc32c of each object, the manifest the sha256: comparing them means reading all files.
        manifest = published.export_of(run, result)[0]
        tell("export" + (" (sizes only)" if is_bucket(run.uri) else ""), _export_problems(run, result), _age(manifest))
    if run.spec.evaluate:
        _tell_evaluation(run, result, tell)
    return int(ExitCode.BUG) if bad else 0


def _result_by_proof(run: Run, steps: Sequence[int]) -> TrainingResult | None:
    """What a damaged result must have said of the final checkpoint, so that what was made of it can be checked."""
    last = next((step for step in reversed(steps) if not proof.check(run.store, step)), None)
    found = None if last is None else proof.read_proof(run.store, last)
    if last is None or found is None:
        return None
    checkpoint = run.path(paths.checkpoint(last))
    return TrainingResult(last, checkpoint, found.digest, run.spec_hash, 0, 0, 0, None, {}, early_stop=False)


def _export_problems(run: Run, result: TrainingResult) -> str:
    manifest, why = published.export_of(run, result)
    if manifest is None:
        return why
    folder = paths.export(manifest["step"])
    for name, entry in manifest["files"].items():
        digest = run.store.digest(f"{folder}/{name}")
        if digest.startswith("sha256:") and digest != f"sha256:{entry['sha256']}":
            return f"{name} has other content than was published"
    return ""


def _tell_evaluation(run: Run, result: TrainingResult, tell: Callable[[str, str, str], None]) -> None:
    try:
        evaluation, why = published.evaluation_of(run, result)
        for stored in published.evaluations(run):
            if stored.why and stored.why != why:
                tell(stored.name, stored.why, "")
        if evaluation is None:
            tell("evaluation", why, "")
            return
        own = "written by the evaluator of the spec" if own_evaluator(run.spec) else _OLDER
        tell("evaluation", "", _age(evaluation, own))
        report = published.judge_gate(run, evaluation)
        wrong, note = published.check_gate(run, evaluation, report)
        problems = "; ".join((*report.problems, *([wrong] if wrong else ())))
        tell("gate" if report.lines or problems else "no gate", problems, note)
    except ElasticTPUError as error:
        tell("evaluation", str(error), "")


def _age(record: Mapping[str, Any] | None, writer: str = _OLDER) -> str:
    """What to know about a record that holds: that a change of it would not be noticed."""
    return f"no digest ({writer})" if record is not None and records.DIGEST not in record else ""
