"""Who drives a run: the decisions as tables, a driver on real storage, and every interleaving that hypothesis finds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
from elastic_tpu.runs.errors import BadInput, EndedOnRequest, ExitCode, HeldByAnother, NotFound, Unreachable
from elastic_tpu.runs.record.claim import (
    Claim,
    StoredClaim,
    decide_stop,
    decide_take,
    is_stale,
    load_claim,
    may_act,
    process_lives,
    read_claim,
    this_instance,
    why_stop_stands,
)
from elastic_tpu.runs.record.driver import Driver, stop_by_person
from elastic_tpu.runs.store import records
from elastic_tpu.runs.store.base import Store
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.tests.fakes.store import MemoryStore, lost_answer

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def stored(age: float = 10, **fields: Any) -> StoredClaim:
    claim = {"holder": "me", "instance": "1", "term": 3, "state": "held", "nonce": "n", "seconds": 600, **fields}
    return StoredClaim(Claim.model_validate(claim), "g", NOW - timedelta(seconds=age))


# decide_take: me, instance 1.
@pytest.mark.parametrize(
    ("claim", "lives", "take_over", "act", "reason"),
    [
        (None, False, False, "take", "nobody"),
        (stored(), False, False, "go_on", "this instance holds it"),
        (stored(), True, False, "go_on", "this instance holds it"),
        (stored(age=700), False, False, "go_on", "this instance holds it"),
        (stored(instance="0"), False, False, "take", "instance 1 follows 0"),
        (stored(instance="0"), True, False, "refuse", "still runs on this host"),
        (stored(instance="0"), True, True, "take", "taken over"),
        (stored(instance="0", age=600), True, False, "take", "not renewed it for 10m"),
        (stored(state="stop", grace=300), False, False, "take", "undoes its stop"),
        (stored(state="stop", instance="0", age=301), False, False, "take", "undoes its stop"),
        (stored(state="stop", instance="0"), True, False, "refuse", "still runs"),
        (stored(state="done"), False, False, "take", "me was done"),
        (stored(state="done", instance="0"), True, False, "take", "me was done"),
        (stored(holder="other"), False, False, "refuse", "10m, or take over with --take-over"),
        (stored(holder="other"), False, True, "take", "taken over from other"),
        (stored(holder="other", age=599.9), False, False, "refuse", "wait"),
        (stored(holder="other", age=600), False, False, "take", "not renewed"),
        (stored(holder="other", seconds=60, age=60), False, False, "take", "1m"),
        (stored(holder="other", age=-50), False, False, "refuse", "wait"),
        (stored(holder="other", state="stop"), False, False, "refuse", "being stopped"),
        (stored(holder="other", state="stop", age=600), False, False, "take", "not renewed"),
        (stored(holder="other", state="done"), False, False, "take", "other was done"),
    ],
)
def test_take(claim: StoredClaim | None, lives: bool, take_over: bool, act: str, reason: str) -> None:
    decision = decide_take(claim, NOW, "me", "1", lives=lives, take_over=take_over)
    assert decision.act == act
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("claim", "term", "may"),
    [
        (None, None, True),
        (stored(), None, True),
        (stored(), 3, True),
        (stored(), 2, False),
        (stored(age=600), 2, True),
        (stored(state="stop"), None, True),
        (stored(holder="other"), None, False),
        (stored(holder="other"), 3, False),
        (stored(holder="other", state="stop"), None, False),
        (stored(holder="other", state="done"), None, True),
        (stored(holder="other", age=599), None, False),
        (stored(holder="other", age=600), None, True),
    ],
)
def test_release_and_cancel_act_only_while_the_claim_is_mine_done_or_stale(
    claim: StoredClaim | None, term: int | None, may: bool
) -> None:
    assert may_act(claim, "me", NOW, term) is may


@pytest.mark.parametrize(
    ("state", "grace", "asked", "after"),
    [
        ("held", 0, 300, ("stop", "user", 300)),
        ("stop", 300, 0, ("stop", "user", 0)),
        ("stop", 300, 300, None),
        ("stop", 0, 300, None),
        ("done", 0, 0, None),
    ],
)
def test_a_stop_only_ever_gets_sooner(
    state: str, grace: float, asked: float, after: tuple[str, str, float] | None
) -> None:
    stopped = decide_stop(stored(state=state, grace=grace, by="signal").claim, "ann@pc1", "user", asked, "new")
    assert (stopped and (stopped.state, stopped.by, stopped.grace)) == after
    if stopped:
        assert (stopped.nonce, stopped.term, stopped.holder, stopped.instance) == ("new", 3, "me", "1")
        assert stopped.by_holder == "ann@pc1"


@pytest.mark.parametrize(
    ("there", "there_grace", "asks", "grace", "after"),
    [
        ("me", 0, "ann@pc1", 0, ("ann@pc1", 0)),  # or the next try of `me` would undo what a person asked for
        ("me", 300, "ann@pc1", 0, ("ann@pc1", 0)),
        ("me", 0, "ann@pc1", 60, ("ann@pc1", 0)),
        ("me", 0, "me", 0, None),
        ("ann@pc1", 0, "me", 0, None),
        ("ann@pc1", 60, "me", 0, ("ann@pc1", 0)),  # sooner, and still the person's
        ("ann@pc1", 0, "bob@pc1", 0, None),
        ("", 0, "me", 0, None),  # a file of an older version: who asked is not known
    ],
)
def test_a_persons_stop_stands_whatever_stop_is_there(
    there: str, there_grace: float, asks: str, grace: float, after: tuple[str, float] | None
) -> None:
    claim = stored(state="stop", by=there or None, by_holder=there, grace=there_grace).claim
    stopped = decide_stop(claim, asks, asks, grace, "new")
    assert (stopped and (stopped.by_holder, stopped.grace)) == after


def stop(asked_by: str, age: float = 10, **fields: Any) -> StoredClaim:
    """A stop in the claim of ann@pc1's instance 0."""
    by = {"by": f"a user of Airflow ({asked_by})", "by_holder": asked_by}
    return stored(age, **{"holder": "ann@pc1", "instance": "0", "state": "stop", **by, **fields})


