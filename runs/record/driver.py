"""Drives a run: carries out on claim.json what claim.py decides, by conditional writes whose answers may be lost.

A stage of an orchestrator makes a `Driver` and calls `take` (provision, train) or `join` (release, export, evaluate),
then `renew` with each poll of its job. `stop_by_person` is for a user who cancels a run that another holder drives.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from datetime import datetime

from ..errors import Changed, EndedOnRequest, Exists, HeldByAnother, NotFound, Unreachable
from ..store import records
from ..store.base import Store, new_id
from .claim import Claim, StoredClaim, decide_stop, decide_take, describe, may_act, process_lives, read_claim
from .paths import CLAIM

_TRIES = 20
"""Conditional writes that may fail in a row. Each failure means that another process wrote the claim meanwhile."""

OnEvent = Callable[[str, Mapping[str, object]], None]
"""Called with an event's kind (claim.taken, claim.stopped, claim.done) and data, after the write."""


def stop_by_person(
    store: Store,
    person: str,
    grace: float = 0,
    *,
    new_nonce: Callable[[], str] = new_id,
    on_event: OnEvent | None = None,
) -> Claim:
    """`elastic-tpu cancel`: ask to stop the run, whoever drives it. Safe to repeat.

    Args:
      person: who asks, as the holder that this person is on the command line: ``user@host``.
      grace: seconds that the trainer waits before it obeys.

    Raises:
      NotFound: nobody has taken the run.
      HeldByAnother: another holder took the run while the stop was written.
    """
    first: Claim | None = None
    for _ in range(_TRIES):
        stored = read_claim(store)
        if stored is None:
            raise NotFound(f"{store.uri}: nobody has driven this run; there is nothing to cancel")
        claim = stored.claim
        first = first or claim
        if (claim.term, claim.holder) != (first.term, first.holder):
            raise HeldByAnother(f"{store.uri}: {claim.holder} took the run from {first.holder} just now; cancel again")
        stopped = decide_stop(claim, person, person, grace, new_nonce())
        if stopped is None:
            return claim
        if _write(store, stopped, stored.generation):
            _tell(on_event, "claim.stopped", stopped, by=person, grace=grace)
            return stopped
    raise _contended(store)


