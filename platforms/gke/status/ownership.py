"""Whose an object is, and whether it is still in use: pure, by its annotations and conditions."""

from __future__ import annotations

from ....runs.errors import BadInput
from ....runs.record.run import Run
from .. import names
from ..api.k8s_json import Raw, is_being_deleted
from . import state


def is_ours(found: Raw, run: Run) -> bool:
    """Whether an object was made for this run directory; another run may have got the same name."""
    return _annotation(found, names.RUN_URI) == run.uri


def require_ours(kind: str, found: Raw, run: Run, namespace: str) -> None:
    """Raise BadInput, naming whose it is, unless the object is this run's and of this spec."""
    name, of = found["metadata"]["name"], _annotation(found, names.RUN_URI)
    if not is_ours(found, run):
        raise BadInput(
            f"{kind} {name} in namespace {namespace} belongs to {of or 'somebody else'}; choose another run.name or "
            "gke.namespace"
        )
    theirs = _annotation(found, names.SPEC_HASH)
    if theirs != run.spec_hash:
        raise BadInput(
            f"{kind} {name} was created from another spec (hash {theirs or 'unknown'}, this one has {run.spec_hash}); "
            "release it first, or give the run another name"
        )


def lives_on(found: Raw) -> bool:
    """Whether it has not ended and nobody has deleted it."""
    return not state.is_over(found) and not is_being_deleted(found)


def _annotation(found: Raw, key: str) -> str | None:
    value = (found["metadata"].get("annotations") or {}).get(key)
    return None if value is None else str(value)
