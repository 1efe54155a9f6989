"""The user's patches merged into a pod template.

What they must not touch is refused with the spec (runs/spec/patch_rules.py), before anything is created.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ....runs.spec.patch_rules import identities


def merge(template: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A new template: mappings merged, lists of named things merged by name, other values replaced, null deletes."""
    return _mapping(template, patch, "")


def _mapping(below: Mapping[str, Any], above: Mapping[str, Any], container: str) -> dict[str, Any]:
    merged = copy.deepcopy(dict(below))
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _value(merged.get(key), value, key, container)
    return merged


def _value(below: Any, above: Any, field: str, container: str) -> Any:
    if isinstance(above, dict):
        return _mapping(below if isinstance(below, dict) else {}, above, container)
    if not isinstance(above, list):
        return above
    old, new = identities(below or [], field, container), identities(above, field, container)
    if old is None or new is None:
        return copy.deepcopy(above)
    merged, places = list(below or []), {name: place for place, name in enumerate(old)}
    for name, item in zip(new, above, strict=True):
        # A variable has one source: a value merged into a reference would have two, which Kubernetes refuses.
        whole = field == "env" or not isinstance(item, dict)
        place = places.pop(name, None) if whole else places.setdefault(name, len(merged))
        if place is None or place == len(merged):
            merged.append(copy.deepcopy(item) if whole else _mapping({}, item, name))
        else:
            merged[place] = copy.deepcopy(item) if whole else _mapping(merged[place], item, name)
    return merged
