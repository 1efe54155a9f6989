"""Whether the local files that a spec names are there: looked at before anything is created or any slice is taken.

Buckets are left to the trainer: the launcher's credentials need not reach the data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from glob import glob
from pathlib import Path
from typing import Any

from .errors import Problem
from .plan import NOT_FILES
from .spec import is_bucket

_TOKENIZER = "tokenizer.json"


def problems(document: Mapping[str, Any]) -> list[Problem]:
    """Problems with the local paths of a spec's document; what is not a path there is somebody else's problem."""
    found = []
    for name in ("train", "eval"):
        pattern = _path(document, "data", name)
        if pattern is not None and (why := _data_problem(pattern)):
            found.append(Problem(f"data.{name}", pattern, why))
    tokenizer = _path(document, "model", "tokenizer")
    if tokenizer is not None and not (Path(tokenizer) / _TOKENIZER).is_file():
        why = f"is no Hugging Face tokenizer (no {_TOKENIZER} in it)" if Path(tokenizer).exists() else "is not there"
        found.append(Problem("model.tokenizer", tokenizer, f"{why}; give a folder with {_TOKENIZER}"))
    output = _path(document, "run", "output")
    if output is not None and (why := _output_problem(Path(output))):
        found.append(Problem("run.output", output, why))
    return found


def _path(document: Mapping[str, Any], section: str, field: str) -> str | None:
    part = document.get(section)
    value = part.get(field) if isinstance(part, Mapping) else None
    return value if isinstance(value, str) and value not in NOT_FILES and not is_bucket(value) else None


def _data_problem(pattern: str) -> str:
    files = [path for path in glob(pattern) if Path(path).is_file()]
    if not files:
        return "matches no file"
    empty = [path for path in files if Path(path).stat().st_size == 0]
    return f"{empty[0]} is empty" if empty else ""


def _output_problem(folder: Path) -> str:
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not there.is_dir():
        return f"{there} is a file; give a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to; choose another folder"
