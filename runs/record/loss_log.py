"""The loss of every step for the report: one small file a process start, ``metrics/losses-<attempt>.json``.

TensorBoard's own files need a reader that a pipeline step does not have, and the heartbeat knows only the newest loss.
A file holds triples [step, loss, Unix seconds] in the order in which they were measured, so that steps which were done
again after a recovery stand in it twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput, NotFound
from ..store import records
from ..store.base import Store

FOLDER = "metrics/"
_NAME = re.compile(r"metrics/losses-([1-9][0-9]*)\.json")


@dataclass(frozen=True)
class Loss:
    """The loss of one step, None when it was no finite number; `time` in Unix seconds."""

    step: int
    loss: float | None
    time: float


def file_name(attempt: int) -> str:
    """Where an attempt keeps its losses."""
    return f"{FOLDER}losses-{attempt}.json"


def dump(points: Sequence[Loss], every: int) -> bytes:
    """The bytes of the file; `every`: of so many steps one was kept."""
    triples = [[p.step, None if p.loss is None else float(f"{p.loss:.7g}"), round(p.time, 3)] for p in points]
    return records.canonical({"schema": records.SCHEMA, "every": every, "losses": triples})


def load(data: bytes, name: str) -> list[Loss]:
    """The losses in the bytes of a file.

    Raises:
      BadInput: they are none, or a newer version's.
    """
    triples = records.load(data, name).get("losses")
    if not isinstance(triples, list):
        raise BadInput(f"{name}: holds no losses; it was damaged or is not ours")
    return [_point(triple, name) for triple in triples]


def _point(triple: Any, name: str) -> Loss:
    try:
        step, loss, time = triple
        finite = loss is not None and math.isfinite(loss)
        return Loss(int(step), float(loss) if finite else None, float(time))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}: {triple!r} is not [step, loss, time]; it was damaged or is not ours") from error


def read_losses(store: Store) -> tuple[Loss, ...]:
    """The losses of all attempts, in the order in which they were measured; damaged files are left out."""
    found: list[Loss] = []
    for entry in sorted(store.list(FOLDER), key=lambda entry: _attempt(entry.name)):
        if _attempt(entry.name):
            try:
                found += load(store.read(entry.name).data, entry.name)
            except (NotFound, BadInput):
                continue
    return tuple(found)


def _attempt(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0