# why_stop_stands: ann@pc1, instance 1, in a stage that is not the first.
@pytest.mark.parametrize(
    ("claim", "more", "stands"),
    [
        (None, {}, False),
        (stop("ann@pc1", state="held"), {}, False),
        (stop("ann@pc1"), {}, False),
        (stop("ann@pc12"), {}, True),  # a name that the holder's is part of
        (stop("joann@pc1"), {}, True),
        (stop("ann@pc"), {}, True),  # a name that is part of the holder's
        (stop("ANN@pc1"), {}, True),
        (stop("", by="ann@pc1"), {}, True),  # a file of an older version: who asked is not known
        (stop("ann@pc12", by="a user of Airflow (ann@pc1)"), {}, True),  # the text decides nothing
        (stop("ann@pc1", by="a user of Airflow (bob@pc1)"), {}, False),
        (stop("ann@pc12"), {"first": True}, False),
        (stop("ann@pc12"), {"take_over": True}, False),
        (stop("ann@pc12", grace=300), {}, False),
        (stop("ann@pc12", age=600), {}, False),  # stale: nobody has carried it out
        (stop("ann@pc1", instance="1"), {}, True),  # an instance does not undo a stop of what it drives
        (stop("ann@pc12", instance="1", grace=300, age=600), {"first": True, "take_over": True}, True),
        (stop("ann@pc1", holder="ann@pc12"), {}, False),  # another's claim: decide_take refuses
    ],
)
def test_which_stop_a_stage_must_not_undo(claim: StoredClaim | None, more: dict[str, bool], stands: bool) -> None:
    why = why_stop_stands(claim, NOW, "ann@pc1", "1", **{"first": False, **more})
    assert (why is not None) is stands


