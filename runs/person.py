"""A person at a terminal as the one who starts a run: `user@host` stays the same, so a name template must not."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass
from pathlib import Path

from . import load, records
from .claim import read_claim
from .errors import BadInput, ExitCode, NotFound
from .result import read_result
from .run import STATUS, Run, create_run, open_run, start_record
from .spec import is_bucket
from .status import load_status
from .store import open_store


@dataclass(frozen=True)
class Started:
    """A run to drive, and whether it is one that was started before and is not over."""

    run: Run
    resumed: bool


def holder() -> str:
    """This user on this host, as a claim names it."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def start(source: str, who: str) -> Started:
    """The run of a spec or of a run directory.

    A name with a template is a new run each time, unless the last one that this person started from the same spec
    would be resumed by running again: a launcher that was killed or interrupted finds its run.
    """
    if not source.endswith((".yaml", ".yml")):
        if not is_bucket(source) and Path(source).is_file():
            raise BadInput(f"{source}: a spec's name ends in .yaml or .yml; rename it, or give a run directory")
        return Started(open_run(source), True)
    spec = load.read_spec(source)
    if not load.has_template(spec):
        run = create_run(spec)
        return Started(run, read_claim(run.store) is not None)
    starts = open_store(spec.run.output)
    record = start_record(f"{who}\n{spec.run.name}")
    try:
        last = open_run(records.load(starts.read(record).data, record)["run"])
        same = last.spec.model_copy(update={"run": spec.run}) == spec
        if same and _would_resume(last):
            return Started(last, True)
    except (NotFound, BadInput):
        pass  # the first one, or its directory is gone
    run = create_run(load.expand_name(spec, who))
    starts.put(record, records.dump({"run": run.uri, "holder": who}))
    return Started(run, False)


def _would_resume(run: Run) -> bool:
    """Whether running again goes on with this run: it is driven, or it was interrupted or lost before its result."""
    claim = read_claim(run.store)
    if claim is None or claim.claim.state != "done":
        return claim is not None
    status = load_status(run.read(STATUS))
    ended_well_enough = (None, ExitCode.INFRASTRUCTURE, ExitCode.ENDED_ON_REQUEST, ExitCode.EVICTED)
    return read_result(run) is None and status is not None and status.exit in ended_well_enough
