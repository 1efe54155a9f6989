"""Checks the local input files of a spec, before anything is created or any slice is taken.

They must exist and hold what training and evaluation need (file_contents.py). Files in buckets: bucket_files.py. Not
checked: on GKE paths in volumes. The trainer finds what is wrong with these.
With a `local.trainer`, which may read other formats, files need only exist.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import IO, Any

from .. import extras
from ..errors import Problem
from ..units import GIB
from . import file_contents, machine, maxtext_config
from .file_contents import READERS, TOKENIZER
from .memory import shortage
from .plan import NOT_FILES, data_kind, memory_of, shape_of
from .run_spec import RunSpec, is_bucket


def problems(document: Mapping[str, Any]) -> list[Problem]:
    """Problems with the local paths of a spec's document; values that are not local paths are left to other checks."""
    questions: Sequence[tuple[str, str, Callable[[Path], str]]] = (
        ("data", "train", _data_problem),
        ("data", "eval", _data_problem),
        ("model", "tokenizer", _tokenizer_problem),
        ("run", "output", _output_problem),
    )
    found: list[Problem] = []
    if document.get("platform") == "gke":
        return found  # its paths are in the trainer's pod; rules.py requires the volumes
    for section, name, question in questions:
        path = _path(document, section, name)
        if path is None:
            continue
        try:
            why = question(Path(path))
        except OSError as error:  # the name is too long, or its links form a loop
            why = f"{error.strerror or error}; give another path"
        if why:
            found.append(Problem(f"{section}.{name}", path, why))
    if not _value(document, "local", "trainer"):
        if why := extras.missing("trainer"):
            found.append(Problem("platform", "local", extras.cure("trainer", why)))
        wrong = {problem.path for problem in found}
        found += [p for p in (*_contents(document), *_tokenizer(document)) if p.path not in wrong]
    return found


def machine_gib() -> float:
    """Memory of this machine, or of the container that this process is in."""
    return machine.memory() / GIB


def machine_problems(spec: RunSpec) -> list[Problem]:
    """Whether simulated slices certainly do not fit into this machine's memory, which all their devices share."""
    if spec.platform != "local" or spec.local.trainer:
        return []
    shape = shape_of(spec)
    needed = memory_of(spec, shape)
    certain, why = shortage(needed, machine_gib(), shape.devices * spec.slices.count) if needed else (False, "")
    return [Problem("train.maxtext", None, why + machine.limit_words())] if certain else []


def unread(document: Mapping[str, Any]) -> list[str]:
    """What of a spec's document `problems` cannot look into on this machine, one line a field."""
    lines = []
    for name, kind, _ in _data_sets(document):
        if (library := READERS.get(kind)) and not extras.installed(library):
            lines.append(f"data.{name} is not looked into: {library}, which reads such files, is not installed here")
    return lines


def _contents(document: Mapping[str, Any]) -> list[Problem]:
    found: list[Problem] = []
    column = _value(document, "data", "text") or "text"
    overrides = _value(document, "train", "maxtext")
    for name, kind, pattern in _data_sets(document):
        library = READERS.get(kind)
        if not isinstance(column, str) or (library and not extras.installed(library)):
            continue
        text = name == "eval" or not isinstance(overrides, Mapping) or overrides.get("tokenize_train_data") is not False
        looked_for = file_contents.Column(column, text)
        try:
            wrong = file_contents.data_problems(f"data.{name}", kind, _matches(pattern), looked_for, _open)
        except OSError as error:
            cure = f"cannot be read: {error.strerror or error}"
            wrong = [Problem(f"data.{name}", str(error.filename or pattern), cure)]
        found += file_contents.shown(wrong, f"data.{name}", str(pattern))
    return found


def _tokenizer(document: Mapping[str, Any]) -> list[Problem]:
    path = _path(document, "model", "tokenizer")
    if path is None or not extras.installed("tokenizers"):
        return []
    name, overrides = _value(document, "model", "name"), _value(document, "train", "maxtext")
    vocabulary = maxtext_config.vocabulary(str(name), overrides if isinstance(overrides, Mapping) else {})
    evaluates = document.get("evaluate") is not False and _value(document, "evaluate", "heldout") is not False
    why = file_contents.tokenizer_problem(lambda file: Path(path, file).read_bytes(), vocabulary, evaluates)
    return [Problem("model.tokenizer", path, why)] if why else []


def _data_sets(document: Mapping[str, Any]) -> list[tuple[str, str, Path]]:
    """Field in `data`, kind and pattern of each set that is in local files."""
    named = ((name, _path(document, "data", name)) for name in ("train", "eval"))
    return [(name, data_kind(path)[1] or "json", Path(path)) for name, path in named if path is not None]


def _open(path: str) -> IO[bytes]:
    return Path(path).open("rb")


def _value(document: Mapping[str, Any], section: str, field: str) -> Any:
    part = document.get(section)
    return part.get(field) if isinstance(part, Mapping) else None


def _path(document: Mapping[str, Any], section: str, field: str) -> str | None:
    value = _value(document, section, field)
    return value if isinstance(value, str) and value not in NOT_FILES and not is_bucket(value) else None


def _matches(pattern: Path) -> list[str]:
    return [path for path in sorted(glob(str(pattern))) if Path(path).is_file()]  # noqa: PTH207 - absolute


def _data_problem(pattern: Path) -> str:
    files = _matches(pattern)
    if not files:
        return "matches no file"
    return next((f"{path} is empty" for path in files if Path(path).stat().st_size == 0), "")


def _tokenizer_problem(folder: Path) -> str:
    if (folder / TOKENIZER).is_file():
        return ""
    why = f"is no Hugging Face tokenizer (no {TOKENIZER} in it)" if folder.exists() else "is not there"
    return f"{why}; give a folder with {TOKENIZER}"


def _output_problem(folder: Path) -> str:
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not there.is_dir():
        return f"{there} is a file; give a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to; choose another folder"
