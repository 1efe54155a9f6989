"""Training's own account and decisions around MaxText's loop, without MaxText."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_tpu.runs.record.status import Status
from elastic_tpu.tests.tools.small import run_at, session_of
from elastic_tpu.trainer.session import TrainerSession
from elastic_tpu.trainer.training import elastic
from elastic_tpu.trainer.training.recovery import StepTimes


def training_in(session: TrainerSession) -> elastic.ElasticTraining:
    """Training that has done its first steps; what it has of MaxText is left out."""
    training = object.__new__(elastic.ElasticTraining)
    training._session, training._beat, training._spec = session, session.heartbeat, session.run.spec
    training._times, training._before, training._recovering = StepTimes(), None, None
    training._first_of_attempt, training._completed_at, training._suspended_before = False, 0.0, 0.0
    return training


def test_a_step_that_waited_for_its_slices_counts_without_that_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, suspended = [100.0], [0.0]
    monkeypatch.setattr(elastic.time, "monotonic", lambda: now[0])
    with session_of(run_at(tmp_path)) as session:
        monkeypatch.setattr(type(session.heartbeat), "suspended_seconds", property(lambda self: suspended[0]))
        training = training_in(session)
        training._completed_at = 100.0
        now[0] = 102.0
        training._completed(5, began=100.0)
        now[0], suspended[0] = 1004.0, 900.0
        training._completed(6, began=102.0)
        status: Status = session.heartbeat.status
        assert (status.step, status.step_seconds, status.trained_seconds) == (6, 2.0, 4.0)
