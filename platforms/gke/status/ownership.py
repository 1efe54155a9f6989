"""Whether an object in the cluster is this run's, and whether it is still in use. Pure.

By its annotation, which names the run directory. Where somebody removed that, by the uid in slices.json.
"""

from __future__ import annotations

from collections.abc import Callable

from ....runs.errors import BadInput
from ....runs.record.run import Run
from .. import names
from ..k8s_json import Json, is_being_deleted
from . import state


def is_ours(found: Json, run: Run, recorded: Callable[[], str] = str) -> bool:
    """Whether an object was made for this run directory, and not for another run with the same name.

    Args:
      recorded: gives the uid in slices.json, empty if none is there; asked only if the annotation is missing.
    """
    owner = _annotation(found, names.RUN_URI)
    return bool(uid := recorded()) and found["metadata"].get("uid") == uid if owner is None else owner == run.uri


def require_ours(kind: str, found: Json, run: Run, namespace: str, recorded: Callable[[], str] = str) -> None:
    """Check that a JobSet or Job (`kind`) was made for this run directory, from this spec.

    Args:
      recorded: as for `is_ours`.

    Raises:
      BadInput: it is another run's, or was made from another spec; names whose it is.
    """
    name, owner = found["metadata"]["name"], _annotation(found, names.RUN_URI)
    if not is_ours(found, run, recorded):
        raise BadInput(
            f"{kind} {name} in namespace {namespace} belongs to {owner or 'somebody else'}; choose another run.name or "
            "gke.namespace"
        )
    found_hash = _annotation(found, names.SPEC_HASH)
    if found_hash != run.spec_hash and (found_hash is not None or not recorded()):
        raise BadInput(
            f"{kind} {name} was created from another spec (hash {found_hash or 'unknown'}, this run's is "
            f"{run.spec_hash}); delete it first (`elastic-tpu release {run.uri}`), or choose another run.name"
        )


def is_active(found: Json) -> bool:
    """Whether a JobSet or Job has neither ended nor been deleted."""
    return not state.is_over(found) and not is_being_deleted(found)


def _annotation(found: Json, key: str) -> str | None:
    value = (found["metadata"].get("annotations") or {}).get(key)
    return None if value is None else str(value)
