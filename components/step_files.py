"""What the steps of a pipeline leave for a runner on the same machine: a small file each, in the order they began.

The runner says in the environment who its steps act for (`INSTANCE`), that provision takes the run over (`TAKE_OVER`)
and where the notes go (`NOTES`). On a cluster none of these is set, and nothing is left.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..runs.store import records

INSTANCE, TAKE_OVER, NOTES = "ELASTIC_TPU_INSTANCE", "ELASTIC_TPU_TAKE_OVER", "ELASTIC_TPU_NOTES"


@dataclass(frozen=True)
class Note:
    """How a step ended: its exit code (None: it has begun), the reason if it failed, else its result."""

    step: str
    code: int | None = None
    reason: str = ""
    summary: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


class NoteFile:
    """A step's own note; says nothing where nobody listens."""

    def __init__(self, step: str, environment: Mapping[str, str] = os.environ) -> None:
        folder = environment.get(NOTES)
        self._path: Path | None = None
        if folder:
            number = sum(1 for _ in Path(folder).glob("*.json"))
            self._path = Path(folder) / f"{number:03d}-{step}.json"
            self.write(Note(step))

    def write(self, note: Note) -> None:
        """Replace the note, whole at any moment."""
        if self._path is not None:
            temporary = self._path.with_suffix(".tmp")
            temporary.write_bytes(records.dump(asdict(note)))
            temporary.rename(self._path)


def read_notes(folder: Path) -> list[Note]:
    """The notes so far; the last may be of a step that is under way."""
    found = (records.load(path.read_bytes(), str(path)) for path in sorted(folder.glob("*.json")))
    return [Note(r["step"], r["code"], r["reason"], r["summary"], r["values"]) for r in found]
