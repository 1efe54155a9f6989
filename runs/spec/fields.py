"""The types of a spec's fields (durations, names, labels, plain data) and the base class of its sections.

An error says what the value must be. A `title` is the type in a user's words, for the JSON Schema and docs/spec.md.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

from ..units import format_duration, parse_duration


def _whole(value: object) -> object:
    """Accept 20.0 and "20.0" as 20: some orchestrators pass numbers as doubles. A truth value is refused."""
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,4000}\.0+\s*", value):
        return value.strip().partition(".")[0]
    return value


def _text(value: str) -> str:
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError("must be plain text, with no null or surrogate characters")
    return value


_DURATION_SCHEMA = {
    "title": "duration such as 4h",
    "anyOf": [
        {"type": "string", "pattern": r"^\s*([0-9]+(\.[0-9]+)?\s*|([0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)\s*)+)$"},
        {"type": "number", "exclusiveMinimum": 0},
    ],
}
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(_DURATION_SCHEMA),
]
"""Seconds; written as text such as ``4h``."""
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4096), AfterValidator(_text)]
Whole = Annotated[int, BeforeValidator(_whole)]
Positive = Annotated[int, Field(ge=1), BeforeValidator(_whole)]  # the bound first, so that the JSON Schema has it too
LabelKey = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9][a-z0-9.-]{0,251}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
Label = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]


_KUBERNETES_NAME = r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"


def _kubernetes_name(value: str) -> str:
    if not re.fullmatch(_KUBERNETES_NAME, value):
        raise ValueError("must be a Kubernetes name: at most 63 lower-case letters, digits, '-' and '.'")
    return value


KubernetesName = Annotated[
    Name,
    AfterValidator(_kubernetes_name),
    WithJsonSchema({"title": "Kubernetes name", "type": "string", "pattern": f"^{_KUBERNETES_NAME}$"}),
]


def _plain(value: Any, depth: int = 0) -> Any:
    """Refuse what JSON cannot hold: the value is hashed, written to files and passed on as an argument."""
    if depth > 32:
        raise ValueError("is nested too deeply, or contains itself")
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            raise ValueError("must have only text as keys; put quotes around the others")
        for inner in value.values():
            _plain(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _plain(inner, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    elif isinstance(value, str):
        _text(value)
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise ValueError(f"must be text, a number, true or false, a list or a mapping, not a {type(value).__name__}")
    return value


Plain = Annotated[Any, AfterValidator(_plain)]


class Section(BaseModel):
    """A mapping of known fields. Unknown fields are refused; a checked section is frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)
