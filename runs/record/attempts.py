"""The process starts of a job (attempts): started.json says when one began, exit.json how it ended.

A damaged one of these files does not end the run: what events know of the attempt is written again, and the damaged
file is kept beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from ..errors import Damaged, NotFound
from ..store import records
from ..store.base import Item, Store
from . import paths
from .events import Event, EventReader
from .run import Run


def _time(text: str) -> str:
    records.parse_time(text)
    return text


class Started(BaseModel):
    """started.json. `proven_step` is in `model_fields_set` only if the process itself wrote it, not its supervisor."""

    model_config = ConfigDict(frozen=True)

    time: Annotated[str, AfterValidator(_time)]
    pid: int | None = None
    proven_step: int | None = None

    @property
    def began(self) -> datetime:
        """The time as a time."""
        return records.parse_time(self.time)


class Ended(BaseModel):
    """exit.json: the process's own exit code, the job's, why it ended, and the last lines of its log."""

    model_config = ConfigDict(frozen=True)

    exit_code: int
    code: int | None = None
    reason: str = ""
    tail: str = ""


@dataclass(frozen=True)
class Attempt:
    """One process start; None for what is not there."""

    started: Started | None = None
    ended: Ended | None = None


@dataclass(frozen=True)
class Rebuilt:
    """A damaged file that was replaced: its name, the name of the copy of the damaged one, and what is there now."""

    file: str
    aside: str
    how: str


_M = TypeVar("_M", bound=BaseModel)


def read_started(run: Run, job: str, number: int) -> Started | None:
    """started.json of an attempt, or None. Raises Damaged; BadInput if a newer version wrote it."""
    return _load(run, f"{paths.attempts(job)}/{number}/started.json", Started)


def read_ended(run: Run, job: str, number: int) -> Ended | None:
    """exit.json of an attempt, or None. Raises Damaged; BadInput if a newer version wrote it."""
    return _load(run, f"{paths.attempts(job)}/{number}/exit.json", Ended)


def _load(run: Run, name: str, kind: type[_M]) -> _M | None:
    record = run.read(name)
    try:
        return None if record is None else kind.model_validate(record)
    except ValidationError as error:
        raise Damaged(f"{run.path(name)}: {records.wrong_fields(error)}; the file is damaged") from error


def read_attempts(run: Run, job: str, tell: Callable[[Rebuilt], None]) -> dict[int, Attempt]:
    """All attempts of a job, with damaged files rebuilt from the events; for a process of that job.

    Args:
      tell: called with each file that was damaged, before it is replaced.

    Raises:
      BadInput: a newer version wrote one of the files.
    """
    folder = f"{paths.attempts(job)}/"
    found: dict[int, Attempt] = {}
    for entry in run.store.list(folder):
        number, _, file = entry.name.removeprefix(folder).partition("/")
        if not (number.isascii() and number.isdecimal() and file in ("started.json", "exit.json")):
            continue
        before = found.get(int(number), Attempt())
        read = read_started if file == "started.json" else read_ended
        try:
            record = read(run, job, int(number))
        except Damaged:
            _rebuild(run, entry.name, _from_events(run, job, int(number), file), tell)
            record = read(run, job, int(number))
        if isinstance(record, Started):
            found[int(number)] = Attempt(record, before.ended)
        elif isinstance(record, Ended):
            found[int(number)] = Attempt(before.started, record)
    return found


def _rebuild(run: Run, name: str, known: dict[str, Any] | None, tell: Callable[[Rebuilt], None]) -> None:
    try:
        item = run.store.read(name)
    except NotFound:
        return
    aside = set_aside(run.store, name, item)
    if known is None and name.endswith("exit.json"):
        tell(Rebuilt(name, aside, "removed: how the process ended is not known"))
        run.store.delete(name, item.generation)
        return
    tell(Rebuilt(name, aside, "the time of the file" if known is None else "what the events say"))
    body = known or {"time": records.timestamp(item.updated)}
    run.store.replace(name, records.dump({**body, "by": "rebuilt"}), item.generation)


def _from_events(run: Run, job: str, number: int, file: str) -> dict[str, Any] | None:
    """What the events know of an attempt, in the form of this file; None if nothing."""
    writer = "trainer" if job == "train" else job
    kind = "attempt.started" if file == "started.json" else "attempt.ended"
    mine = (e for e in EventReader(run.store).all() if (e.kind, e.writer, e.attempt) == (kind, writer, number))
    event = next(mine, None)
    if event is None:
        return None
    return _started_of(event) if file == "started.json" else _ended_of(event)


def _started_of(event: Event) -> dict[str, Any]:
    known = {key: value for key, value in event.data.items() if key in ("pid", "proven_step")}
    return {"time": records.timestamp(event.time), **known}


def _ended_of(event: Event) -> dict[str, Any] | None:
    code, reason = event.data.get("code"), event.data.get("reason", "")
    if not isinstance(code, int):
        return None
    return {"time": records.timestamp(event.time), "exit_code": code, "code": code, "final": True, "reason": reason}


def set_aside(store: Store, name: str, item: Item) -> str:
    """Copy a damaged file beside itself, under a name with the time of its last write; returns that name."""
    stamp = records.timestamp(item.updated).replace(":", "").replace("-", "")
    aside = f"{name}.damaged-{stamp}"
    store.put(aside, item.data)
    return aside
