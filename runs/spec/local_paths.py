"""The local paths of a spec, made absolute: `~` and variables expanded, relative ones against the file they stand in.

A spec and its profile may lie in different folders. Bucket URIs stay as they are: processes of other machines read
them too, with other variables.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Problem
from .plan import NOT_FILES
from .run_spec import absolute, is_bucket

FIELDS = (("run", "output"), ("model", "tokenizer"), ("data", "train"), ("data", "eval"))
"""The fields (section, field) that hold a path or a bucket URI."""

_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([^}]*)\})")
_REPOSITORY = re.compile(r"(?:https?://huggingface\.co/|hf://)?([\w-][\w.-]*/[\w-][\w.-]*)/?")


@dataclass(frozen=True)
class Layer:
    """A YAML file of a spec: what stands in it, and its folder."""

    document: Mapping[str, Any]
    folder: Path


def resolve(
    document: Mapping[str, Any], layers: Sequence[Layer], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[Problem]]:
    """The document with absolute paths, and a problem for each that cannot be made so; it stays as written.

    Args:
      document: the layers, merged.
      layers: a field stands in the first one that has it.
      environ: the variables.
    """
    resolved = copy.deepcopy(dict(document))
    problems: list[Problem] = []
    for section, field, path, folder in _paths(document, layers):
        try:
            resolved[section][field] = absolute(_expanded(path, environ), folder)
        except _Unexpandable as error:
            problems.append(Problem(f"{section}.{field}", path, str(error)))
        except (ValueError, RuntimeError, OSError) as error:
            cure = f"is not a path of this machine ({error}); give a path or gs://bucket/..."
            problems.append(Problem(f"{section}.{field}", path, cure))
    return resolved, problems


def repositories(document: Mapping[str, Any], layers: Sequence[Layer]) -> list[Problem]:
    """A problem if the tokenizer is written as a repository of the Hugging Face hub is, and no folder is there."""
    return [
        Problem(
            f"{section}.{field}",
            path,
            "is no folder here; if it is a repository of the Hugging Face hub, get a folder with `hf download "
            f"{match[1]} --include '*token*' --local-dir tokenizer` and give that (on gke: its copy in a bucket)",
        )
        for section, field, path, folder in _paths(document, layers)
        if field == "tokenizer" and (match := _REPOSITORY.fullmatch(path)) and not os.path.exists(folder / path)  # noqa: PTH110 - never raises
    ]


def _paths(document: Mapping[str, Any], layers: Sequence[Layer]) -> Iterator[tuple[str, str, str, Path]]:
    """Section, field, path or URI, and the folder of the file that it stands in."""

    def value(of: Mapping[str, Any], section: str, field: str) -> object:
        part = of.get(section)
        return part.get(field) if isinstance(part, Mapping) else None

    for section, field in FIELDS:
        path = value(document, section, field)
        if isinstance(path, str) and path.strip() not in ("", *NOT_FILES):
            folder = next(layer.folder for layer in layers if value(layer.document, section, field) == path)
            yield section, field, path.strip(), folder


class _Unexpandable(ValueError):
    """A variable in a path has no value to put there; the message says why, and the cure."""


def _expanded(path: str, environ: Mapping[str, str]) -> str:
    """The path with the values of variables, `$NAME` or `${NAME}`."""
    if is_bucket(path) and (match := _VARIABLE.search(path)):
        raise _Unexpandable(f"{match[0]} would be expanded in a local path only; write its value")

    def value(match: re.Match[str]) -> str:
        known = environ.get(match[1] or match[2])
        if not known:
            raise _Unexpandable(f"{match[0]} is not set here; set it, or write the path out")
        if is_bucket(known):
            raise _Unexpandable(f"{match[0]} is the URI of a bucket here; write it out")
        return known

    return _VARIABLE.sub(value, path)
