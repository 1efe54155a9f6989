"""Commands by which a person acts on a run, whoever drives it: cancel, release, kill-slice."""

from __future__ import annotations

import shlex
import socket
import time

from rich.table import Table

from ..runs.errors import BadInput, Infrastructure, NotFound
from ..runs.record.claim import Claim, StoredClaim, is_stale, process_is_gone, read_claim
from ..runs.record.driver import stop_by_person
from ..runs.record.events import EventLog
from ..runs.record.run import Run
from ..runs.record.slices import are_elsewhere
from ..runs.record.start import this_person
from ..runs.record.status import read_status
from .display import LastingConsole
from .given import open_given
from .login import open_as_reader
from .look import look

_QUIET = 2.0  # seconds of a release before it says what it waits for


def cancel(uri: str) -> None:
    """Write a stop into the claim, whoever holds it, and say who drives the run."""
    run = open_given(uri)
    if are_elsewhere(run):
        raise BadInput(f"{_copy(run)}: nothing of this directory runs, so there is nothing to cancel")
    before = read_claim(run.store)
    driven = before is not None and not (
        is_stale(before, run.store.now()) or process_is_gone(before.claim, socket.gethostname())
    )
    claim = _stop(run)
    status = read_status(run)
    where = f"; training is at step {status.step}" if status is not None and status.phase != "ended" else ""
    console = LastingConsole(soft_wrap=True, highlight=False)
    if claim.state == "done":
        console.print("nothing of this run is going on, so there is nothing to stop")
        if look(run)["resumable"]:
            console.print(f"the run is not complete; to go on with it:  elastic-tpu run {shlex.quote(run.uri)}")
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
    run = open_given(uri)
    console = LastingConsole(highlight=False, soft_wrap=True)
    if are_elsewhere(run):
        console.print(f"{_copy(run)}: what it holds is not of this directory, and stays as it is")
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
            console.print(what)

    report = open_as_reader(run).release(waiting=waiting)
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


def kill_slice(uri: str, index: int, whole: bool) -> None:
    """Kill one worker of the slice with SIGKILL, or the whole slice, without notice."""
    LastingConsole(highlight=False).print(open_as_reader(open_given(uri)).kill_slice(index, whole))
