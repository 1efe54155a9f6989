"""Commands by which a person acts on a run, whoever drives it: cancel, release, verify, kill-slice."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from ..platforms.open import open_platform
from ..runs.errors import BadInput, Damaged, ElasticTPUError, ExitCode, Infrastructure, NotFound
from ..runs.record import paths, proof, published
from ..runs.record.claim import Claim, StoredClaim, is_stale, read_claim
from ..runs.record.driver import stop_by_person
from ..runs.record.events import EventLog
from ..runs.record.result import proven_result, read_result
from ..runs.record.run import Run, open_run
from ..runs.record.slices import are_elsewhere
from ..runs.record.start import this_person
from ..runs.record.status import read_status
from ..runs.spec.gke_rules import own_evaluator
from ..runs.spec.run_spec import is_bucket
from ..runs.store import records

_OLDER = "written by an older version"
_QUIET = 2.0  # seconds of a release before it says what it waits for


def cancel(uri: str) -> None:
    """Write a stop into the claim, whoever holds it, and say who drives the run."""
    run = open_run(uri)
    if are_elsewhere(run):
        raise BadInput(f"{_copy(run)}: nothing of this directory runs, so there is nothing to cancel")
    before = read_claim(run.store)
    driven = before is not None and not is_stale(before, run.store.now())
    claim = _stop(run)
    status = read_status(run)
    where = f"; training is at step {status.step}" if status is not None and status.phase != "ended" else ""
    console = Console(soft_wrap=True, highlight=False)
    if claim.state == "done":
        console.print("the run is over already; nothing to stop")
    elif driven:
        console.print(f"stop asked for{where}. {claim.holder} drives the run and gives the slices back.")
    else:
        console.print(f"stop asked for{where}. {claim.holder} drove the run and is gone: give the slices back with")
        console.print(f"  elastic-tpu release {shlex.quote(run.uri)}")


def _copy(run: Run) -> str:
    return f"{run.uri} is a copy of the run {run.copied_from}, or was moved from there"


def _stop(run: Run) -> Claim:
    try:
        log = EventLog(run.store, "person")
        return stop_by_person(run.store, this_person(), on_event=log.hook)
    except NotFound as error:
        raise BadInput(f"{run.uri}: nobody has driven this run; there is nothing to cancel") from error


def _claim(run: Run) -> StoredClaim | None:
    try:
        return read_claim(run.store)
    except BadInput:
        return None  # a damaged claim must not keep slices from being given back


def release(uri: str) -> int:
    """Stop the run, give everything back, and show what there was and what is left; returns 0.

    Raises:
      Infrastructure: something is left.
    """
    run = open_run(uri)
    console = Console(highlight=False, soft_wrap=True)
    if are_elsewhere(run):
        console.print(f"{_copy(run)}: what it holds is not of this directory, and stays as it is", markup=False)
        return 0
    seen = _claim(run)
    # A run that ends itself needs no stop; writing one would renew the claim, as if somebody still drove the run.
    over = seen is None or (run.spec.traits.ends_unclaimed and is_stale(seen, run.store.now()))
    if not over and _stop(run).state == "stop":
        console.print("stop asked for; training saves before it ends, which may take a while")
    began, told = time.monotonic(), set[str]()

    def waiting(what: str) -> None:
        if what not in told and time.monotonic() - began > _QUIET:
            told.add(what)
            console.print(what, markup=False)

    report = open_platform(run).release(waiting=waiting)
    table = Table("object", "existed", "deleted", "left", box=None, pad_edge=False)
    for name in report.existed:
        table.add_row(name, "yes", "yes" if name in report.deleted else "no", "")
    for name in report.left:
        table.add_row(name, "yes", "no", "LEFT")
    if table.row_count:
        console.print(table)
    else:
        console.print("nothing was held; nothing to release")
    if report.left:
        raise Infrastructure(f"not released: {', '.join(report.left)}")
    return 0


def verify(uri: str) -> int:
    """Check every proof and print a line for each; returns the exit code."""
    run = open_run(uri)
    console = Console(highlight=False, soft_wrap=True)
    bad = 0

    def tell(what: str, why: str, note: str = "") -> None:
        nonlocal bad
        bad += bool(why)
        more = why or note
        console.print(f"{'FAIL' if why else 'ok  '} {what}" + (f": {more}" if more else ""), markup=False)

    steps = proof.recorded_steps(run.store)
    for step in steps:
        if step != steps[-1] and not proof.is_finished(run.store, step):
            console.print(f"gone checkpoint {step}: removed by retention; its proof will be removed too", markup=False)
            continue
        problems = proof.check(run.store, step)
        tell(f"checkpoint {step}", "; ".join(problems[:3]))
    if not steps:
        tell("checkpoints", "none is proven")
    try:
        result = read_result(run)
    except Damaged as error:
        tell("result", str(error))
        return int(ExitCode.BUG)
    if result is not None:
        tell("result", proven_result(run)[1], _age(run.read(paths.RESULT)))
        if run.spec.export:
            # A bucket has the crc32c of each object, the manifest the sha256: comparing them means reading all files.
            manifest = published.export_of(run)[0]
            tell("export" + (" (sizes only)" if is_bucket(run.uri) else ""), _export_problems(run), _age(manifest))
        if run.spec.evaluate:
            _tell_evaluation(run, tell)
    else:
        console.print("     no result yet: training is not complete")
    return int(ExitCode.BUG) if bad else 0


def _export_problems(run: Run) -> str:
    manifest, why = published.export_of(run)
    if manifest is None:
        return why
    folder = paths.export(manifest["step"])
    for name, entry in manifest["files"].items():
        digest = run.store.digest(f"{folder}/{name}")
        if digest.startswith("sha256:") and digest != f"sha256:{entry['sha256']}":
            return f"{name} has other content than was published"
    return ""


def _tell_evaluation(run: Run, tell: Callable[[str, str, str], None]) -> None:
    try:
        evaluation, why = published.evaluation_of(run)
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


def kill_slice(uri: str, index: int, whole: bool) -> None:
    """Kill one worker of the slice with SIGKILL, or the whole slice, without notice."""
    Console(highlight=False).print(open_platform(open_run(uri)).kill_slice(index, whole))
