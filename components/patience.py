"""Storage that does not answer is unknown, not lost: whoever looks waits (contracts.md 6), and says so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from ..runs.errors import Unreachable
from ..runs.verdict import Verdict

S = TypeVar("S")


def patient(poll: Callable[[S], Verdict]) -> Callable[[S], Verdict]:
    """A `poll` that answers with where things stood, when the storage does not answer."""

    @functools.wraps(poll)
    def wrapper(self: S) -> Verdict:
        try:
            return poll(self)
        except Unreachable as error:
            return Verdict("running", reason=f"waiting for the storage: {error}")

    return wrapper
