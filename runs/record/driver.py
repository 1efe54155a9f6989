"""Drives a run: carries out on claim.json what claim.py decides, by conditional writes that may be lost or late.

A stage of an orchestrator makes a `Driver` and calls `take` (provision, train) or `join` (release, export, evaluate),
then `renew` with each look at its job. `stop_by_person` is for a user who cancels a run that something else drives.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from datetime import datetime

from ..errors import Changed, EndedOnRequest, Exists, HeldByAnother, NotFound, Unreachable
from ..store import records
from ..store.base import Store, new_id
from .claim import Claim, Seen, decide_stop, decide_take, describe, may_act, process_lives, read_claim
from .paths import CLAIM

_TRIES = 20
"""Conditional writes that may lose in a row. Each loss means that somebody else's write succeeded."""

OnEvent = Callable[[str, Mapping[str, object]], None]
"""Called with an event's kind (claim.taken, claim.stopped, claim.done) and data, after the write."""


def stop_by_person(
    store: Store,
    by: str,
    grace: float = 0,
    *,
    new_nonce: Callable[[], str] = new_id,
    on_event: OnEvent | None = None,
) -> Claim:
    """`elastic-tpu cancel`: stop whoever drives the run, and record who asked. Safe to repeat.

    Raises:
      NotFound: nobody has taken the run.
      HeldByAnother: it changed hands while the stop was written.
    """
    first: Claim | None = None
    for _ in range(_TRIES):
        seen = read_claim(store)
        if seen is None:
            raise NotFound(f"{store.uri}: nobody has driven this run; there is nothing to cancel")
        first = first or seen.claim
        if (seen.claim.term, seen.claim.holder) != (first.term, first.holder):
            raise HeldByAnother(
                f"{store.uri}: {seen.claim.holder} took the run from {first.holder} just now; cancel again"
            )
        stopped = decide_stop(seen.claim, by, grace, new_nonce())
        if stopped is None:
            return seen.claim
        if _write(store, stopped, seen.generation):
            _tell(on_event, "claim.stopped", stopped, by=by, grace=grace)
            return stopped
    raise _contended(store)


