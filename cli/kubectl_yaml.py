"""Kubernetes objects as YAML for kubectl, which does not agree with PyYAML on which plain text is a number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

# Text that no version of YAML reads as anything but text, unless PyYAML quotes it as well (`yes`, `null`).
_PLAIN = re.compile(r"(?:--)?[A-Za-z/][^\n]*")
_WORDS = ("y", "n")  # truth values to kubectl, text to PyYAML


class _Dumper(yaml.SafeDumper):
    """Quotes text that begins as a number may, and writes nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always: an object that stands twice is written twice."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_str(text) if plain else dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


_Dumper.add_representer(str, _text)


def dump_all(documents: Iterable[dict[str, Any]]) -> str:
    """The documents as YAML, each line whole."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000))
