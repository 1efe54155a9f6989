"""Types of a spec's fields: durations, names, labels, plain data. Errors say what must be there instead."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, StringConstraints

_UNITS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}
_DURATION = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(ms|s|m|h|d|)\s*")
_LONGEST = 36500 * 86400.0


def parse_duration(value: object) -> float:
    """Seconds from ``4h``, ``20m``, ``45s``, ``1.5d`` or a plain number of seconds."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match:
        # Exactly, so that what is written down and read again has the same hash.
        seconds = float(Fraction(match[1]) * _UNITS[match[2] or "s"])
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(min(value, 2 * _LONGEST))
    else:
        raise ValueError("must be a duration such as 45s, 20m, 4h or 2d")
    if not seconds > 0:
        raise ValueError("must be a duration above zero")
    if not 0.001 <= seconds <= _LONGEST:
        raise ValueError("must be a duration between 1ms and 36500d")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest exact way to write a duration: 14400 -> ``4h``."""
    for unit in ("d", "h", "m", "s"):
        count = Fraction(seconds) / _UNITS[unit]
        if count >= 1 and count.denominator == 1:
            return f"{count}{unit}"
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds / 1000 == seconds else f"{seconds!r}s"


def _whole(value: object) -> object:
    """Numbers that came through a transport that knows only doubles (20.0, "20.0") are whole again; true is no 1."""
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,4000}\.0+\s*", value):
        return value.strip().partition(".")[0]
    return value


def _text(value: str) -> str:
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError("must be plain text, with no null or surrogate characters")
    return value


Duration = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4096), AfterValidator(_text)]
Whole = Annotated[int, BeforeValidator(_whole)]
LabelKey = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9][a-z0-9.-]{0,251}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
Label = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]


def _kubernetes_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", value):
        raise ValueError("must be a Kubernetes name: at most 63 lower-case letters, digits, '-' and '.'")
    return value


KubernetesName = Annotated[Name, AfterValidator(_kubernetes_name)]


def _plain(value: Any, depth: int = 0) -> Any:
    """Only what JSON can hold: it is hashed, written to files and passed on as arguments."""
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
    """A mapping of known fields; nobody changes one that was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)
