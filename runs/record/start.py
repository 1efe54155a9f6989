"""How a run is started from a spec, or found again.

An orchestrator's holder is new with each pipeline run, so one holder gets one run of a spec. A person's holder
(``user@host``) never changes, so a name with a template gives a person a new run each time, unless the last one was
interrupted.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from ..errors import BadInput, Changed, Exists, ExitCode, NotFound, Problem
from ..spec import bucket_files, load
from ..spec.rules import contradictions
from ..spec.run_spec import RunSpec, is_bucket, is_spec_name
from ..store import records
from ..store.base import Store
from ..store.open import open_store
from . import paths
from .claim import read_claim
from .result import read_result
from .run import Run, create_run, differences, has_spec, open_for_work, open_run
from .starts import Starts
from .status import read_status

_STARTS_WITHIN = timedelta(minutes=1)
"""From the record of a name to its run; a starter that takes longer has died."""


def this_person() -> str:
    """This user on this host, as the holder of a claim: ``user@host``."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def is_spec(source: str) -> bool:
    """Whether `source` names a spec, by its suffix .yaml or .yml; otherwise it is the URI of a run directory.

    On this machine a folder is a run directory, and anything else that exists is read, or refused, as a spec.
    """
    path = os.path.expanduser(source)  # noqa: PTH111 - like the next line it never raises, whatever the text is
    if is_bucket(source) or not os.path.lexists(path):
        return is_spec_name(source)
    return not os.path.isdir(path)  # noqa: PTH112


def start_or_open(
    source: str,
    holder: str,
    login: Callable[[RunSpec], None],
    admit: Callable[[RunSpec], None] = lambda spec: None,
    *,
    person: bool = False,
    moved: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    when: datetime | None = None,
) -> Run:
    """Start the run of a spec, or open the run that it was started as; a run directory is opened as it is.

    A name without a template is one run for every holder. A name with a template is expanded once for the holder of an
    orchestrator (docs/contracts.md 2). For a person it is expanded anew, unless running the last run again would resume
    it: a launcher that was killed or interrupted finds its run.

    Args:
      source: path or URI of a spec, which is read once, or URI of a run directory.
      holder: the orchestrator's run, or ``user@host``.
      login: called with the spec before anything of a run is written; raises when this process cannot log in.
      admit: called with the spec before a run that is not there yet is written; raises if the platform would refuse it.
      person: the holder is a person.
      moved: as for `open_for_work`.
      tell: called with lines of progress, and with what of the input files in buckets could not be looked into.
      when: as for `expand_name`; of the holder's run, so the same for each of its stages.

    Raises:
      BadInput: the spec or its input files are wrong, a stored spec too; there is no run, its spec.yaml was changed
        since it was started, or the run's name is taken, by another spec or, once it is expanded, by another holder's
        run.
    """
    if not is_spec(source):
        opened = open_for_work(source, moved)
        # As a new one is: whoever may write the directory may have written a spec that `plan` refuses.
        if problems := contradictions(opened.spec):
            raise BadInput(problems)
        return opened
    spec = load.read_spec(source)
    login(spec)

    def admit_new() -> None:
        admit(spec)
        bucket_files.require(spec, tell)

    if not load.has_template(spec):
        if not has_spec(open_store(spec.uri)):
            admit_new()
        if not person:
            Starts(open_store(spec.run.output)).note(holder, spec.run.name, spec.uri)
        return create_run(spec)
    start = _start_for_person if person else _start_for_orchestrator
    return start(spec, holder, when, admit_new)


def find_run(source: str, holder: str) -> Run | None:
    """The run of a release: of a run directory, or of a spec that this holder has started. Starts nothing.

    Returns None when no run was started: there is nothing to release. A run of the spec's name that was started from
    another spec belongs to somebody else, unless this holder drives it: then the spec was edited meanwhile.
    """
    if not is_spec(source):
        return open_run(source)
    spec = load.read_spec(source, with_inputs=False)
    if load.has_template(spec):
        try:
            uri = Starts(open_store(spec.run.output)).run_of(holder, spec.run.name)
        except NotFound:
            return None
        # The process that wrote the record may have died after that.
        return open_run(uri) if has_spec(open_store(uri)) else None
    if not has_spec(open_store(spec.uri)):
        return None
    found = open_run(spec.uri)
    return found if found.spec_hash == spec.hash() or (found.read(paths.CLAIM) or {}).get("holder") == holder else None


