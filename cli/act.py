"""Commands by which a person acts on a run, whoever drives it: cancel, release, verify, kill-slice."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from ..platforms.open import open_platform
from ..runs.errors import BadInput, ElasticTPUError, ExitCode, Infrastructure, NotFound
from ..runs.record import paths, proof, published, start
from ..runs.record.claim import Claim, Seen, is_stale, read_claim
from ..runs.record.driver import stop_by_person
from ..runs.record.events import EventLog
from ..runs.record.result import proven_result, read_result
from ..runs.record.run import Run, open_run
from ..runs.record.status import load_status
from ..runs.spec.run_spec import is_bucket

_PATIENT = 2.0  # seconds that nobody has to be told why


def cancel(uri: str) -> None:
    """Write a stop into the claim as it is, and say who drives the run."""
    run = open_run(uri)
    before = read_claim(run.store)
    driven = before is not None and not is_stale(before, run.store.now())
    claim = _stop(run)
    status = load_status(run.read(paths.STATUS))
    where = f"; training is at step {status.step}" if status is not None and status.phase != "ended" else ""
    console = Console(soft_wrap=True, highlight=False)
    if claim.state == "done":
        console.print("the run is over already; nothing to stop")
    elif driven:
        console.print(f"stop asked for{where}. {claim.holder} drives the run, sees it, and gives the slices back.")
    else:
        console.print(f"stop asked for{where}. {claim.holder} drove the run and is gone, so give the slices back with")
        console.print(f"  elastic-tpu release {shlex.quote(run.uri)}")


def _stop(run: Run) -> Claim:
    try:
        log = EventLog(run.store, "person")
        return stop_by_person(run.store, start.holder(), on_event=log.hook)
    except NotFound as error:
        raise BadInput(f"{run.uri}: nobody has driven this run; there is nothing to cancel") from error


def _claim(run: Run) -> Seen | None:
    try:
        return read_claim(run.store)
    except BadInput:
        return None  # a damaged claim must not keep slices from being given back


def release(uri: str) -> int:
    """Stop, give everything back, and show what was there."""
    run = open_run(uri)
    console = Console(highlight=False, soft_wrap=True)
    seen = _claim(run)
    # Simulated slices that nobody drives end themselves; a stop would make it look as if somebody still did.
    over = seen is None or (run.spec.platform == "local" and is_stale(seen, run.store.now()))
    if not over and _stop(run).state == "stop":
        console.print("stop asked for; what runs saves and ends, which may take a while")
    began, told = time.monotonic(), set[str]()

    def waiting(what: str) -> None:
        if what not in told and time.monotonic() - began > _PATIENT:
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
    """Check every proof; each line says what was checked and whether it holds."""
    run = open_run(uri)
    console = Console(highlight=False, soft_wrap=True)
    bad = 0

    def tell(what: str, why: str) -> None:
        nonlocal bad
        bad += bool(why)
        console.print(f"{'FAIL' if why else 'ok  '} {what}" + (f": {why}" if why else ""), markup=False)

    steps = proof.recorded_steps(run.store)
    for step in steps:
        if step != steps[-1] and not proof.is_finished(run.store, step):
            console.print(f"gone checkpoint {step}: removed by retention, its proof goes next", markup=False)
            continue
        problems = proof.check(run.store, step)
        tell(f"checkpoint {step}", "; ".join(problems[:3]))
    if not steps:
        tell("checkpoints", "none is proven")
    if read_result(run) is not None:
        tell("result", proven_result(run)[1])
        if run.spec.export:
            # A bucket keeps a crc32c of each object, the manifest a sha256: not comparable without reading all of it.
            tell("export" + (" (sizes only)" if is_bucket(run.uri) else ""), _export_problems(run))
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


def _tell_evaluation(run: Run, tell: Callable[[str, str], None]) -> None:
    try:
        evaluation, why = published.evaluation_of(run)
        tell("evaluation", why)
        if evaluation is not None:
            report = published.judge_gate(run, evaluation)
            tell("gate", "; ".join(report.problems))
    except ElasticTPUError as error:
        tell("evaluation", str(error))


def kill_slice(uri: str, index: int, whole: bool) -> None:
    """SIGKILL, with no notice."""
    Console(highlight=False).print(open_platform(open_run(uri)).kill_slice(index, whole))
