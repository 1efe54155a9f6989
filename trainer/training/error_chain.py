"""Which exception in a chain tells what went wrong: MaxText and Orbax wrap what they catch, more than once.

What the error means is decided with context in failure_policy.py.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from ...runs.errors import ElasticTPUError, Unreachable
from ..checkpoint.arrays import is_transient

Kinds = type[BaseException] | tuple[type[BaseException], ...]


class SaveFailed(Exception):
    """The save of a step failed, at once or in the background; its cause says why."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the save of step {step} failed")
        self.step = step


def storage_refused(error: BaseException) -> BaseException | None:
    """What the storage or the operating system said to a save, unless it failed with its devices."""
    if find(error, jax.errors.JaxRuntimeError) is not None:
        return None
    refused = find(error, (OSError, Unreachable))
    return refused or find(error, Exception, lambda e: is_transient(str(e)))


def own_error(error: BaseException) -> ElasticTPUError | None:
    """An error that this package raised on purpose, e.g. in a hook that MaxText called in a save; it keeps its code."""
    found = find(error, ElasticTPUError)
    return found if isinstance(found, ElasticTPUError) and not isinstance(found, Unreachable) else None


def decisive_error(error: BaseException) -> tuple[str, BaseException]:
    """The exception whose text says what went wrong, after its kind as in `failure_policy.Failure`."""
    from_jax = find(error, jax.errors.JaxRuntimeError)
    if from_jax is not None:
        return "jax", from_jax
    storage = find(error, (OSError, Unreachable))
    if isinstance(storage, (FileNotFoundError, PermissionError)):
        storage = None  # a file that is missing or forbidden stays so for a new process
    # tensorstore raises ValueError for every error; only the text says that the storage did not answer.
    storage = storage or find(error, Exception, lambda e: is_transient(str(e)))
    return ("other", error) if storage is None else ("storage", storage)


def find(
    error: BaseException | None, kind: Kinds, such: Callable[[BaseException], bool] = lambda error: True
) -> BaseException | None:
    """The first exception of a kind in a chain of causes for which `such` is true; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kind) and such(error):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