def test_a_stop_that_stands_names_who_asked_and_the_cure() -> None:
    why = why_stop_stands(stop("bob@pc2", by=None), NOW, "ann@pc1", "1", first=False)
    assert why == "stop asked for by bob@pc2; nothing more is started; to go on, run the pipeline from provision"


def test_a_claim_of_an_older_version_names_no_holder_who_asked() -> None:
    old = {"holder": "dag/1", "instance": "1", "term": 2, "state": "stop", "nonce": "n", "seconds": 600}
    claim = load_claim(records.dump({**old, "by": "a user of Airflow (dag/1)", "grace": 0}))
    assert (claim.by_holder, claim.asked_by) == ("", "a user of Airflow (dag/1)")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"schema": 99}', b'{"schema": 1}', records.dump({**stored().claim.model_dump(), "term": 0})],
)
def test_what_is_not_a_claim_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(BadInput, match=r"claim\.json"):
        load_claim(data)


# A driver on a folder and in a bucket.


class Events(list[tuple[str, Mapping[str, object]]]):
    def __call__(self, kind: str, data: Mapping[str, object]) -> None:
        self.append((kind, data))


@pytest.fixture
def store(store_uri: str) -> Store:
    return open_store(store_uri)


def test_the_life_of_a_claim(store: Store) -> None:
    events = Events()
    first = Driver(store, "dag/run-1", "1", 600, on_event=events)
    assert first.take().term == 1
    assert first.renew().state == "held"
    later = Driver(store, "dag/run-1", "another stage", 600, on_event=events)
    assert later.join().term == 1
    assert first.renew().term == 1  # the other stage's write of the same term is no loss
    retry = Driver(store, "dag/run-1", "2", 600, on_event=events)
    assert retry.take().term == 2
    with pytest.raises(EndedOnRequest, match=r"instance 2.*term 2.*instance 1, term 1.*cancels nothing"):
        first.renew()
    stopped = retry.stop(300, "SIGTERM")
    assert (stopped.grace, stopped.by, stopped.by_holder) == (300, "SIGTERM", "dag/run-1")
    assert retry.renew().state == "stop"
    assert retry.take().term == 3
    record = records.load(store.read("claim.json").data, "claim.json")
    nonce = record.pop("nonce")
    assert nonce
    assert record == {
        "schema": 1,
        "holder": "dag/run-1",
        "instance": "2",
        "term": 3,
        "state": "held",
        "seconds": 600.0,
        "by": None,
        "by_holder": "",
        "grace": 0.0,
    }
    retry.done()
    assert retry.renew().state == "done"
    assert [kind for kind, _ in events] == ["claim.taken", "claim.taken", "claim.stopped", "claim.taken", "claim.done"]
    assert events[2][1] == {"holder": "dag/run-1", "instance": "2", "term": 2, "by": "SIGTERM", "grace": 300}
    assert Driver(store, "ann@host", "1:0", 600).take().term == 4


def test_a_refusal_names_who_drives_and_the_cure(store: Store) -> None:
    Driver(store, "dag/run-1", "try 4", 600).take()
    other = Driver(store, "ann@host", "1:0", 600)
    with pytest.raises(
        HeldByAnother, match=r"dag/run-1 \(instance try 4, term 1\), which renewed \d s ago.*10m.*--take-over"
    ) as refused:
        other.take()
    assert refused.value.code == ExitCode.HELD_BY_ANOTHER
    with pytest.raises(HeldByAnother, match=r"dag/run-1.*try 4"):
        other.join()
    with pytest.raises(HeldByAnother, match=r"dag/run-1.*nothing was changed for ann@host"):
        other.require_may_act()
    assert other.take(take_over=True).term == 2
    other.require_may_act()


