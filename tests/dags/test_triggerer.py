"""Airflow's own triggerer, a real process: what it tells a trigger when the trigger moves, and when a user acts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.stages.open import open_stage
from elastic_tpu.stages.steps import PROVISION, TRAIN
from elastic_tpu.tests.support import Case, until

pytestmark = pytest.mark.airflow

MakeCase = Callable[..., Case]
RUN_ID = "manual__triggerer"
HOLDER = f"standin/{RUN_ID}"


class Triggerer:
    """The process, and Airflow's database as the scheduler and the API server write it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        # No server of logs, which would listen on every interface.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO"},
        )

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def says(self, text: str) -> None:
        """Wait until it is in the log of a trigger; a new trigger of the same try begins the log anew."""
        until(lambda: any(text in path.read_text() for path in self.home.rglob("*trigger*.log")), f"{text!r} in a log")

    def defer(self, trigger: Any) -> int:
        """The train task becomes deferred to a trigger, which the triggerer runs."""
        from airflow.models.trigger import Trigger
        from airflow.utils.session import create_session

        with create_session() as session:
            row = Trigger.from_object(trigger)
            session.add(row)
            session.flush()
            task = self._task(session)
            task.state, task.trigger_id, task.try_number = "deferred", row.id, 1
            number = row.id

        self.says(f"(ID {number}) starting")
        self.says("train: training, step ")
        return int(number)

    def give_to_another(self, number: int) -> None:
        """What happens to the triggers of a triggerer whose heartbeat is late."""
        from airflow._shared.timezones import timezone
        from airflow.jobs.job import Job
        from airflow.models.trigger import Trigger
        from airflow.utils.session import create_session

        with create_session() as session:
            other = Job(job_type="TriggererJob")
            other.job_type, other.latest_heartbeat = "TriggererJob", timezone.utcnow() + timedelta(hours=1)
            session.add(other)
            session.flush()
            session.get(Trigger, number).triggerer_id = other.id  # type: ignore[union-attr]

    def mark_failed(self) -> None:
        from airflow.utils.session import create_session

        with create_session() as session:
            task = self._task(session)
            task.set_state("failed", session=session)
            task.trigger_id = None

    @staticmethod
    def _task(session: Any) -> Any:
        from airflow.models.taskinstance import TaskInstance
        from sqlalchemy import select

        of_train = (TaskInstance.run_id == RUN_ID, TaskInstance.task_id == "train")
        return session.scalars(select(TaskInstance).where(*of_train)).one()


@pytest.fixture
def triggerer(airflow: Path) -> Iterator[Triggerer]:
    from airflow._shared.timezones import timezone
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    (bundle,) = manager.get_all_dag_bundles()
    bundle.initialize()
    bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    sync_bag_to_db(bag, bundle.name, bundle.version)
    dag, now = SerializedDagModel.get_dag("standin"), timezone.utcnow()
    assert dag is not None
    dag.create_dagrun(
        run_id=RUN_ID,
        logical_date=now,
        data_interval=(now, now),
        run_after=now,
        run_type=DagRunType.MANUAL,
        triggered_by=DagRunTriggeredByType.TEST,
        state="running",
    )
    started = Triggerer(airflow)
    yield started
    started.end()


@pytest.mark.full
def test_a_trigger_that_moves_cancels_nothing_and_one_that_a_user_ends_does(
    triggerer: Triggerer, make_case: MakeCase
) -> None:
    from elastic_tpu.components.airflow_trigger import StageTrigger

    case = make_case(train={"steps": 100_000})
    provision = open_stage(PROVISION, str(case.spec), HOLDER, "provision try 1", allow_local=True)
    provision.submit()
    until(lambda: provision.poll().done)
    train = open_stage(TRAIN, str(case.spec), HOLDER, "train try 1", allow_local=True)
    train.submit()
    case.wait_for_step(3)
    trigger = StageTrigger(
        step="train",
        run=case.uri,
        holder=HOLDER,
        instance="train try 1",
        term=train.term,
        deadline=None,
        allow_local=True,
    )

    number = triggerer.defer(trigger)
    triggerer.give_to_another(number)
    triggerer.says("invoking on_kill")  # Airflow tells it that a user acted
    triggerer.says("still deferred")
    assert not case.events("claim.stopped")

    triggerer.defer(trigger)
    triggerer.mark_failed()
    until(lambda: case.events("claim.stopped"), "a stop")
    assert [event.data["grace"] for event in case.events("claim.stopped")] == [0]
    until(lambda: (status := case.status) is not None and status.phase == "ended", "the end of training")
