"""What a stage does while the storage or the cluster does not answer: it waits and says so (docs/contracts.md 6).

No answer means that the state is unknown, not that the run is lost. Standard library only at import.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..runs.errors import Unreachable
from ..runs.judge.verdict import Verdict

if TYPE_CHECKING:
    from tenacity import RetryCallState

S = TypeVar("S")
T = TypeVar("T")

ANSWER_TIMEOUT = 1800.0  # seconds without an answer, as the default of recovery.storage_timeout
_PAUSE = 10.0  # seconds between two calls


def until_answered(
    call: Callable[[], T],
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    *,
    limit: float = ANSWER_TIMEOUT,
) -> T:
    """Repeat `call` every 10 s until it gets an answer. The trainer goes on meanwhile.

    Args:
      call: must be safe to repeat.
      tell: gets a line before each wait.
      clock, sleep: in seconds.
      limit: seconds since the first call after which no call is repeated.

    Raises:
      Unreachable: the limit is spent.
    """
    from tenacity import Retrying, retry_if_exception_type, wait_fixed

    def before_sleep(state: RetryCallState) -> None:
        assert state.outcome is not None
        tell(waiting_text(state.outcome.exception()))

    began = clock()
    return Retrying(
        retry=retry_if_exception_type(Unreachable),
        stop=lambda state: clock() - began > limit,
        wait=wait_fixed(_PAUSE),
        before_sleep=before_sleep,
        sleep=sleep,
        reraise=True,
    )(call)


def waits_for_answer(poll: Callable[[S], Verdict]) -> Callable[[S], Verdict]:
    """A `poll` whose verdict says what does not answer, instead of raising `Unreachable`."""

    @functools.wraps(poll)
    def wrapper(self: S) -> Verdict:
        try:
            return poll(self)
        except Unreachable as error:
            return Verdict("running", reason=waiting_text(error))

    return wrapper


def waiting_text(error: BaseException | None) -> str:
    """A line for people; the error names what does not answer: a bucket, a folder, a cluster, its login."""
    return f"waiting for an answer: {error}"
