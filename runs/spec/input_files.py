"""Whether the local files that a spec names are there: looked at before anything is created or any slice is taken.

Buckets are left to the trainer: the launcher's credentials need not reach the data. So are, on GKE, paths in volumes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from ..errors import Problem
from .plan import NOT_FILES
from .run_spec import is_bucket

_TOKENIZER = "tokenizer.json"


def problems(document: Mapping[str, Any]) -> list[Problem]:
    """Problems with the local paths of a spec's document; what is not a path there is somebody else's problem."""
    questions: Sequence[tuple[str, str, Callable[[Path], str]]] = (
        ("data", "train", _data_problem),
        ("data", "eval", _data_problem),
        ("model", "tokenizer", _tokenizer_problem),
        ("run", "output", _output_problem),
    )
    found: list[Problem] = []
    if document.get("platform") == "gke":
        return found  # paths in the trainer's pod; contradictions.py asks for their volumes
    for section, name, question in questions:
        path = _path(document, section, name)
        if path is None:
            continue
        try:
            why = question(Path(path))
        except OSError as error:  # it cannot even be looked up: too long, a loop of links
            why = f"{error.strerror or error}; give another path"
        if why:
            found.append(Problem(f"{section}.{name}", path, why))
    return found


def _path(document: Mapping[str, Any], section: str, field: str) -> str | None:
    part = document.get(section)
    value = part.get(field) if isinstance(part, Mapping) else None
    return value if isinstance(value, str) and value not in NOT_FILES and not is_bucket(value) else None


def _data_problem(pattern: Path) -> str:
    files = [path for path in map(Path, sorted(glob(str(pattern)))) if path.is_file()]  # noqa: PTH207 - absolute
    if not files:
        return "matches no file"
    return next((f"{path} is empty" for path in files if path.stat().st_size == 0), "")


def _tokenizer_problem(folder: Path) -> str:
    if (folder / _TOKENIZER).is_file():
        return ""
    why = f"is no Hugging Face tokenizer (no {_TOKENIZER} in it)" if folder.exists() else "is not there"
    return f"{why}; give a folder with {_TOKENIZER}"


def _output_problem(folder: Path) -> str:
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not there.is_dir():
        return f"{there} is a file; give a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to; choose another folder"
