"""A person at a terminal as the one who starts a run: `user@host` stays the same, so a name template must not."""

from __future__ import annotations

import getpass
import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, Exists, ExitCode, NotFound
from ..spec import load
from ..spec.run_spec import is_bucket
from ..store import records
from ..store.open import open_store
from . import paths
from .claim import read_claim
from .result import read_result
from .run import Run, create_run, open_run
from .status import load_status


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
    status = load_status(run.read(paths.STATUS))
    ended_well_enough = (None, ExitCode.INFRASTRUCTURE, ExitCode.ENDED_ON_REQUEST, ExitCode.EVICTED)
    return read_result(run) is None and status is not None and status.exit in ended_well_enough


def start_record(who: str) -> str:
    """Where, below the output, it is on record which run somebody started from a name with a template."""
    return f".starts/{hashlib.sha256(who.encode()).hexdigest()[:16]}.json"


def start_run(source: str, holder: str) -> Run:
    """From a spec to its run, the same one for every caller with this holder (contracts.md 2).

    A name with a template is expanded once per holder: whoever comes first leaves a record under `.starts`.
    """
    spec = load.read_spec(source)
    if not load.has_template(spec):
        return create_run(spec)
    starts = open_store(spec.run.output)
    record = start_record(holder)
    expanded = load.expand_name(spec, holder)
    try:
        starts.create(record, records.dump({"run": expanded.uri, "holder": holder}))
    except Exists:
        uri = records.load(starts.read(record).data, record)["run"]
        expanded = spec.model_copy(update={"run": spec.run.model_copy(update={"name": uri.rpartition("/")[2]})})
    return create_run(expanded)


def find_run(source: str, holder: str) -> Run | None:
    """The run behind a stage's `run` parameter: a run directory, or a spec that was started by this holder.

    None when the spec was never started: nothing to release. A run of that name that was started from another spec is
    somebody else's, unless this holder drives it and the spec was edited meanwhile.
    """
    if not source.endswith((".yaml", ".yml")):
        return open_run(source)
    spec = load.read_spec(source, with_inputs=False)
    if load.has_template(spec):
        record = start_record(holder)
        try:
            uri = str(records.load(open_store(spec.run.output).read(record).data, record)["run"])
        except NotFound:
            return None
        return open_run(uri) if _is_there(uri) else None  # whoever wrote the record may have got no further
    if not _is_there(spec.uri):
        return None
    found = open_run(spec.uri)
    return found if found.spec_hash == spec.hash() or (found.read(paths.CLAIM) or {}).get("holder") == holder else None


def _is_there(uri: str) -> bool:
    try:
        open_store(uri).read(paths.SPEC)
    except NotFound:
        return False
    return True
