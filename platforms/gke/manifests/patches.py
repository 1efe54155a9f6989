"""Merges the user's patches (`gke.head`, `gke.worker`, `gke.jobs.<name>.patch`) into a pod template. Pure.

Patches of protected fields are refused with the spec (runs/spec/patch_rules.py), before anything is created.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ....runs.spec.patch_rules import identities
from ..k8s_json import Json


def merge(template: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    """The template with the patch applied; neither argument is changed.

    Mappings are merged, lists of named items (containers, env, volumes, ports, ...) are merged item by item, other
    values are replaced, null deletes.
    """
    return _mapping(template, patch, "")


def _mapping(below: Mapping[str, Any], above: Mapping[str, Any], container: str) -> Json:
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
        # A variable is replaced whole: `value` merged into `valueFrom` would be two sources, which Kubernetes refuses.
        whole = field == "env" or not isinstance(item, dict)
        place = places.pop(name, None) if whole else places.setdefault(name, len(merged))
        if place is None or place == len(merged):
            merged.append(copy.deepcopy(item) if whole else _mapping({}, item, name))
        else:
            merged[place] = copy.deepcopy(item) if whole else _mapping(merged[place], item, name)
    return merged