def runs_below(source: str, holder: str) -> list[str] | None:
    """URIs of the runs that this holder started below `source`; None if it is no output below which runs start."""
    if is_spec(source):
        return None
    output = open_store(source.rstrip("/"))
    starts = Starts(output)
    if has_spec(output) or not starts.any():
        return None
    return [uri for uri in starts.runs_of(holder) if has_spec(open_store(uri))]


def last_of(spec: RunSpec, who: str) -> str | None:
    """URI of the last run that this person started from a spec whose name has a template; None if there is none."""
    try:
        return Starts(open_store(spec.run.output)).last_of_person(who, spec.run.name)
    except (NotFound, BadInput):
        return None


def _start_for_orchestrator(spec: RunSpec, holder: str, when: datetime | None, admit_new: Callable[[], None]) -> Run:
    """The same run for every caller with this holder: the first one creates the record, the others follow it."""
    output = open_store(spec.run.output)
    starts = Starts(output)
    with suppress(NotFound):
        return create_run(_named(spec, starts.run_of(holder, spec.run.name)))
    admit_new()
    expanded = load.expand_name(spec, holder, when)
    _take_name(output, spec, expanded, holder)
    return create_run(_named(spec, starts.note(holder, spec.run.name, expanded.uri)))


def _named(spec: RunSpec, uri: str) -> RunSpec:
    return spec.model_copy(update={"run": spec.run.model_copy(update={"name": uri.rpartition("/")[2]})})


def _take_name(output: Store, spec: RunSpec, expanded: RunSpec, holder: str) -> None:
    """Record, before the run is created, that its name is this holder's.

    Without this a second pipeline run of a day would find the run of the first one complete, and succeed for nothing.
    A name whose run is not there (it was deleted, or its starter died) is free again after a minute.

    Raises:
      BadInput: the name is the run of another holder, or of a spec without a template.
    """
    record = f".starts/names/{expanded.run.name}.json"
    mine = records.dump({"holder": holder})
    there = has_spec(open_store(expanded.uri))  # before the record is looked at, which is written before the run is
    try:
        if not there:
            output.create(record, mine)
            return
    except Exists:
        pass
    owner = "another holder"
    try:
        found = output.read(record)
        owner = str(records.load(found.data, f"{output.uri}/{record}").get("holder"))
        if owner == holder:
            return
        if not there and output.now() - found.updated > _STARTS_WITHIN:
            output.replace(record, mine, found.generation)
            return
    except (NotFound, Changed):
        pass
    cure = (
        f"becomes {expanded.run.name!r}, which is the run {expanded.uri} of {owner}; use {{run}} in it, so that each "
        "has a run of its own, or give that directory to go on with it"
    )
    raise BadInput([Problem("run.name", spec.run.name, cure)])


def _start_for_person(spec: RunSpec, who: str, when: datetime | None, admit_new: Callable[[], None]) -> Run:
    """The last run that this person started from this spec, if running again resumes it; otherwise a new one."""
    output = open_store(spec.run.output)
    starts = Starts(output)
    try:
        last = open_for_work(starts.last_of_person(who, spec.run.name))
        if not differences(last.spec.model_copy(update={"run": spec.run}), spec) and _resumes(last):
            return last
    except (NotFound, BadInput):
        pass  # there is no last run, or its directory is gone, damaged or changed
    expanded = load.expand_name(spec, who, when)
    if not has_spec(open_store(expanded.uri)):
        admit_new()
    _take_name(output, spec, expanded, who)
    run = create_run(expanded)
    starts.note_person(who, spec.run.name, run.uri)
    return run


def _resumes(run: Run) -> bool:
    """Whether running again resumes this run: it is driven, or was interrupted or lost before it had a result."""
    claim = read_claim(run.store)
    if claim is None or claim.claim.state != "done":
        return claim is not None
    status = read_status(run)
    return read_result(run) is None and status is not None and ExitCode.of(status.exit).resumable