def test_nobody_has_taken_it(store: Store) -> None:
    driver = Driver(store, "me", "1", 600)
    with pytest.raises(NotFound, match="first stage"):
        driver.join()
    with pytest.raises(NotFound, match="nothing to cancel"):
        stop_by_person(store, "ann")
    driver.require_may_act()
    assert store.list() == []


def test_a_person_stops_what_another_drives(store: Store) -> None:
    driver = Driver(store, "dag/run-1", "1", 600)
    driver.take()
    events = Events()
    claim = stop_by_person(store, "ann@laptop", on_event=events)
    assert (claim.state, claim.by, claim.grace, claim.holder, claim.term) == ("stop", "ann@laptop", 0, "dag/run-1", 1)
    assert claim.by_holder == "ann@laptop"
    stop_by_person(store, "bob@laptop", on_event=events)
    assert driver.renew() == claim  # the very same stop: nobody's grace starts anew
    assert driver.stop(300, "SIGTERM") == claim
    assert driver.done() == claim
    assert [(kind, data["by"]) for kind, data in events] == [("claim.stopped", "ann@laptop")]
    assert driver.done(carried_out=True).state == "done"
    assert stop_by_person(store, "ann@laptop").state == "done"


def test_the_next_process_of_an_instance_goes_on_with_its_term(store: Store) -> None:
    term = Driver(store, "dag/run-1", "1", 600).take().term
    trigger = Driver(store, "dag/run-1", "1", 600, term=term)
    assert trigger.renew().term == 1
    Driver(store, "dag/run-1", "2", 600).take()
    with pytest.raises(EndedOnRequest):
        Driver(store, "dag/run-1", "1", 600, term=term).stop(0, "on_kill")
    found = read_claim(store)
    assert found is not None
    assert found.claim.state == "held"


TAKER = """
import sys
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.errors import HeldByAnother
from elastic_tpu.runs.store.open import open_store
driver = Driver(open_store(sys.argv[1]), sys.argv[2], "1", 600)
print("ready", flush=True)
sys.stdin.readline()
try:
    print(driver.take().term, flush=True)
except HeldByAnother:
    print("refused", flush=True)
"""


