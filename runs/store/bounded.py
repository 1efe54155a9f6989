"""Calls to a storage that are given up when the time for all of them is over, whatever they are stuck in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from ..errors import Unreachable

T = TypeVar("T")


class TimeUp(Unreachable):
    """The time for all calls is over."""


class Bounded:
    """Makes calls, one after another, for a limited time.

    Each is made in a thread, which is left behind if it gets no answer: it may be stuck where nothing can end it (a
    name server, a login). Nothing but the call may run in there: a library in C++ that is in the middle of its work
    when the process ends may abort it.

    Args:
      limit: seconds for all calls, from now on.
      quiet: seconds until `tell` is called, again and again.
      tell: called with the seconds so far.
      clock: monotonic seconds.
    """

    def __init__(
        self, limit: float, quiet: float, tell: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._began = clock()
        self._ends, self._next = self._began + limit, self._began + quiet
        self._quiet, self._tell, self._clock = quiet, tell, clock

    def call(self, do: Callable[[], T]) -> T:
        """What `do` returns or raises. Raises TimeUp."""
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(do())
            except BaseException as error:
                answer.set_exception(error)

        if self._clock() < self._ends:
            threading.Thread(target=ask, name="bounded-call", daemon=True).start()
        while (now := self._clock()) < self._ends:
            if now >= self._next:
                self._next = now + self._quiet
                self._tell(now - self._began)
            if wait([answer], timeout=min(self._ends, self._next) - now).done:
                return answer.result()
        raise TimeUp("the time is over")
