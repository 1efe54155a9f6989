"""started.json and exit.json of earlier process starts: read, and rebuilt from the events when they are damaged."""

from __future__ import annotations

import json

import pytest
from elastic_tpu.runs.errors import BadInput, Damaged
from elastic_tpu.runs.record.attempts import Rebuilt, read_attempts, read_ended, read_started
from elastic_tpu.runs.record.events import EventLog
from elastic_tpu.runs.store import records
from elastic_tpu.tests.fakes.store import MemoryStore
from elastic_tpu.tests.tools.small import run_in
from elastic_tpu.trainer.session import ProcessAttempt

DAMAGED = [b"", b'{"time"', b"x", b"[1]", b"{}", b'{"time": "x"}', b'{"time": 7, "exit_code": "no"}']


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_file_is_rebuilt_from_the_events(data: bytes) -> None:
    store, told = MemoryStore(), list[Rebuilt]()
    run = run_in(store)
    events = EventLog(store, "trainer", 1)
    events.write("attempt.started", pid=7, proven_step=None)
    events.write("attempt.ended", code=76, reason="stopped by somebody")
    for file in ("started", "exit"):
        store.put(f"attempts/1/{file}.json", data)
    with pytest.raises(Damaged, match=r"attempts/1/started.json"):
        read_started(run, "train", 1)
    found = read_attempts(run, "train", told.append)[1]
    assert found.started is not None
    assert (found.started.pid, found.started.model_fields_set) == (7, {"time", "pid", "proven_step"})
    assert found.ended is not None
    assert (found.ended.exit_code, found.ended.code, found.ended.reason) == (76, 76, "stopped by somebody")
    assert sorted(one.file for one in told) == ["attempts/1/exit.json", "attempts/1/started.json"]
    assert [store.read(one.aside).data for one in told] == [data, data]
    assert read_attempts(run, "train", told.append) == {1: found}
    assert len(told) == 2


def test_what_no_event_knows_is_the_time_of_the_file_and_no_exit() -> None:
    store, told = MemoryStore(), list[Rebuilt]()
    run = run_in(store)
    for file in ("started", "exit"):
        store.put(f"jobs/export/3/{file}.json", b"")
    found = read_attempts(run, "export", told.append)[3]
    assert found.started is not None
    assert found.started.model_fields_set == {"time"}
    assert found.ended is read_ended(run, "export", 3) is None
    assert [one.how for one in told] == ["removed: how the process ended is not known", "the time of the file"]


def test_a_file_of_a_newer_version_is_refused_and_kept() -> None:
    store = MemoryStore()
    data = json.dumps({"schema": 2, "time": records.timestamp()}).encode()
    store.put("attempts/1/started.json", data)
    with pytest.raises(BadInput, match=r"attempts/1/started.json: schema 2 is newer") as raised:
        read_attempts(run_in(store), "train", lambda rebuilt: None)
    assert not isinstance(raised.value, Damaged)
    assert [entry.name for entry in store.list()] == ["attempts/1/started.json"]


def test_a_new_process_counts_on_after_a_damaged_one_and_says_so() -> None:
    store = MemoryStore()
    run = run_in(store)
    first = ProcessAttempt(run, "train", 10)
    EventLog(store, "trainer", 1).write("attempt.started", pid=1, proven_step=10)
    store.put(f"attempts/{first.number}/started.json", b'{"time": "x"}')
    second = ProcessAttempt(run, "train", 10)
    assert (second.number, second.proven_at_start) == (2, [10])
    events = [json.loads(store.read(entry.name).data) for entry in store.list("events/")]
    assert [event["data"]["file"] for event in events if event["kind"] == "record.rebuilt"] == [
        "attempts/1/started.json"
    ]
