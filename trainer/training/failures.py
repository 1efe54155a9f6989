"""Which exception in a chain tells what went wrong: MaxText and Orbax wrap what they catch, more than once.

What it means, with context, is decided in policy.py.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from ...runs.errors import ElasticTPUError, Unreachable
from ..checkpoint.arrays import is_transient

Kinds = type[BaseException] | tuple[type[BaseException], ...]


def own(error: BaseException) -> ElasticTPUError | None:
    """An error that this package raised on purpose, e.g. in a hook that MaxText called in a save; it keeps its code."""
    found = find(error, ElasticTPUError)
    return found if isinstance(found, ElasticTPUError) and not isinstance(found, Unreachable) else None


def telling(error: BaseException) -> tuple[str, BaseException]:
    """The kind of a failure, as policy.Failure names it, and the exception whose text tells it."""
    from_jax = find(error, jax.errors.JaxRuntimeError)
    if from_jax is not None:
        return "jax", from_jax
    storage = find(error, (OSError, Unreachable))
    if isinstance(storage, (FileNotFoundError, PermissionError)):
        storage = None  # what is not there, or not allowed, is not there for a new process either
    # tensorstore raises ValueError whatever it was, and says in the text that the storage did not answer.
    storage = storage or find(error, Exception, lambda e: is_transient(str(e)))
    return ("other", error) if storage is None else ("storage", storage)


def find(
    error: BaseException | None, kind: Kinds, such: Callable[[BaseException], bool] = lambda error: True
) -> BaseException | None:
    """The first exception of a kind, and such as is asked for, in a chain of causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kind) and such(error):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
