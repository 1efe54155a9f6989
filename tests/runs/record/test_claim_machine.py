"""Drivers that race, crash, lose answers and wake up late: what hypothesis finds must keep the protocol's promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from elastic_tpu.runs.errors import EndedOnRequest, HeldByAnother, NotFound, Unreachable
from elastic_tpu.runs.record.claim import Claim, StoredClaim, load_claim, read_claim
from elastic_tpu.runs.record.driver import Driver, stop_by_person
from elastic_tpu.runs.store.base import Item
from elastic_tpu.tests.fakes.store import MemoryStore, lost_answer
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

SECONDS = 600
HOST = "here"
CALLS = st.sampled_from(["take", "take over", "join", "renew", "stop", "stop now", "done"])


class Crash(BaseException):
    """The process dies in the middle of a write."""


@dataclass(eq=False)
class Actor:
    """A process that may drive, and what it knows."""

    name: str
    holder: str
    instance: str
    driver: Driver | None = None


class Claims(RuleBasedStateMachine):
    """Every write of claim.json is checked as it happens, against who writes it and what it was asked for."""

    actors = Bundle("actors")

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(self.check_write)
        self.acting: list[tuple[Actor | None, str]] = []
        self.living: set[str] = set()
        self.count = 0
        self.top = 0
        self.takers: dict[int, str] = {}

    # What may be written.

    def check_write(self, name: str, old: Item | None, new: bytes) -> None:
        assert name == "claim.json"
        actor, call = self.acting[-1]
        after = load_claim(new)
        before = load_claim(old.data) if old else None
        if before is None or after.term != before.term:
            stale = old is not None and self.store.clock - old.updated >= timedelta(seconds=SECONDS)
            self.check_take(before, after, actor, call, stale)
            return
        assert (after.holder, after.instance, after.seconds) == (before.holder, before.instance, before.seconds)
        if before.state == after.state == "stop" and call in ("renew", "join"):
            assert actor is not None
            assert (after, after.holder) == (before, actor.holder), "a stop is renewed as it is"
            return
        assert after.nonce != before.nonce
        change = (before.state, after.state)
        if actor is None:
            assert change in {("held", "stop"), ("stop", "stop")}
            assert (after.by, after.by_holder, after.grace) == ("a person", "a person", 0)
            return
        assert after.holder == actor.holder
        assert actor.driver is not None
        if call.startswith("take"):
            assert (change, after.instance) == (("held", "held"), actor.instance), "going on is for one's own"
        elif call != "join":
            assert actor.driver.term == after.term, "a driver whose term is over wrote"
        allowed = {
            "stop": {("held", "stop")},
            "stop now": {("held", "stop"), ("stop", "stop")},
            "done": {("held", "done")},
        }
        assert change in allowed.get(call, {("held", "held")})
        if change == ("stop", "stop"):
            assert after.grace < before.grace
        if call.startswith("stop"):
            assert after.by_holder == actor.holder

    def check_take(self, before: Claim | None, after: Claim, actor: Actor | None, call: str, stale: bool) -> None:
        assert actor is not None
        assert call.startswith("take")
        assert after.term == (before.term + 1 if before else 1)
        assert (after.holder, after.instance, after.state) == (actor.holder, actor.instance, "held")
        assert after.term not in self.takers
        self.takers[after.term] = actor.name
        if before is None or before.state == "done" or stale or call == "take over":
            return
        assert before.holder == actor.holder, "taken from another that was alive"
        if before.instance == actor.instance:
            assert before.state == "stop"
        else:
            assert before.instance not in self.living or not before.holder.endswith(f"@{HOST}")

    # What may happen.

    @rule(target=actors, holder=st.sampled_from(["ann@here", "ann@there", "dag/run-1"]))
    def start(self, holder: str) -> Actor:
        self.count += 1
        instance = f"{self.count}:0"
        self.living.add(instance)
        actor = Actor(f"driver {self.count}", holder, instance)
        actor.driver = self.driver(actor)
        return actor

    def driver(self, actor: Actor, term: int | None = None) -> Driver:
        return Driver(
            self.store,
            actor.holder,
            actor.instance,
            SECONDS,
            term=term,
            host=HOST,
            alive=self.living.__contains__,
            new_nonce=self.nonce,
        )

    def nonce(self) -> str:
        self.count += 1
        return f"n{self.count}"

    @rule(seconds=st.sampled_from([1, 100, 299, 301, 599, 600, 5000]))
    def time_passes(self, seconds: int) -> None:
        self.store.advance(seconds)

    @rule(actor=actors, call=CALLS)
    def acts(self, actor: Actor, call: str) -> None:
        self.act(actor, call)

    @rule(actor=actors, call=CALLS, other=actors, others_call=CALLS, pause=st.sampled_from([0, 700]))
    def is_overtaken(self, actor: Actor, call: str, other: Actor, others_call: str, pause: int) -> None:
        """The actor stops between reading and writing; another acts, perhaps much later; then the actor wakes up."""

        def meanwhile() -> None:
            self.store.advance(pause)
            self.act(other, others_call)

        self.store.before_write = meanwhile if other is not actor else None
        self.act(actor, call)
        self.store.before_write = None

    @rule(actor=actors, call=CALLS, carried_out=st.booleans())
    def loses_an_answer(self, actor: Actor, call: str, carried_out: bool) -> None:
        self.store.fault, self.store.carried_out = lost_answer(), carried_out
        self.act(actor, call, may_lose=not carried_out)
        self.store.fault = None

    @rule(target=actors, actor=consumes(actors), call=CALLS, carried_out=st.booleans(), again=st.booleans())
    def crashes(self, actor: Actor, call: str, carried_out: bool, again: bool):  # type: ignore[no-untyped-def]
        """It dies while it writes; perhaps a new process of the same instance goes on with the term it had."""
        assert actor.driver is not None
        term = actor.driver.term
        self.store.fault, self.store.carried_out = Crash(), carried_out
        try:
            self.act(actor, call)
        except Crash:
            self.acting.clear()
        self.store.fault = None
        if not again:
            self.living.discard(actor.instance)
            return multiple()
        actor.driver = self.driver(actor, term)
        return actor

    @rule()
    def a_person_cancels(self) -> None:
        self.acting.append((None, "cancel"))
        try:
            claim = stop_by_person(self.store, "a person", new_nonce=self.nonce)
            assert claim.state == "done" or (claim.state == "stop" and claim.grace == 0)
        except NotFound:
            assert self.top == 0
        self.acting.pop()

    @rule(actor=actors)
    def waits_long_enough_and_takes(self, actor: Actor) -> None:
        self.store.advance(SECONDS)
        claim = self.act(actor, "take")
        assert claim is not None
        assert claim.state == "held"

    # What each call promises to the one who made it.

    def act(self, actor: Actor, call: str, may_lose: bool = False) -> Claim | None:
        driver = actor.driver
        assert driver is not None
        if driver.term is None and call not in ("take", "take over", "join"):
            return None
        calls: dict[str, Callable[[], Claim]] = {
            "take": driver.take,
            "take over": lambda: driver.take(take_over=True),
            "join": driver.join,
            "renew": driver.renew,
            "stop": lambda: driver.stop(300, "a signal"),
            "stop now": lambda: driver.stop(0, "a user"),
            "done": driver.done,
        }
        claim: Claim | None = None
        self.acting.append((actor, call))
        try:
            claim = calls[call]()
        except HeldByAnother:
            assert call in ("take", "join")
        except NotFound:
            assert call == "join"
        except EndedOnRequest:
            there = self.there()
            assert (there.claim.term, there.claim.holder) != (driver.term, actor.holder)
        except Unreachable:
            assert may_lose
        self.acting.pop()
        if claim is None:
            return None
        # It believes that it holds the newest term: then it does, and so does nobody else.
        there = self.there()
        assert there.claim == claim
        assert (driver.term, actor.holder) == (claim.term, claim.holder)
        expected = {"take": {"held"}, "take over": {"held"}, "stop": {"stop", "done"}, "stop now": {"stop", "done"}}
        expected["done"] = {"stop", "done"}
        assert claim.state in expected.get(call, {"held", "stop", "done"})
        if call.startswith("take"):
            assert claim.instance == actor.instance
            assert self.takers[claim.term] == actor.name
        return claim

    def there(self) -> StoredClaim:
        found = read_claim(self.store)
        assert found is not None
        return found

    @invariant()
    def terms_only_grow(self) -> None:
        found = read_claim(self.store)
        term = found.claim.term if found else 0
        assert term >= self.top
        assert len(self.takers) == term, "every term has exactly one taker"
        self.top = term


TestClaims = pytest.mark.slow(Claims.TestCase)
TestClaims.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
