"""Small files by which the steps of a kfp.local pipeline tell the runner how they ended: one a step, numbered.

The runner sets in the environment which instance its steps act for (`INSTANCE`), whether provision takes the run over
(`TAKE_OVER`), the hash of its spec (`SPEC_HASH`), and the folder of the files (`NOTES`). On a cluster none of these is
set, and no file is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..runs.store import records

INSTANCE, TAKE_OVER, NOTES = "ELASTIC_TPU_INSTANCE", "ELASTIC_TPU_TAKE_OVER", "ELASTIC_TPU_NOTES"
SPEC_HASH = "ELASTIC_TPU_SPEC_HASH"


@dataclass(frozen=True)
class Note:
    """How a step ended.

    Attributes:
      code: its exit code; None while it runs.
      reason: why it failed.
      summary, values: its `StageResult`, if it is complete.
    """

    step: str
    code: int | None = None
    reason: str = ""
    summary: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


class NoteFile:
    """The file of one step; writes nothing without a runner."""

    def __init__(self, step: str) -> None:
        folder = os.environ.get(NOTES)
        self._path: Path | None = None
        if folder:
            number = sum(1 for _ in Path(folder).glob("*.json"))
            self._path = Path(folder) / f"{number:03d}-{step}.json"
            self.write(Note(step))

    def write(self, note: Note) -> None:
        """Replace the note atomically."""
        if self._path is not None:
            temporary = self._path.with_suffix(".tmp")
            temporary.write_bytes(records.dump(asdict(note)))
            temporary.rename(self._path)


def read_notes(folder: Path) -> list[Note]:
    """The notes so far, in the order in which the steps began; the last one may still run."""
    found = (records.load(path.read_bytes(), str(path)) for path in sorted(folder.glob("*.json")))
    return [Note(r["step"], r["code"], r["reason"], r["summary"], r["values"]) for r in found]
