"""report.html: what happened in a run, on one self-contained page.

    write_report(run)          # reads the run directory, writes report.html into it
    page = render(run)         # the same page as text

Written by the collect of every stage, so it must also describe runs that failed or go on: what is not there is left
out, and what cannot be read is named on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from ..runs.errors import ElasticTPUError, NotFound, Unreachable
from ..runs.record import loss_log, paths, proof, published
from ..runs.record.claim import read_claim
from ..runs.record.events import Event, EventReader
from ..runs.record.result import read_result
from ..runs.record.run import Run
from ..runs.record.status import Status, load_status
from ..runs.spec.plan import make_plan
from ..runs.store import records
from ..runs.store.base import time_to_show
from .run_records import AttemptRow, Records
from .story import tell

NAME = "report.html"
_JOBS = ("train", "export", "evaluate")

T = TypeVar("T")
U = TypeVar("U")


def write_report(run: Run) -> str:
    """Render the page and put it into the run directory; returns its URI.

    Raises:
      Unreachable: the storage does not answer.
    """
    run.store.put(NAME, render(run).encode())
    return run.path(NAME)


def render(run: Run) -> str:
    """The page as of now.

    Raises:
      Unreachable: the storage does not answer.
    """
    from .page import page

    return page(tell(read_records(run)))


@dataclass
class _Reading:
    """Reads records, and keeps the reasons of those that could not be read in `gaps`."""

    gaps: list[str] = field(default_factory=list)

    def try_to(self, read: Callable[[], T], otherwise: U) -> T | U:
        try:
            return read()
        except Unreachable:
            raise
        except ElasticTPUError as error:
            self.gaps.append(str(error))
            return otherwise


def read_records(run: Run) -> Records:
    """Everything in the run directory that the story is told from.

    Raises:
      Unreachable: the storage does not answer. A damaged record does not raise, it is named in `gaps`.
    """
    reading, store = _Reading(), run.store
    result = reading.try_to(lambda: read_result(run), None)
    status, seen = reading.try_to(lambda: _status(run), (None, None))
    manifest = reading.try_to(lambda: published.export_of(run, result)[0], None) if result else None
    evaluation = reading.try_to(lambda: published.evaluation_of(run)[0], None) if manifest else None
    reading.gaps += [e.why for e in reading.try_to(lambda: published.evaluations(run), []) if e.why]
    events = EventReader(store).all()
    return Records(
        uri=run.uri,
        spec=run.spec,
        now=time_to_show(store),
        events=tuple(events),
        status=status,
        seen=seen,
        claim=reading.try_to(lambda: read_claim(store), None),
        result=result,
        losses=loss_log.read_losses(store),
        attempts=tuple(attempt for job in _JOBS for attempt in _attempts(run, job, events, reading)),
        proofs=reading.try_to(lambda: _proofs(run), {}),
        sizes=_sizes(run),
        manifest=manifest,
        evaluation=evaluation,
        gate=reading.try_to(lambda: published.judge_gate(run, evaluation), None) if evaluation else None,
        plan=reading.try_to(lambda: make_plan(run.spec), None),
        gaps=tuple(reading.gaps),
    )


def _status(run: Run) -> tuple[Status | None, datetime | None]:
    try:
        item = run.store.read(paths.STATUS)
    except NotFound:
        return None, None
    return load_status(records.load(item.data, paths.STATUS)), item.updated


def _proofs(run: Run) -> dict[int, proof.Proof]:
    found = {step: proof.read_proof(run.store, step) for step in proof.recorded_steps(run.store)}
    return {step: proven for step, proven in found.items() if proven is not None}


def _sizes(run: Run) -> dict[int, dict[str, int]]:
    """Bytes by file name of every checkpoint that is on storage whole; one listing."""
    found: dict[int, dict[str, int]] = {}
    for entry in run.store.list("checkpoints/"):
        folder, _, file = entry.name.removeprefix("checkpoints/").partition("/")
        step = proof.step_of(folder)
        if step is not None:
            found.setdefault(step, {})[file] = entry.size
    return {step: sizes for step, sizes in found.items() if proof.COMMIT in sizes}


def _attempts(run: Run, job: str, events: Sequence[Event], reading: _Reading) -> list[AttemptRow]:
    """The attempts of a job, from started.json and exit.json; where exit.json is missing, from attempt.ended."""
    folder = paths.attempts(job) + "/"
    files: dict[int, dict[str, dict[str, Any]]] = {}
    for entry in run.store.list(folder):
        number, _, file = entry.name.removeprefix(folder).partition("/")
        if number.isascii() and number.isdecimal() and file in ("started.json", "exit.json"):
            record = reading.try_to(partial(run.read, entry.name), None)
            files.setdefault(int(number), {})[file] = record or {}
    writer = "trainer" if job == "train" else job
    ends = {e.attempt: e for e in events if e.kind == "attempt.ended" and e.writer == writer}
    return [_attempt(job, number, files[number], ends.get(number)) for number in sorted(files)]


def _attempt(job: str, number: int, files: Mapping[str, Mapping[str, Any]], end: Event | None) -> AttemptRow:
    started, ended = files.get("started.json", {}), files.get("exit.json", {})
    in_event = end.data if end else {}
    code = ended.get("exit_code", in_event.get("code"))
    return AttemptRow(
        job,
        number,
        began=_time(started.get("time")),
        ended=_time(ended.get("time")) or (end.time if end else None),
        code=code if isinstance(code, int) else None,
        reason=str(in_event.get("reason") or ended.get("reason") or ""),
    )


def _time(text: object) -> datetime | None:
    try:
        return records.parse_time(text) if isinstance(text, str) else None
    except ValueError:
        return None
