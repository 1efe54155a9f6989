"""Events: created once and never changed, in order, whoever writes them and whatever the storage loses."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from elastic_tpu.runs.errors import BadInput, Unreachable
from elastic_tpu.runs.record.events import EventLog, EventReader, parse
from elastic_tpu.runs.store.base import Store
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.tests.fakes.store import MemoryStore, lost_answer

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(when: datetime) -> Callable[[], datetime]:
    return lambda: when


def test_an_event_is_one_file_named_for_its_time_and_writer() -> None:
    store = MemoryStore()
    EventLog(store, "trainer", 2, at(NOON)).write("checkpoint.proven", step=20, digest="x")
    (entry,) = store.list("events/")
    assert entry.name == "events/20260131T120000.000Z-trainer2-0000.json"
    assert json.loads(store.read(entry.name).data) == {
        "schema": 1,
        "time": "2026-01-31T12:00:00.000Z",
        "writer": "trainer",
        "attempt": 2,
        "kind": "checkpoint.proven",
        "step": 20,
        "data": {"digest": "x"},
    }


def test_events_are_read_in_order_of_time(store_uri: str) -> None:
    store = open_store(store_uri)
    late = EventLog(store, "a", clock=at(NOON + timedelta(milliseconds=5)))
    soon = EventLog(store, "b", clock=at(NOON))
    late.write("slice.lost", slice=1)
    soon.write("run.created")
    soon.write("claim.taken")
    reader = EventReader(store)
    assert [e.kind for e in reader.all()] == ["run.created", "claim.taken", "slice.lost"]
    late.write("slice.back")
    assert [e.kind for e in reader.all()][-1] == "slice.back"
    assert reader.all()[0].time == NOON


def test_writers_of_one_name_in_one_millisecond_both_leave_their_event() -> None:
    store = MemoryStore()
    EventLog(store, "cli", clock=at(NOON)).write("claim.taken", holder="a")
    EventLog(store, "cli", clock=at(NOON)).write("claim.taken", holder="b")
    assert sorted(e.data["holder"] for e in EventReader(store).all()) == ["a", "b"]


def test_a_lost_answer_does_not_double_an_event() -> None:
    store = MemoryStore()
    store.fault, store.carried_out = lost_answer(), True
    waited: list[Unreachable] = []
    EventLog(store, "trainer", 1).write("recovery.finished", step=3, on_unreachable=waited.append, seconds={})
    assert len(waited) == 1
    assert len(EventReader(store).all()) == 1


def test_without_a_callback_a_storage_that_is_away_is_told() -> None:
    store = MemoryStore()
    store.fault = lost_answer()
    with pytest.raises(Unreachable):
        EventLog(store, "trainer", 1).write("run.created")
    assert EventReader(store).all() == []


def test_an_unknown_kind_is_a_bug() -> None:
    with pytest.raises(ValueError, match=r"unknown event kind 'slice.gone'"):
        EventLog(MemoryStore(), "x").write("slice.gone")


def test_a_callback_writes_events_too() -> None:
    store = MemoryStore()
    EventLog(store, "stage").hook("claim.taken", {"holder": "me", "term": 2})
    (event,) = EventReader(store).all()
    assert (event.kind, event.data) == ("claim.taken", {"holder": "me", "term": 2})


GOOD = b'{"time": "2026-01-31T12:00:00.000Z", "writer": "x", "kind": "run.created"}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        GOOD.replace(b'"2026-01-31T12:00:00.000Z"', b"5"),
        GOOD.replace(b".000Z", b""),  # no zone: it could not be compared with the others
        GOOD.replace(b"2026-01", b"2026-99"),
        GOOD.replace(b'"run.created"', b"null"),
        GOOD.replace(b"}", b', "step": "x"}'),
        GOOD.replace(b"}", b', "data": []}'),
        GOOD.replace(b"}", b', "schema": 2}'),
    ],
)
def test_what_is_no_event_is_left_out(data: bytes) -> None:
    store: Store = MemoryStore()
    store.put("events/a.json", data)
    store.put("events/b.json", GOOD)
    store.put("events/c.txt", b"notes")
    with pytest.raises(BadInput, match=r"events/a.json"):
        parse(data, "events/a.json")
    assert [e.kind for e in EventReader(store).all()] == ["run.created"]