def test_of_several_processes_exactly_one_takes(store: Store, store_uri: str) -> None:
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", TAKER, store_uri, f"holder {number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    try:
        for taker in takers:
            assert taker.stdout is not None
            assert taker.stdout.readline() == "ready\n"
        for taker in takers:
            assert taker.stdin is not None
            taker.stdin.write("go\n")
            taker.stdin.flush()
        answers = [taker.communicate(timeout=60)[0].strip() for taker in takers]
    finally:
        for taker in takers:
            taker.kill()
            taker.wait()
    assert sorted(answers) == ["1", "refused", "refused"]
    found = read_claim(store)
    assert found is not None
    assert found.claim.holder == f"holder {answers.index('1')}"


# The command line: the same user, twice.


def test_a_live_process_of_the_same_user_on_this_host_is_refused_and_named(tmp_path: Any) -> None:
    store = open_store(str(tmp_path))
    host = socket.gethostname()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        instance = f"{process.pid}:{psutil.Process(process.pid).create_time():.2f}"
        Driver(store, f"ann@{host}", instance, 600).take()
        with pytest.raises(HeldByAnother, match=rf"instance {instance}.*still runs on this host"):
            Driver(store, f"ann@{host}", this_instance(), 600).take()
        process.kill()
    assert Driver(store, f"ann@{host}", this_instance(), 600).take().term == 2


def test_another_hosts_process_of_the_same_number_does_not_count(tmp_path: Any) -> None:
    store = open_store(str(tmp_path))
    Driver(store, "ann@elsewhere", this_instance(), 600).take()
    assert Driver(store, "ann@elsewhere", "1:2", 600).take().term == 2


def test_a_process_lives_when_pid_and_start_agree() -> None:
    assert process_lives(this_instance())
    pid, _, started = this_instance().partition(":")
    assert not process_lives(f"{pid}:{float(started) - 60}")
    for nonsense in ("", "1", "x:y", f"{pid}:", f"{pid}:x", "-1:0", "99999999999999999999:0", "8d3f-uid"):
        assert not process_lives(nonsense)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        started = str(psutil.Process(child.pid).create_time())
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not process_lives(f"{child.pid}:{started}")  # a zombie drives nothing


# Answers that are lost, and others that write in between.


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("call", ["take", "renew", "stop", "done"])
def test_a_lost_answer(call: str, carried_out: bool) -> None:
    events = Events()
    store = MemoryStore()
    driver = Driver(store, "me", "1", 600, on_event=events)
    calls = {"take": driver.take, "renew": driver.renew, "stop": lambda: driver.stop(0, "user"), "done": driver.done}
    if call != "take":
        driver.take()
    events.clear()
    store.fault, store.carried_out = lost_answer(), carried_out
    if not carried_out:
        with pytest.raises(Unreachable):
            calls[call]()
        assert events == []
    claim = calls[call]()
    assert claim.term == 1
    assert claim.state == {"take": "held", "renew": "held", "stop": "stop", "done": "done"}[call]
    assert len(events) == (0 if call == "renew" else 1)


def test_a_stop_is_one_write_even_when_a_renewal_came_first() -> None:
    store = MemoryStore()
    driver = Driver(store, "me", "1", 600)
    driver.take()
    store.before_write = lambda: Driver(store, "me", "1", 600, term=1).renew()
    assert driver.stop(300, "SIGTERM").state == "stop"


def test_a_renewal_that_loses_to_one_of_its_own_term_writes_nothing() -> None:
    store = MemoryStore()
    driver = Driver(store, "me", "1", 600)
    driver.take()
    other = Driver(store, "me", "another stage", 600)
    store.before_write = lambda: other.join()
    claim = driver.renew()
    found = read_claim(store)
    assert found is not None
    assert found.claim == claim
    assert found.generation == "g2"


def test_a_stop_that_comes_between_is_not_undone_by_a_renewal() -> None:
    store = MemoryStore()
    driver = Driver(store, "me", "1", 600)
    driver.take()
    store.before_write = lambda: stop_by_person(store, "ann")
    assert driver.renew().state == "stop"
    assert driver.renew().by == "ann"


def test_a_person_who_cancels_while_another_takes_is_told() -> None:
    store = MemoryStore()
    Driver(store, "one", "1", 600).take()
    store.before_write = lambda: Driver(store, "two", "1", 600).take(take_over=True)
    with pytest.raises(HeldByAnother, match="two took the run from one just now"):
        stop_by_person(store, "ann")
    found = read_claim(store)
    assert found is not None
    assert found.claim.state == "held"


def test_only_the_storages_clock_matters() -> None:
    store = MemoryStore()
    store.clock = datetime(1999, 1, 1, tzinfo=UTC)
    Driver(store, "one", "1", 600).take()
    store.advance(599)
    with pytest.raises(HeldByAnother, match="9 min 59 s ago"):
        Driver(store, "two", "1", 600).take()
    store.advance(1)
    found = read_claim(store)
    assert found is not None
    assert is_stale(found, store.now())
    assert Driver(store, "two", "1", 600).take().term == 2


def test_a_stop_that_is_carried_out_does_not_go_stale() -> None:
    store = MemoryStore()
    driver = Driver(store, "dag/run-1", "1", 60)
    driver.take()
    stopped = stop_by_person(store, "ann")
    assert driver.renew() == stopped
    store.advance(59)
    assert driver.renew() == stopped  # the same nonce: a trainer's grace does not start anew
    found = read_claim(store)
    assert found is not None
    assert (found.claim, is_stale(found, store.now())) == (stopped, False)
    store.advance(59)
    assert not is_stale(found, store.now())
    driver.done(carried_out=True)
    before = read_claim(store)
    driver.renew()
    assert read_claim(store) == before  # what is over is left alone
