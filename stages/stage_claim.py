"""The run's claim as a stage uses it: taken or joined in submit, looked at in poll, respected in cancel.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..runs.errors import EndedOnRequest, HeldByAnother, NotFound

if TYPE_CHECKING:
    from ..runs.record.driver import Driver
    from ..runs.store.base import Store


class StageClaim:
    """Whether a stage may act, by the driver that it made."""

    def __init__(self, driver: Driver, store: Store, me: tuple[str, str], seconds: float, take_over: bool) -> None:
        self._driver, self._store, self._me = driver, store, me
        self._seconds, self._take_over = seconds, take_over
        self._renewed = time.monotonic()
        self.stopped_by = ""

    @property
    def term(self) -> int | None:
        """The driver's term."""
        return self._driver.term

    def take(self, first: bool = True) -> None:
        """Become the driver, or raise HeldByAnother.

        A stop of what this very instance drives is not undone. Nor is one that somebody else than the holder asked
        for, unless this is the `first` stage of a pipeline, which begins anew.
        """
        from ..runs.record.claim import is_stale, read_claim

        seen = read_claim(self._store)
        if seen is not None and seen.claim.state == "stop":
            claim, (holder, _) = seen.claim, self._me
            by = claim.by or claim.holder
            others = claim.grace == 0 and holder not in by and not is_stale(seen, self._store.now())
            if (claim.holder, claim.instance) == self._me:
                raise EndedOnRequest(f"stop asked for by {by}; nothing more is started")
            if claim.holder == holder and others and not first and not self._take_over:
                raise EndedOnRequest(f"stop asked for by {by}; nothing more is started, begin anew with provision")
        self._driver.take(self._take_over)
        self._renewed = time.monotonic()

    def join(self) -> None:
        """Go on in my holder's term, unless the run is being stopped."""
        claim = self._driver.join()
        if claim.state == "stop":
            raise EndedOnRequest(f"stop asked for by {claim.by or claim.holder}; nothing more is started")
        self._renewed = time.monotonic()

    def renew(self) -> bool:
        """Look at the claim, and renew it when it is time; True when somebody has asked to stop.

        Raises:
          EndedOnRequest: another took the run over: end without cancelling anything.
        """
        from ..runs.record.claim import read_claim

        due = time.monotonic() - self._renewed >= self._seconds / 6
        seen = None if due else read_claim(self._store)
        if seen is not None and (seen.claim.holder, seen.claim.term) == (self._me[0], self._driver.term):
            claim = seen.claim
        else:
            self._renewed = time.monotonic()
            claim = self._driver.renew()
        self.stopped_by = (claim.by or claim.holder) if claim.state == "stop" else ""
        return claim.state == "stop"

    def is_held(self) -> bool:
        """Whether the run is driven and nobody has asked to stop."""
        from ..runs.record.claim import is_stale, read_claim

        seen = read_claim(self._store)
        return seen is not None and seen.claim.state == "held" and not is_stale(seen, self._store.now())

    def require_may_act(self) -> None:
        """Raise HeldByAnother unless the claim is mine, done or stale."""
        self._driver.require_may_act()

    def stop(self, grace: float, by: str) -> None:
        """Ask the trainer to save and end, in my term only: one conditional write, all a dying step has time for."""
        if self._driver.term is None:
            self._driver.require_may_act()
            self._driver.join()
        self._driver.stop(grace, by)

    def keep(self) -> None:
        """Keep it from going stale under a stage that waits, if it is mine; another's is left as it is."""
        with suppress(HeldByAnother, EndedOnRequest, NotFound):
            if self._driver.term is None:
                self._driver.join()
            self.renew()

    def done(self) -> None:
        """The last stage is over and nothing is left running; another's claim is left as it is."""
        try:
            if self._driver.term is None:
                self._driver.join()
            self._driver.done(carried_out=True)
        except (HeldByAnother, EndedOnRequest, NotFound):
            return
