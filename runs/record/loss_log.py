"""The loss of every step for the report: one small file per attempt, ``metrics/losses-<attempt>.json``.

The report cannot use TensorBoard's files: a pipeline step has no reader for them. The heartbeat has only the newest
loss. A file holds triples [step, loss, Unix seconds] in the order of measurement; a step that was done again after a
recovery is in it twice.
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
    """The loss of one step, None when it was not finite; `time` in Unix seconds."""

    step: int
    loss: float | None
    time: float


def file_name(attempt: int) -> str:
    """Name of the file with the losses of an attempt, below the run directory."""
    return f"{FOLDER}losses-{attempt}.json"


def dump(points: Sequence[Loss], every: int) -> bytes:
    """The bytes of the file; `every` = n: one of n steps was kept."""
    triples = [[p.step, None if p.loss is None else float(f"{p.loss:.7g}"), round(p.time, 3)] for p in points]
    return records.canonical({"schema": records.SCHEMA, "every": every, "losses": triples})


def load(data: bytes, name: str) -> list[Loss]:
    """The losses in the bytes of a file.

    Raises:
      BadInput: they are not losses, or a newer version wrote them.
    """
    triples = records.load(data, name).get("losses")
    if not isinstance(triples, list):
        raise BadInput(f"{name}: holds no losses; the file is damaged, or elastic-tpu did not write it")
    return [_point(triple, name) for triple in triples]


def _point(triple: Any, name: str) -> Loss:
    try:
        step, loss, time = triple
        finite = loss is not None and math.isfinite(loss)
        return Loss(int(step), float(loss) if finite else None, float(time))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}: {triple!r} is not [step, loss, time]; the file is damaged") from error


def read_losses(store: Store) -> tuple[Loss, ...]:
    """The losses of all attempts, in the order of measurement; damaged files are left out."""
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
