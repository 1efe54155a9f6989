"""Storage or a cluster that does not answer is unknown, not lost: whoever looks waits (contracts.md 6) and says so."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TypeVar

from ..runs.errors import Unreachable
from ..runs.judge.verdict import Verdict

S = TypeVar("S")
T = TypeVar("T")

UNKNOWN = 1800.0  # seconds without an answer that are "unknown, not lost", as recovery.storage_timeout
_PAUSE = 10.0  # seconds between two calls


def patiently(
    call: Callable[[], T],
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    *,
    limit: float = UNKNOWN,
) -> T:
    """Call again while there is no answer: a launcher only waits, the trainer goes on meanwhile.

    Args:
      limit: seconds after which it is given up.

    Raises:
      Unreachable: the limit is spent.
    """
    began = clock()
    while True:
        try:
            return call()
        except Unreachable as error:
            if clock() - began > limit:
                raise
            tell(_waiting(error))
            sleep(_PAUSE)


def patient(poll: Callable[[S], Verdict]) -> Callable[[S], Verdict]:
    """A `poll` that answers with what is waited for, when the storage or the cluster does not answer."""

    @functools.wraps(poll)
    def wrapper(self: S) -> Verdict:
        try:
            return poll(self)
        except Unreachable as error:
            return Verdict("running", reason=_waiting(error))

    return wrapper


def _waiting(error: Unreachable) -> str:
    """The error names what does not answer: a bucket, a folder, a cluster, its login."""
    return f"waiting for an answer: {error}"
