"""Pydantic's validation errors of a spec as problems in the user's words: field path, value, cure.

The path of a field leaves out pydantic's names of union branches, a misspelt field is reported once and with the field
that was probably meant, and a value that may be a credential is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ..errors import Problem
from ..masking import HIDDEN, looks_secret
from . import maxtext_config
from .run_spec import LONGEST_NAME, RunSpec

# Fields with several types. After them pydantic's location names the type (the branch) that an error is about.
_UNIONS = re.compile(r"recovery|export|evaluate|local\.faults\.\d+\.down")
_FALSE = ("recovery", "export", "evaluate")
_SHOWN = 80  # characters of a value

_MESSAGES: Mapping[str, str] = {
    "string_type": "must be text; put it in quotes",
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list: [...]",
    "invalid_key": "must be text, as every key; put it in quotes",
}


@dataclass(frozen=True)
class SpecProblem:
    """One problem with one field.

    Attributes:
      location: keys and indices from the root of the document to the value.
      path: the same as a dotted path.
      kind: `unknown`: there is no such field; `missing`: a required field is not there; `wrong`: its value is refused.
      meant: paths of the fields that the user may have meant by an unknown one; their values are not known.
    """

    problem: Problem
    location: tuple[str | int, ...]
    path: str
    kind: Literal["unknown", "missing", "wrong"] = "wrong"
    meant: tuple[str, ...] = ()


def of(error: ValidationError) -> list[SpecProblem]:
    """The problems of one validation of a RunSpec, at most one for each path."""
    found: dict[str, SpecProblem] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "literal_error" and detail["ctx"].get("expected") == "False":
            continue  # of a section that may be `false`: the section's own branch reports the problem
        problem = _problem(detail)
        found.setdefault(problem.path, problem)
    return list(found.values())


def _problem(detail: ErrorDetails) -> SpecProblem:
    location: list[str | int] = []
    for part in detail["loc"]:
        if part == "[key]" or (location and _UNIONS.fullmatch(_dotted(location)) and _is_branch(str(part))):
            continue
        location.append(part)
    path = _dotted(location) or "spec"
    kind, value = detail["type"], detail["input"]
    fields = _fields_at(location)
    if kind == "missing":
        cure = "is required" + (f": a mapping of its fields ({', '.join(fields)})" if fields else "")
        return SpecProblem(Problem(path, None, cure), tuple(location), path, "missing")
    if kind == "extra_forbidden":
        known = _fields_at(location[:-1])
        close = maxtext_config.closest(str(location[-1]), known)
        cure = "is not a field here" + (f"; nearest: {', '.join(close)}" if close else f"; known: {', '.join(known)}")
        meant = tuple(_dotted([*location[:-1], name]) for name in close)
        return SpecProblem(Problem(path, _shown(location, value), cure), tuple(location), path, "unknown", meant)
    cure = _cure(detail, path, fields)
    if isinstance(value, (list, dict)) and _wants_one_value(kind, cure):
        cure = "must be one text" if kind == "string_type" else cure
        cure += f", not a {'list' if isinstance(value, list) else 'mapping'}"
        cure += "; a pattern names several files, such as data/*.parquet" if location[0] == "data" else ""
    if detail["loc"][-1] == "[key]":
        cure = f"its name {cure}"
    elif value is None:
        cure = f"is empty, {cure}"
    return SpecProblem(Problem(path, _shown(location, value), cure), tuple(location), path)


def _cure(detail: ErrorDetails, path: str, fields: list[str]) -> str:
    kind, message = detail["type"], detail["msg"]
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        names = f" of its fields ({', '.join(fields)})" if fields else ""
        return f"must be a mapping{names}" + (", or false" if path in _FALSE else "")
    if kind == "string_pattern_mismatch":
        if path == "run.name":
            return "must be letters, digits, '.', '_' and '-', beginning with a letter or digit"
        return (
            "must be a Kubernetes label: at most 63 letters, digits, '.', '_' and '-', a letter or digit at both ends"
        )
    if kind in ("string_too_long", "too_long"):
        return f"must be at most {detail['ctx'].get('max_length', LONGEST_NAME)} characters"
    if re.fullmatch(r"local\.faults\.\d+\.down", path):
        return "must be a duration such as 3s, or forever"
    if kind in _MESSAGES:
        return _MESSAGES[kind]
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", message) if isinstance(detail["input"], str) else []
        return message.replace("Input should be", "must be") + maxtext_config.nearest(str(detail["input"]), known)
    for theirs, ours in (
        ("Value error, ", ""),
        ("Input should be greater than or equal to", "must be at least"),
        ("Input should be less than or equal to", "must be at most"),
        ("Input should be", "must be"),
    ):
        message = message.replace(theirs, ours)
    return message


def _wants_one_value(kind: str, cure: str) -> bool:
    """Whether an error is that of a field with a single value, as text, a number or a duration."""
    of_text = kind in ("string_type", "int_type", "float_type", "bool_type", "literal_error")
    return of_text or cure.startswith("must be a duration")


def _is_branch(part: str) -> bool:
    return part in ("Recovery", "Export", "Evaluate", "float") or part.startswith(("function-", "literal["))


def _dotted(location: list[str | int]) -> str:
    return ".".join(str(part) for part in location)


def _shown(location: list[str | int], value: object) -> object:
    """The value for the message: None for a list or a mapping, ``<hidden>`` for a secret, long text cut."""
    if value is None or isinstance(value, (dict, list)):
        return None
    if location[0] == "secrets" or looks_secret(str(location[-1]), str(value)):
        return HIDDEN
    text = str(value)
    return f"{text[:_SHOWN]}..." if len(text) > _SHOWN else value


def _fields_at(location: list[str | int]) -> list[str]:
    """Names of the fields of the section at a location; empty if there is no section."""
    annotation: Any = RunSpec
    for part in location:
        if get_origin(annotation) in (list, dict):
            annotation = get_args(annotation)[-1]  # this part is an index or a key: go on with the item's type
            continue
        field = getattr(_section(annotation), "model_fields", {}).get(part)
        annotation = None if field is None else field.annotation
    return list(getattr(_section(annotation), "model_fields", {}))


def _section(annotation: Any) -> Any:
    """The section among the types of a field, if there is one."""
    return next((a for a in (annotation, *get_args(annotation)) if hasattr(a, "model_fields")), None)
