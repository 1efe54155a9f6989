"""The two events of a recovery: what is written is what is read, and what damage or an older writer leaves out."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from elastic_tpu.runs.record.events import Event, EventLog, EventReader
from elastic_tpu.runs.record.recovery_events import RecoveryFinished, RecoveryStarted, finished_recoveries
from elastic_tpu.tests.fakes.store import MemoryStore

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
STARTED = RecoveryStarted("slice 1 lost", (1,), 25, False, 0.125, 35.5)
SECONDS = {"detect": 0.5, "wait": 60.25, "rebuild": 15.0, "first_step": 2.0}
FINISHED = RecoveryFinished("slice 1 lost", (1, 2), 25, 20, 5, SECONDS, 4.75, False, "estimated", "2 of 3 slices")


def written(kind: str, step: int | None, data: dict[str, Any]) -> Event:
    """The event as it comes back from the store."""
    store = MemoryStore()
    EventLog(store, "trainer", 1, clock=lambda: NOON).write(kind, step=step, **data)
    (event,) = EventReader(store).all()
    return event


def test_what_the_trainer_writes_is_what_others_read() -> None:
    started = RecoveryStarted.of(written(STARTED.KIND, STARTED.reached, STARTED.data()))
    assert started == dataclasses.replace(STARTED, time=NOON)
    (finished,) = finished_recoveries([written(FINISHED.KIND, 21, FINISHED.data())])
    assert finished == dataclasses.replace(FINISHED, time=NOON)
    assert finished.total_seconds == 77.75


def test_the_format_of_the_event_files() -> None:
    assert STARTED.data() == {
        "cause": "slice 1 lost", "slices": [1], "in_process": False, "detect": 0.125, "trained_seconds": 35.5,
    }  # fmt: skip
    assert FINISHED.data() == {
        "cause": "slice 1 lost", "slices": [1, 2], "reached": 25, "restored": 20, "steps_lost": 5, "seconds": SECONDS,
        "repeated_seconds": 4.75, "in_process": False, "account": "estimated", "exact": False,
        "result": "2 of 3 slices",
    }  # fmt: skip


def test_seconds_are_written_to_the_millisecond() -> None:
    assert dataclasses.replace(STARTED, detect=1 / 3).data()["detect"] == 0.333
    assert dataclasses.replace(FINISHED, seconds=dict.fromkeys(SECONDS, 2 / 3)).data()["seconds"]["wait"] == 0.667


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"slices": None, "reached": None, "seconds": None, "steps_lost": "5", "detect": "x", "trained_seconds": []},
        {"slices": 1, "restored": "20", "seconds": [1, 2], "repeated_seconds": float("nan")},
        {"seconds": {"detect": None, "other": 3.0}},
    ],
)
def test_missing_and_damaged_fields_have_their_defaults(data: dict[str, Any]) -> None:
    event = Event(NOON, "trainer", RecoveryFinished.KIND, data=data)
    assert RecoveryFinished.of(event) == RecoveryFinished(time=NOON)
    assert RecoveryStarted.of(event) == RecoveryStarted(time=NOON)


@pytest.mark.parametrize(("exact", "account"), [(True, "exact"), (False, "estimated")])
def test_an_event_of_an_older_version_tells_its_account_and_no_result(exact: bool, account: str) -> None:
    found = RecoveryFinished.of(Event(NOON, "trainer", RecoveryFinished.KIND, data={"exact": exact}))
    assert (found.account, found.result, found.result_words) == (account, "", "")
