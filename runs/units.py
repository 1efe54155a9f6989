"""Durations, sizes and long texts, for people: the one place that reads and writes them. Standard library only.

A duration that a spec holds is written exactly and can be read again (``20m``); one that was measured is rounded for
people (``19 min 58 s``).
"""

from __future__ import annotations

import re
from itertools import pairwise

GIB = 2**30
"""Bytes in a GiB, the unit of sizes in specs and plans."""

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}  # in milliseconds
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,20})?"
_SECONDS = re.compile(rf"\s*({_NUMBER})\s*")
_PARTS = re.compile(r"\s*" + "".join(rf"(?:({_NUMBER})\s*{unit}\s*)?" for unit in reversed(_UNITS)))
_LONGEST_TEXT = 600  # characters: a change that the Kubernetes API refuses prints the whole object
_LONGEST = 36500 * 86400.0

_SHOWN = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def parse_duration(value: object) -> float:
    """Seconds from ``4h``, ``1h30m``, ``45s``, ``250ms``, ``1.5d`` or a plain number of seconds.

    Each unit stands once, the largest first.

    Raises:
      ValueError: not a duration between 1 ms and 36500 days; the message says what must be there, as pydantic wants.
    """
    from fractions import Fraction  # here, since its import takes as long as all of this package's

    number = _SECONDS.fullmatch(value) if isinstance(value, str) else None
    parts = _PARTS.fullmatch(value) if isinstance(value, str) else None
    # Exactly, so that what is written down and read again has the same hash.
    if number:
        seconds = float(Fraction(number[1]))
    elif parts and any(parts.groups()):
        counts = zip(parts.groups("0"), reversed(_UNITS.values()), strict=True)
        seconds = float(sum(Fraction(count) * unit for count, unit in counts) / 1000)
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
    """Text in one unit that `parse_duration` reads as exactly this: 14400 -> ``4h``, 90 -> ``90s``, 0.2 -> ``200ms``.

    For limits and other durations of a spec. The hash of a spec covers this text, so it must not change.
    """
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(seconds, _UNITS[unit] // 1000)
        if count >= 1 and rest == 0:
            return f"{int(count)}{unit}"
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds / 1000 == seconds else f"{seconds!r}s"


def show_duration(seconds: float, *, tenths: bool = False) -> str:
    """A measured duration for people, in its two largest units: ``3 s``, ``4 min 12 s``, ``2 h 5 min``, ``3 d 4 h``.

    Args:
      tenths: ``3.1 s`` below a minute.
    """
    if tenths and round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    left = round(seconds)
    for (size, unit), (below, name) in pairwise(_SHOWN):
        if left >= size:
            count, rest = divmod(left, size)
            return f"{count} {unit}" + (f" {rest // below} {name}" if rest // below else "")
    return f"{left} s"


def show_size(count: float) -> str:
    """Bytes for people, with three significant digits: ``512 B``, ``1.5 KiB``, ``6.66 GiB``, ``131 GiB``, ``5 TiB``."""
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop()
    return f"{count:.0f} {units[-1]}" if count >= 999.5 else f"{count:.3g} {units[-1]}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 VM``, ``4 VMs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def without_middle(text: str, longest: int = _LONGEST_TEXT) -> str:
    """The text as one line of at most `longest` characters; cut in the middle, since a refusal ends with its reason."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    head = longest * 2 // 3
    return f"{text[:head]} [...] {text[head - longest :]}"
