"""Which limit is spent, phase by phase (D16: one budget each, each with its own message)."""

from __future__ import annotations

import pytest
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.tests.tools.small import spec
from elastic_tpu.trainer.limits import Watch, overdue

SPEC = spec(limits={"total": "10h", "first_step": "30m"}, recovery={"wait_for_slices": "2h", "stalled_after": "20m"})
MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(
    ("watch", "code", "reason", "now"),
    [
        # Waiting for slices: its own limit, and the run's.
        (Watch("waiting", 2 * HOUR, 9 * HOUR, 9 * HOUR), None, "", False),
        (Watch("waiting", 2 * HOUR + 1, 0, 9 * HOUR), 77, "recovery.wait_for_slices (2h) is spent", True),
        (Watch("waiting", 1, 0, 10 * HOUR + 1), 77, "limits.total (10h) is spent", True),
        # Slices that training holds are away: the same, however long no step came.
        (Watch("suspended", 2 * HOUR, 9 * HOUR, 9 * HOUR), None, "", False),
        (Watch("suspended", 2 * HOUR + 1, 3 * HOUR, 9 * HOUR), 77, "recovery.wait_for_slices (2h) is spent", True),
        (Watch("suspended", 1, HOUR, 10 * HOUR + 1), 77, "limits.total (10h) is spent", True),
        # A stall is judged only while there is live state.
        (Watch("training", 5 * HOUR, 20 * MINUTE, 5 * HOUR), None, "", False),
        (Watch("training", 5 * HOUR, 21 * MINUTE, 5 * HOUR), 75, "no step for 20m (recovery.stalled_after)", True),
        (Watch("saving", 21 * MINUTE, 21 * MINUTE, 5 * HOUR), 75, "no step for 20m", True),
        (Watch("stopping", 21 * MINUTE, 21 * MINUTE, 5 * HOUR), 75, "no step for 20m", True),
        # The run's limit lets a step end and be saved, also while that is under way.
        (Watch("saving", 1, 21 * 60, 11 * HOUR), 75, "stalled: no step for 20m", True),  # the last save hangs
        (Watch("training", 1, 1, 11 * HOUR), 77, "limits.total (10h) is spent", False),
        (Watch("saving", 1, 1, 11 * HOUR), 77, "limits.total (10h) is spent", False),
        (Watch("stopping", 1, 1, 11 * HOUR), 77, "limits.total (10h) is spent", False),
        # A library that blocks before there is anything to save.
        (Watch("starting", 30 * MINUTE, 30 * MINUTE, HOUR), None, "", False),
        (Watch("starting", 31 * MINUTE, 31 * MINUTE, HOUR), 75, "stalled: starting for 30m (limits.first_step)", True),
        (Watch("restoring", 31 * MINUTE, 31 * MINUTE, HOUR), 75, "stalled: restoring", True),
        (Watch("compiling", 31 * MINUTE, 31 * MINUTE, HOUR), 75, "stalled: compiling", True),
        (Watch("compiling", 1, 1, 11 * HOUR), 77, "limits.total (10h) is spent", True),
        (Watch("ended", 99 * HOUR, 99 * HOUR, 9 * HOUR), None, "", False),
    ],
)  # fmt: skip
def test_limits(watch: Watch, code: int | None, reason: str, now: bool) -> None:
    spent = overdue(watch, SPEC)
    if code is None:
        assert spent is None
    else:
        assert spent is not None
        assert (spent.code, spent.now) == (code, now)
        assert reason in spent.reason


def test_preparation_has_the_longer_of_two_limits() -> None:
    patient = spec(limits={"first_step": "5m"}, recovery={"stalled_after": "40m"})
    assert overdue(Watch("compiling", 39 * MINUTE, 39 * MINUTE, HOUR), patient) is None
    spent = overdue(Watch("compiling", 41 * MINUTE, 41 * MINUTE, HOUR), patient)
    assert spent is not None
    assert "recovery.stalled_after" in spent.reason


def test_with_recovery_off_the_defaults_hold() -> None:
    off = spec(recovery=False)
    spent = overdue(Watch("waiting", 5 * HOUR, 0, 5 * HOUR), off)
    assert spent is not None
    assert spent.code is ExitCode.LIMIT_SPENT