class Driver:
    """One instance of a holder, and what it does with the claim.

    `take` or `join` comes first, unless the term that an earlier process of this instance got is given. Not
    thread-safe. Every method may raise `Unreachable`: then it is unknown whether the write succeeded, and calling
    again is right.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        instance: str,
        seconds: float,
        *,
        term: int | None = None,
        host: str | None = None,
        alive: Callable[[str], bool] = process_lives,
        new_nonce: Callable[[], str] = new_id,
        on_event: OnEvent | None = None,
    ) -> None:
        """Args: `seconds` until an unrenewed claim is stale; `host` = this machine's name, as in ``user@host``."""
        self._store = store
        self._holder = holder
        self._instance = instance
        self._seconds = seconds
        self._term = term
        self._host = host or socket.gethostname()
        self._alive = alive
        self._new_nonce = new_nonce
        self._on_event = on_event
        self._known: tuple[Claim, str] | None = None  # as last read or written, with its generation

    @property
    def term(self) -> int | None:
        """The term that this driver got; whether it is still the claim's, only the next call tells."""
        return self._term

    def take(self, take_over: bool = False) -> Claim:
        """Become the driver of the run, or go on as its driver.

        Raises:
          HeldByAnother: another holder drives it, or another live process of this one; nothing was changed.
        """
        for _ in range(_TRIES):
            seen = read_claim(self._store)
            now = self._store.now()
            lives = seen is not None and self._lives_here(seen.claim)
            decision = decide_take(seen, now, self._holder, self._instance, lives=lives, take_over=take_over)
            if decision.act == "refuse" and seen is not None:
                raise HeldByAnother(f"{self._driven(seen, now)}; {decision.reason}")
            if decision.act == "go_on" and seen is not None:
                claim = seen.claim.model_copy(update={"nonce": self._new_nonce()})
            else:
                claim = Claim(
                    holder=self._holder,
                    instance=self._instance,
                    term=seen.claim.term + 1 if seen else 1,
                    state="held",
                    nonce=self._new_nonce(),
                    seconds=self._seconds,
                )
            if self._replace(claim, seen.generation if seen else None):
                self._term = claim.term
                if decision.act == "take":
                    before = seen.claim.holder if seen else None
                    _tell(self._on_event, "claim.taken", claim, before=before, reason=decision.reason)
                return claim
        raise _contended(self._store)

    def join(self) -> Claim:
        """Go on in the term that the holder has, as a later stage of the same run; look at the ``state`` returned.

        Raises:
          HeldByAnother: another holder drives the run, or did last.
          NotFound: nobody has taken it.
        """
        seen = read_claim(self._store)
        if seen is None:
            raise NotFound(f"{self._store.uri}: nobody has driven this run; begin with its first stage")
        if seen.claim.holder != self._holder:
            cure = "run the whole pipeline to take it, or use the holder that drives it"
            raise HeldByAnother(f"{self._driven(seen, self._store.now())}; {cure}")
        self._term = seen.claim.term
        self._known = seen.claim, seen.generation
        return self.renew()

    def renew(self) -> Claim:
        """Keep the claim from going stale; a ``state`` of stop or done is never undone: a stop that is carried out is
        renewed as it is, a done claim is left alone.

        Raises:
          EndedOnRequest: another took the run over: end WITHOUT cancelling anything.
        """

        def change(claim: Claim, lost: bool) -> Claim | None:
            # A write of my own term that came first has renewed the claim as well.
            if lost or claim.state == "done":
                return None
            # A stop keeps its nonce: the trainer counts the grace from when it first saw this very stop.
            return claim if claim.state == "stop" else claim.model_copy(update={"nonce": self._new_nonce()})

        return self._change(change)[0]

    def stop(self, grace: float, by: str) -> Claim:
        """Ask the trainer to save and end: one conditional write, if nothing was written since this driver's last.

        Args:
          grace: seconds in which a take of the same holder undoes it: 0 when a user asked, 300 when a signal did.
          by: who or what asked.

        Raises:
          EndedOnRequest: another took the run over; nothing was changed.
        """
        claim, written = self._change(lambda claim, _: decide_stop(claim, by, grace, self._new_nonce()))
        if written:
            _tell(self._on_event, "claim.stopped", claim, by=by, grace=grace)
        return claim

    def done(self, carried_out: bool = False) -> Claim:
        """Say that the last stage is over. A stop stays a stop, unless it is `carried_out`: nothing is left running.

        Raises:
          EndedOnRequest: another took the run over; nothing was changed.
        """

        def change(claim: Claim, _: bool) -> Claim | None:
            over = claim.state == "held" or (claim.state == "stop" and carried_out)
            return claim.model_copy(update={"state": "done", "nonce": self._new_nonce()}) if over else None

        claim, written = self._change(change)
        if written:
            _tell(self._on_event, "claim.done", claim)
        return claim

    def require_may_act(self) -> None:
        """Before a release or a stage's cancel.

        Raises:
          HeldByAnother: another drives the run; change nothing.
        """
        seen = read_claim(self._store)
        now = self._store.now()
        if seen is not None and not may_act(seen, self._holder, now, self._term):
            raise HeldByAnother(f"{self._driven(seen, now)}; nothing was changed for {self._holder}")

    def _change(self, change: Callable[[Claim, bool], Claim | None]) -> tuple[Claim, bool]:
        """Write what ``change(claim, lost)`` makes of the claim while the term is mine; whether there was a write."""
        lost = False
        for _ in range(_TRIES):
            remembered = self._known is not None
            claim, generation = self._known or self._look()
            self._require_mine(claim)
            new = change(claim, lost)
            if new is None and remembered:
                self._known = None  # that nothing is to do must be true now
                continue
            if new is None:
                return claim, False
            if self._replace(new, generation):
                return new, True
            lost = True
        raise _contended(self._store)

    def _look(self) -> tuple[Claim, str]:
        seen = read_claim(self._store)
        if seen is None:
            raise EndedOnRequest(f"{self._store.uri}: {CLAIM} is gone; this driver ({self._holder}) ends")
        self._known = seen.claim, seen.generation
        return self._known

    def _require_mine(self, claim: Claim) -> None:
        if self._term is None:
            raise RuntimeError("Driver: take() or join() comes first")
        if (claim.term, claim.holder) != (self._term, self._holder):
            raise EndedOnRequest(
                f"{self._store.uri}: {claim.holder} (instance {claim.instance}) took the run over in term "
                f"{claim.term}; {self._holder} (instance {self._instance}, term {self._term}) ends and cancels nothing"
            )

    def _replace(self, claim: Claim, generation: str | None) -> bool:
        self._known = None
        written = _write(self._store, claim, generation)
        if written:
            self._known = claim, written
        return written is not None

    def _driven(self, seen: Seen, now: datetime) -> str:
        return f"{self._store.uri} is driven by {describe(seen, now)}"

    def _lives_here(self, claim: Claim) -> bool:
        return claim.holder.endswith(f"@{self._host}") and self._alive(claim.instance)


def _write(store: Store, claim: Claim, generation: str | None) -> str | None:
    """Write over that generation (None = only if absent): the new generation, or None when somebody was faster."""
    data = records.dump(claim.model_dump())
    try:
        return store.create(CLAIM, data) if generation is None else store.replace(CLAIM, data, generation)
    except (Exists, Changed, Unreachable) as error:
        # The answer may be what got lost: my nonce there means that the write succeeded.
        there = read_claim(store)
        if there is not None and there.claim.nonce == claim.nonce:
            return there.generation
        if isinstance(error, Unreachable):
            raise
        return None


def _tell(on_event: OnEvent | None, kind: str, claim: Claim, **more: object) -> None:
    if on_event is not None:
        on_event(kind, {"holder": claim.holder, "instance": claim.instance, "term": claim.term, **more})


def _contended(store: Store) -> Unreachable:
    return Unreachable(f"{store.uri}/{CLAIM}: others wrote it {_TRIES} times in a row; try again")
