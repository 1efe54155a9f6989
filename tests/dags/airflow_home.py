"""Airflow for tests: a home of its own with a migrated SQLite database, once a session; quiet, and with no network.

Importing Airflow reads its configuration, so the environment comes first: test modules import nothing of Airflow at
their top, take the `airflow` fixture and have the marker of that name.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.tests.support import Case

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "airflow_dag.py"
OPTIONS: dict[str, Any] = {
    "dag_id": "standin",
    "retry_delay": timedelta(0),
    "max_active_runs": 16,
    "specs": ["/"],
    "allow_local": True,
}


@dataclass(frozen=True)
class DagRun:
    """How a DAG run ended: its state, and states, tries and XComs by task."""

    state: str
    holder: str
    tasks: dict[str, str]
    tries: dict[str, int]
    xcom: dict[str, Any]


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airflow's home; the same one for every test file that a process runs."""
    return _set_up(tmp_path_factory.getbasetemp() / "airflow")


@functools.cache
def _set_up(home: Path) -> Path:
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    (home / "dags").mkdir(parents=True)
    shutil.copy(EXAMPLE, home / "dags")
    # `dag.test()` wants its DAG in the folder; the one that runs is the test's own object.
    (home / "dags" / "standin.py").write_text(
        "# airflow dag\n"
        "from elastic_tpu.dags.train_export_evaluate import train_export_evaluate\n"
        'dag = train_export_evaluate("spec.yaml", "standin")\n'
    )
    from airflow.utils import db

    db.initdb()
    return home


@pytest.fixture
def run_dag(airflow: Path) -> Iterator[Callable[..., DagRun]]:
    """Run the DAG on a case with `dag.test()`; operators and triggers run in this process."""
    del airflow
    from elastic_tpu.dags.train_export_evaluate import train_export_evaluate

    def run(
        case: Case,
        *,
        retries: int = 0,
        author: dict[str, Any] | None = None,
        conf: dict[str, Any] | None = None,
        **options: Any,
    ) -> DagRun:
        made = {**OPTIONS, **(author or {})}
        always_deferred = {"retries": retries, "poke_before_defer": 0}
        dag = train_export_evaluate("the DAG run gives it", **made, default_args=always_deferred)
        done: Any = dag.test(run_conf={"spec": str(case.spec), **(conf or {})}, **options)
        tasks = done.get_task_instances()
        return DagRun(
            state=str(done.state),
            holder=f"standin/{done.run_id}",
            tasks={task.task_id: str(task.state) for task in tasks},
            tries={task.task_id: task.try_number for task in tasks},
            xcom={task.task_id: task.xcom_pull(task_ids=task.task_id) for task in tasks},
        )

    before = signal.getsignal(signal.SIGTERM)  # Airflow sets its own and leaves it
    yield run
    signal.signal(signal.SIGTERM, before)
