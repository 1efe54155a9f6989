"""A person at a terminal as the one who starts a run: `user@host` stays the same, so a name template must not."""

from __future__ import annotations

import getpass
import hashlib
import socket
from dataclasses import dataclass

from . import load, records
from .claim import read_claim
from .errors import ElasticTPUError, NotFound
from .run import Run, create_run, open_run
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

    A name with a template is a new run each time, unless the last one that this person started from it is not over:
    a launcher that was killed finds its run again.
    """
    if not source.endswith((".yaml", ".yml")):
        return Started(open_run(source), True)
    spec = load.read_spec(source)
    if not load.has_template(spec):
        run = create_run(spec)
        return Started(run, read_claim(run.store) is not None)
    starts = open_store(spec.run.output)
    key = hashlib.sha256(f"{who}\n{spec.run.name}".encode()).hexdigest()[:16]
    record = f".starts/{key}.json"
    try:
        last = open_run(records.load(starts.read(record).data, record)["run"])
        claim = read_claim(last.store)
        same = last.spec.model_copy(update={"run": spec.run}) == spec
        if same and claim is not None and claim.claim.state == "held":
            return Started(last, True)
    except (NotFound, ElasticTPUError):
        pass  # the first one, or its directory is gone
    run = create_run(load.expand_name(spec, who))
    starts.put(record, records.dump({"run": run.uri, "holder": who}))
    return Started(run, False)
