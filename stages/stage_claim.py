"""The run's claim as a stage uses it: taken or joined in submit, renewed in poll, checked in cancel.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..runs.errors import EndedOnRequest, HeldByAnother, NotFound, Unreachable

if TYPE_CHECKING:
    from ..runs.record.claim import Claim
    from ..runs.record.driver import Driver
    from ..runs.store.base import Store


class StageClaim:
    """Whether a stage may act on the run; reads and writes the claim through a `Driver`."""

    def __init__(self, driver: Driver, store: Store, me: tuple[str, str], seconds: float, take_over: bool) -> None:
        """Args: `me` = holder and instance of the driver; `seconds` = after which an unrenewed claim is stale."""
        self._driver, self._store, self._me = driver, store, me
        self._seconds, self._take_over = seconds, take_over
        self._renewed = time.monotonic()
        self.stopped_by = ""
        """Who asked for the stop, for a message; empty unless the last `renew` found a stop."""
        self.unrenewed = ""
        """Why the claim cannot be renewed, for a message; empty once it is."""

    @property
    def term(self) -> int | None:
        """The driver's term."""
        return self._driver.term

    def take(self, first: bool = True) -> None:
        """Become the driver. Whether a stop in the claim is undone by this: see `why_stop_stands`.

        Args:
          first: this is the first stage of a pipeline.

        Raises:
          HeldByAnother: another holder drives the run.
          EndedOnRequest: the claim holds a stop that this stage must not undo.
        """
        from ..runs.record.claim import read_claim, why_stop_stands

        stored = read_claim(self._store)
        if stored is not None and stored.claim.state == "stop":
            holder, instance = self._me
            now = self._store.now()
            why = why_stop_stands(stored, now, holder, instance, first=first, take_over=self._take_over)
            if why is not None:
                raise EndedOnRequest(why)
        self._driver.take(self._take_over)
        self._renewed = time.monotonic()

    def join(self, again: bool) -> None:
        """Go on in my holder's term, unless the run is being stopped.

        Args:
          again: if my holder gave the claim up, take it in a new term: there is something to do.
        """
        claim = self._driver.join()
        if claim.state == "done" and again:
            claim = self._driver.take()
        if claim.state == "stop":
            raise EndedOnRequest(f"stop asked for by {claim.asked_by}; nothing more is started")
        self._renewed = time.monotonic()

    def renew(self) -> bool:
        """Look at the claim, and renew it every ``seconds / 6``; True when somebody has asked to stop.

        Raises:
          EndedOnRequest: another holder or instance took the run over: end without cancelling anything.
        """
        from ..runs.record.claim import read_claim

        claim = self._renewed_now() if time.monotonic() - self._renewed >= self._seconds / 6 else None
        if claim is None:
            stored = read_claim(self._store)
            if stored is not None and (stored.claim.holder, stored.claim.term) == (self._me[0], self._driver.term):
                claim = stored.claim
            else:
                claim = self._driver.renew()
        self.stopped_by = claim.asked_by if claim.state == "stop" else ""
        return claim.state == "stop"

    def _renewed_now(self) -> Claim | None:
        """The claim after a write; None if it cannot be written, though perhaps read: a full disk."""
        self._renewed = time.monotonic()
        try:
            claim = self._driver.renew()
        except Unreachable as error:
            self.unrenewed = f"the claim cannot be renewed: {error}"
            return None
        self.unrenewed = ""
        return claim

    def is_held(self) -> bool:
        """Whether the run is driven and nobody has asked to stop."""
        from ..runs.record.claim import is_stale, read_claim

        stored = read_claim(self._store)
        return stored is not None and stored.claim.state == "held" and not is_stale(stored, self._store.now())

    def require_may_act(self) -> None:
        """Raise HeldByAnother unless the claim is this holder's, done or stale."""
        self._driver.require_may_act()

    def stop(self, grace: float, by: str) -> None:
        """Ask the trainer to save and end, only in this driver's term, in the name of its holder.

        One conditional write: a step that received SIGTERM may have no time for more. `by` = text for people.

        Raises:
          HeldByAnother, EndedOnRequest: another drives the run; nothing was changed.
          NotFound: nobody has taken the run.
        """
        if self._driver.term is None:
            self._driver.require_may_act()
            self._driver.join()
        self._driver.stop(grace, by)

    def keep(self) -> None:
        """Renew the claim for a stage that waits, if it is this holder's; another holder's claim is not changed."""
        with suppress(HeldByAnother, EndedOnRequest, NotFound):
            if self._driver.term is None:
                self._driver.join()
            self.renew()

    def done(self) -> None:
        """Record that the last stage is over and nothing is left running; another holder's claim is not changed."""
        try:
            if self._driver.term is None:
                self._driver.join()
            self._driver.done(carried_out=True)
        except (HeldByAnother, EndedOnRequest, NotFound):
            return