class Driver:
    """One instance of a holder, and what it does with the claim.

    Call `take` or `join` first, or give the term that an earlier process of this instance got. Not thread-safe. Every
    method may raise `Unreachable`: then it is unknown whether the write succeeded, and the call may be repeated.
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
        """Args: `seconds` = after which a claim that is not renewed is stale; `host` = this machine's name."""
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
        """The term that this driver got; the claim may be in a later term by now, which the next call finds out."""
        return self._term

    def take(self, take_over: bool = False) -> Claim:
        """Become the driver of the run, or go on as its driver.

        Raises:
          HeldByAnother: another holder drives the run, or another live process of this holder; nothing was changed.
        """
        for _ in range(_TRIES):
            stored = read_claim(self._store)
            now = self._store.now()
            lives = stored is not None and self._lives_here(stored.claim)
            decision = decide_take(stored, now, self._holder, self._instance, lives=lives, take_over=take_over)
            if decision.act == "refuse" and stored is not None:
                raise HeldByAnother(f"{self._driven(stored, now)}; {decision.reason}")
            if decision.act == "go_on" and stored is not None:
                claim = stored.claim.model_copy(update={"nonce": self._new_nonce()})
            else:
                claim = Claim(
                    holder=self._holder,
                    instance=self._instance,
                    term=stored.claim.term + 1 if stored else 1,
                    state="held",
                    nonce=self._new_nonce(),
                    seconds=self._seconds,
                )
            if self._replace(claim, stored.generation if stored else None):
                self._term = claim.term
                if decision.act == "take":
                    before = stored.claim.holder if stored else None
                    _tell(self._on_event, "claim.taken", claim, before=before, reason=decision.reason)
                return claim
        raise _contended(self._store)

    def join(self) -> Claim:
        """Go on in the holder's current term, as a later stage of the same run; look at the ``state`` returned.

        Raises:
          HeldByAnother: another holder drives the run, or drove it last.
          NotFound: nobody has taken the run.
        """
        stored = read_claim(self._store)
        if stored is None:
            raise NotFound(f"{self._store.uri}: nobody has driven this run; start with its first stage (provision)")
        if stored.claim.holder != self._holder:
            cure = "run the whole pipeline to take the run, or use the holder that drives it"
            raise HeldByAnother(f"{self._driven(stored, self._store.now())}; {cure}")
        self._term = stored.claim.term
        self._known = stored.claim, stored.generation
        return self.renew()

    def renew(self) -> Claim:
        """Keep the claim from going stale. The state stays: a stop is renewed unchanged, a done claim is not written.

        Raises:
          EndedOnRequest: another holder or instance took the run over: end WITHOUT cancelling anything.
        """

        def change(claim: Claim, lost: bool) -> Claim | None:
            # A write that came first in this term has renewed the claim already.
            if lost or claim.state == "done":
                return None
            # A stop keeps its nonce: the trainer counts the grace from its first look at that nonce.
            return claim if claim.state == "stop" else claim.model_copy(update={"nonce": self._new_nonce()})

        return self._change(change)[0]

    def stop(self, grace: float, by: str) -> Claim:
        """Ask the trainer to save and end, in the name of this holder.

        This is one conditional write, unless another process wrote the claim since this driver's last call.

        Args:
          grace: seconds in which a take by the same holder undoes the stop: 0 when a user asked, 300 for a signal.
          by: who or what asked, as text for people.

        Raises:
          EndedOnRequest: another holder or instance took the run over; nothing was changed.
        """
        claim, written = self._change(lambda claim, _: decide_stop(claim, self._holder, by, grace, self._new_nonce()))
        if written:
            _tell(self._on_event, "claim.stopped", claim, by=by, grace=grace)
        return claim

    def done(self, carried_out: bool = False) -> Claim:
        """Record that the last stage is over. A stop stays a stop unless it is `carried_out`: nothing is left running.

        Raises:
          EndedOnRequest: another holder or instance took the run over; nothing was changed.
        """

        def change(claim: Claim, _: bool) -> Claim | None:
            over = claim.state == "held" or (claim.state == "stop" and carried_out)
            return claim.model_copy(update={"state": "done", "nonce": self._new_nonce()}) if over else None

        claim, written = self._change(change)
        if written:
            _tell(self._on_event, "claim.done", claim)
        return claim

    def require_may_act(self) -> None:
        """Call this before a release or a stage's cancel.

        Raises:
          HeldByAnother: another drives the run; change nothing.
        """
        stored = read_claim(self._store)
        now = self._store.now()
        if stored is not None and not may_act(stored, self._holder, now, self._term):
            raise HeldByAnother(f"{self._driven(stored, now)}; nothing was changed for {self._holder}")

    def _change(self, change: Callable[[Claim, bool], Claim | None]) -> tuple[Claim, bool]:
        """Write the claim that ``change(claim, lost)`` returns, while the term is this driver's; None writes nothing.

        `lost`: an earlier write of this call failed, because another process wrote first. Returns the claim as it is
        now, and whether it was written.
        """
        lost = False
        for _ in range(_TRIES):
            remembered = self._known is not None
            claim, generation = self._known or self._look()
            self._require_mine(claim)
            new = change(claim, lost)
            if new is None and remembered:
                self._known = None  # decide again on the claim as it is stored now
                continue
            if new is None:
                return claim, False
            if self._replace(new, generation):
                return new, True
            lost = True
        raise _contended(self._store)

    def _look(self) -> tuple[Claim, str]:
        stored = read_claim(self._store)
        if stored is None:
            raise EndedOnRequest(f"{self._store.uri}: {CLAIM} is gone; this driver ({self._holder}) ends")
        self._known = stored.claim, stored.generation
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

    def _driven(self, stored: StoredClaim, now: datetime) -> str:
        return f"{self._store.uri} is driven by {describe(stored, now)}"

    def _lives_here(self, claim: Claim) -> bool:
        return claim.holder.endswith(f"@{self._host}") and self._alive(claim.instance)


def _write(store: Store, claim: Claim, generation: str | None) -> str | None:
    """Replace that generation (None = only if absent). Returns the new generation; None if another write came first."""
    data = records.dump(claim.model_dump())
    try:
        return store.create(CLAIM, data) if generation is None else store.replace(CLAIM, data, generation)
    except (Exists, Changed, Unreachable) as error:
        # Perhaps only the answer was lost: the claim's own nonce in the file means that the write succeeded.
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
    return Unreachable(f"{store.uri}/{CLAIM}: other processes wrote it {_TRIES} times in a row; try again")
