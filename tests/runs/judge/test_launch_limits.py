"""Which limit of the start is spent, when, and with which words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from elastic_tpu.runs.judge.launch_limits import SpentLimit, spent_limit
from elastic_tpu.runs.judge.verdict import Observation
from elastic_tpu.runs.record.status import Status
from elastic_tpu.runs.spec.run_spec import Limits

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LIMITS = Limits.model_validate({"queue": "48h", "start": "45m", "first_step": "30m"})
HOUR, MINUTE = 3600.0, 60.0


def seen(state: Any, waited: float = 0.0, detail: str = "", **more: Any) -> Observation:
    return Observation(state, detail=detail, waited=waited, **more)


def again(waited: float, detail: str = "") -> Observation:
    return Observation("over", -9, True, detail, waited=waited, trainer_lives=False, ran=True)


def running(minutes: float) -> Observation:
    return seen("running", running_since=NOW - timedelta(minutes=minutes))


def status(phase: Any = "compiling", **more: Any) -> Status:
    return Status("r-12345678", 1, "nonce", phase=phase, **more)


ENDED = status("ended", step=70, exit=75)  # of a trainer of this run before this job

ROWS: list[tuple[Observation, Status | None, str | None]] = [
    (seen("queued", 48 * HOUR), None, None),
    (seen("queued", 48 * HOUR + 1), None, "limits.queue"),
    (seen("queued", 48 * HOUR + 1), ENDED, "limits.queue"),
    (seen("starting", 45 * MINUTE), None, None),
    (seen("starting", 45 * MINUTE + 1), None, "limits.start"),
    (seen("starting", 45 * MINUTE + 1), status("waiting"), "limits.start"),
    # A trainer that got on with some of the slices, or got over a loss, is not starting.
    (seen("starting", 9 * HOUR, trainer_lives=True), status("training", step=0), None),
    (seen("starting", 9 * HOUR, trainer_lives=True), status("waiting", recovery=1), None),
    # What was done before this job does not help it to start.
    (seen("starting", 9 * HOUR, trainer_lives=False), ENDED, "limits.start"),
    (seen("starting", 9 * HOUR, trainer_lives=False), status("training", step=70), "limits.start"),
    # One that had all its slices before is on its way back.
    (seen("starting", 9 * HOUR, ran=True, trainer_lives=True), None, None),
    # But a head that is gone counts nothing, and must come back.
    (seen("starting", 45 * MINUTE, ran=True, trainer_lives=False), status("training", step=70), None),
    (seen("starting", 45 * MINUTE + 1, ran=True, trainer_lives=False), status("training", step=70), "limits.start"),
    (again(45 * MINUTE), ENDED, None),
    (again(45 * MINUTE + 1), ENDED, "limits.start"),
    (again(45 * MINUTE + 1), status("training", step=70), "limits.start"),
    # Who is put back waits in the queue once more.
    (seen("suspended", 48 * HOUR), None, None),
    (seen("suspended", 48 * HOUR + 1), status("training", step=70), "limits.queue"),
    (running(30), None, None),
    (running(31), None, "limits.first_step"),
    (running(31), status("compiling"), "limits.first_step"),
    (running(31), status("training", step=0), None),
    (running(31), status("compiling", recovery=1), None),
    (running(31), status("restoring", proven_step=40), None),
    (seen("running"), None, None),  # slices are missing: the trainer's own limits
    (seen("over", 900 * HOUR), None, None),
    (seen("absent", 900 * HOUR), None, None),
]


@pytest.mark.parametrize(("observed", "said", "limit"), ROWS)
def test_a_limit(observed: Observation, said: Status | None, limit: str | None) -> None:
    found = spent_limit(observed, said, LIMITS, NOW)
    assert (found.field if found else None) == limit


@pytest.mark.parametrize(
    ("observed", "said", "reason"),
    [
        (
            seen("queued", 50 * HOUR, "waits in queue tpu: Pending: insufficient quota"),
            None,
            "limits.queue (2d) is spent: waits in queue tpu: Pending: insufficient quota",
        ),
        (
            seen("starting", 1 * HOUR, "head: the pod is refused: exceeded quota: q"),
            None,
            "limits.start (45m) is spent: head: the pod is refused: exceeded quota: q",
        ),
        (
            seen("suspended", 50 * HOUR, "waits in queue tpu"),
            None,
            "limits.queue (2d) is spent: it ran and was put back; waits in queue tpu",
        ),
        (
            again(1 * HOUR, "the head is being started again (restart 1 of 2); head: no node for the pod"),
            ENDED,
            "limits.start (45m) is spent: the head is being started again (restart 1 of 2); head: no node for the pod",
        ),
        (
            running(31),
            status("compiling"),
            "limits.first_step (30m) is spent: all slices are ready, no step is done and the trainer is compiling",
        ),
        (
            running(31),
            None,
            "limits.first_step (30m) is spent: all slices are ready, no step is done and the trainer has written no "
            "status.json",
        ),
    ],
)
def test_the_reason_names_the_limit_and_what_was_waited_for(
    observed: Observation, said: Status | None, reason: str
) -> None:
    found = spent_limit(observed, said, LIMITS, NOW)
    assert isinstance(found, SpentLimit)
    assert found.reason == reason


def test_an_export_has_no_first_step_but_must_start() -> None:
    assert spent_limit(running(31), None, LIMITS, NOW, trains=False) is None
    assert spent_limit(seen("starting", 1 * HOUR), None, LIMITS, NOW, trains=False) is not None
