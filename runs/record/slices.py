"""slices.json: what was asked of the platform, and where it is. Each platform writes its own fields into it."""

from __future__ import annotations

from typing import Any

from ..errors import Damaged
from . import paths
from .run import Run


def read_slices(run: Run) -> dict[str, Any] | None:
    """slices.json if it is this directory's own: not that of the directory which this one is a copy of.

    Raises:
      Damaged: it is no record of slices.
      BadInput: a newer version wrote it.
    """
    record = _read(run)
    return None if record is None or _is_copied(run, record) else record


def are_elsewhere(run: Run) -> bool:
    """Whether slices.json is that of the directory which this one is a copy of; False if it is damaged."""
    try:
        record = _read(run)
    except Damaged:
        return False
    return record is not None and _is_copied(run, record)


def _is_copied(run: Run, record: dict[str, Any]) -> bool:
    # The id is made from the place of the directory, so a copy or a moved directory has another.
    return bool(run.copied_from) and record.get("run_id") != run.run_id


def _read(run: Run) -> dict[str, Any] | None:
    record = run.read(paths.SLICES)
    if record is None:
        return None
    if not isinstance(record.get("state"), str) or not isinstance(record.get("slices", []), list):
        raise Damaged(f"{run.path(paths.SLICES)}: not a record of slices; the file is damaged")
    return record
