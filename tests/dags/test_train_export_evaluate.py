"""The DAG as Airflow runs it: whole runs, every stage failing once, and who drives a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_tpu.platforms.base import ReleaseReport
from elastic_tpu.platforms.local.platform import LocalPlatform
from elastic_tpu.runs.errors import ExitCode, Infrastructure
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.events import EventLog
from elastic_tpu.runs.record.start import start_or_open
from elastic_tpu.runs.record.status import Status
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.tests.dags.airflow_home import EXAMPLE, ROOT, DagRun
from elastic_tpu.tests.support import Case, Launcher, expected_state
from elastic_tpu.tests.tools import small

pytestmark = pytest.mark.airflow

RunDag = Callable[..., DagRun]
MakeCase = Callable[..., Case]
SMALL: dict[str, Any] = {
    "export": {},
    "evaluate": {"gate": ["heldout.loss <= 1.5"]},
    "data": {"eval": "valid.parquet"},
    "train": {"steps": 5},
    "checkpoint": {"every": 5},
}
CHAIN = ["reserve", "provision", "train", "release", "export", "evaluate"]


def assert_ended_at(done: DagRun, failed: str) -> None:
    """The chain went as far as `failed`; the teardown released, and the verdict and the DAG run failed."""
    at = CHAIN.index(failed)
    assert done.state == "failed"
    assert done.tasks == {
        **dict.fromkeys(CHAIN[:at], "success"),
        failed: "failed",
        **dict.fromkeys(CHAIN[at + 1 :], "upstream_failed"),
        "release_at_end": "success",
        "verdict": "failed",
    }


# ---- the shape


def test_the_setup_of_the_teardowns_is_what_buys_nothing(airflow: Path) -> None:
    from elastic_tpu.dags.train_export_evaluate import train_export_evaluate

    dag = train_export_evaluate("spec.yaml")
    tasks = dag.task_dict
    for before, after in zip(CHAIN, [*CHAIN[1:], "release_at_end"], strict=True):
        assert after in tasks[before].downstream_task_ids
    # Both are last tasks: Airflow takes the DAG run's state from these alone.
    assert tasks["verdict"].upstream_task_ids >= {"evaluate", "reserve"}
    assert not tasks["verdict"].downstream_task_ids
    assert not tasks["release_at_end"].downstream_task_ids
    teardowns = {name for name, task in tasks.items() if task.is_teardown}
    assert teardowns == {"release_at_end", "verdict"}
    assert all(tasks[name].on_failure_fail_dagrun for name in teardowns)
    assert {name for name, task in tasks.items() if task.is_setup} == {"reserve"}
    assert dag.dagrun_timeout is None
    with pytest.raises(ValueError, match=r"dagrun_timeout.*leave slices behind"):
        train_export_evaluate("spec.yaml", dagrun_timeout=timedelta(hours=1))


def test_airflow_finds_the_example(airflow: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(airflow / "dags")
    assert not bag.import_errors
    assert "train_qwen3_8b" in bag.dags
    assert bag.dags["train_qwen3_8b"].params["spec"].endswith("qwen3-8b.yaml")


def test_airflow_shows_what_the_dag_its_tasks_and_its_parameter_are_for(airflow: Path) -> None:
    from elastic_tpu.dags.train_export_evaluate import train_export_evaluate

    dag = train_export_evaluate("gs://acme/specs/a.yaml")
    assert dag.doc_md is not None
    assert all(f"`{name}`" in dag.doc_md for name in dag.task_dict)
    assert all(task.doc_md for task in dag.tasks)
    assert "must lie under gs://acme. " in dag.params.get_param("spec").description
    assert train_export_evaluate("a.yaml", doc_md="mine").doc_md == "mine"


def snippets() -> list[str]:
    """The example, and each block of Python in the documents that makes the DAG: what a user puts into a DAG folder."""
    documents = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    blocks = re.findall(r"^```python\n(.*?)^```", "\n".join(documents), re.MULTILINE | re.DOTALL)
    return [EXAMPLE.read_text(), *(block for block in blocks if "train_export_evaluate" in block)]


def test_airflow_reads_a_file_of_each_documented_snippet(airflow: Path, tmp_path: Path) -> None:
    from airflow.utils.file import might_contain_dag

    assert len(snippets()) >= 2
    for snippet in snippets():
        (tmp_path / "mine.py").write_text(snippet)
        assert might_contain_dag(str(tmp_path / "mine.py"), safe_mode=True), snippet


def test_reserve_starts_no_run_without_a_login(airflow: Path, tmp_path: Path, gcs_bucket: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from elastic_tpu.dags.train_export_evaluate import reserve

    source = tmp_path / "spec.yaml"
    run = {"name": "small-{run}", "output": f"gs://{gcs_bucket}/runs"}
    source.write_text(yaml.safe_dump(small.gke(run=run, gke={"kubeconfig": str(tmp_path / "config")})))
    with pytest.raises(AirflowFailException, match=r"gke\.kubeconfig: .*there is no such file"):
        reserve.function(str(source), "dag/1", allow_local=True)
    assert open_store(f"gs://{gcs_bucket}/runs").list() == []


def test_reserve_starts_one_run_for_its_dag_run(airflow: Path, make_case: MakeCase) -> None:
    from elastic_tpu.dags.train_export_evaluate import reserve

    case = make_case(run={"name": "r-{run}"})

    def reserved(source: str, holder: str) -> str:
        return str(reserve.function(source, holder, allow_local=True)["run"])

    first = reserved(str(case.spec), "dag/1")
    assert first == reserved(str(case.spec), "dag/1") == str(case.output / "r-dag-1")
    assert reserved(first, "dag/2") == first  # a run that is to go on is named by its URI
    assert reserved(str(case.spec), "dag/2") == str(case.output / "r-dag-2")


def test_each_logical_date_has_its_run_and_a_second_dag_run_of_a_day_is_refused(
    airflow: Path, make_case: MakeCase
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from elastic_tpu.dags.train_export_evaluate import reserve

    case = make_case(run={"name": "r-{date}"})

    def reserved(holder: str, day: int) -> str:
        moment = datetime(2026, 1, day, tzinfo=UTC)
        return str(reserve.function(str(case.spec), holder, allow_local=True, logical_date=moment)["run"])

    assert [reserved(f"dag/{day}", day) for day in (1, 2)] == [f"{case.output}/r-2026010{day}" for day in (1, 2)]
    with pytest.raises(AirflowFailException, match=r"use {run} in it.*code 64"):
        reserved("dag/manual", 1)


def test_the_name_is_of_the_logical_date(run_dag: RunDag, make_case: MakeCase) -> None:
    case = make_case(**SMALL, slices={"count": 2}, run={"name": "r-{date}"})
    done = run_dag(case, logical_date=datetime(2026, 1, 31, tzinfo=UTC), mark_success_pattern="^(?!reserve)")
    assert done.xcom["reserve"]["run"] == f"{case.output}/r-20260131"


class StateStore(dict[str, Any]):
    """Airflow's store of a task's state, which outlives a clear."""

    def set(self, key: str, value: Any, *, retention: timedelta) -> None:
        self[key] = json.loads(json.dumps(value))


def test_a_cleared_reserve_returns_its_run_whatever_the_spec_says_now(airflow: Path, make_case: MakeCase) -> None:
    from elastic_tpu.dags.train_export_evaluate import reserve

    case, store = make_case(), StateStore()
    first = reserve.function(str(case.spec), "dag/1", allow_local=True, task_state_store=store)
    assert first == {"run": case.uri, "spec_hash": case.run.spec_hash}
    for edited in (case.spec.read_text().replace("60", "61"), "not a spec"):
        case.spec.write_text(edited)
        assert reserve.function(str(case.spec), "dag/1", task_state_store=store) == first


# ---- whole runs


def test_a_run_loses_a_slice_and_completes_as_if_it_had_not(run_dag: RunDag, make_case: MakeCase) -> None:
    fault = {"slice": 1, "after_step": 25, "down": "200ms"}
    case = make_case(**SMALL | {"train": {"steps": 200}}, local={"faults": [fault]})
    done = run_dag(case)
    assert done.state == "success"
    assert set(done.tasks.values()) == {"success"}
    assert case.final_state() == expected_state(200)
    assert case.attempts() == [1]
    result = case.json("result.json")
    assert result is not None
    assert (result["final_step"], result["recoveries"]) == (199, 1)
    assert case.json("export/199/manifest.json")
    assert len(case.events("slice.lost")) == len(case.events("slice.back")) == 1
    assert len(case.events("slice.released")) == 2
    assert case.claim is not None
    assert (case.claim.claim.state, case.claim.claim.holder) == ("done", done.holder)
    case.released()
    assert done.xcom["reserve"] == {"run": case.uri, "spec_hash": case.run.spec_hash}
    assert done.xcom["train"]["final_step"] == 199
    assert done.xcom["release"]["deleted"] == ["slice 0", "slice 1"]
    for name in CHAIN:
        assert len(json.dumps(done.xcom[name])) < 2000


def test_the_state_of_reserve_outlives_its_try(run_dag: RunDag, make_case: MakeCase) -> None:
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    case = make_case()
    done = run_dag(case, mark_success_pattern="^(?!reserve)")
    with create_session() as session:
        of_run = TaskStateStoreModel.run_id == done.holder.partition("/")[2]
        (stored,) = session.scalars(select(TaskStateStoreModel.value).where(of_run)).all()
    assert json.loads(stored) == {"run": case.uri, "spec_hash": case.run.spec_hash}


def test_a_complete_run_is_not_done_again(run_dag: RunDag, make_case: MakeCase) -> None:
    case = make_case(**SMALL)
    assert run_dag(case).state == "success"
    again = run_dag(case)
    assert again.state == "success"
    assert "no slices are needed" in again.xcom["provision"]["summary"]
    assert case.attempts() == case.attempts("export") == case.attempts("evaluate") == [1]
    assert len(case.events("slice.requested")) == 2


def test_a_run_that_exports_nothing_is_complete_with_its_training(run_dag: RunDag, make_case: MakeCase) -> None:
    case = make_case(train={"steps": 5}, checkpoint={"every": 5})
    assert run_dag(case).state == "success"
    assert case.attempts() == [1]
    assert case.attempts("export") == []
    case.released()


# ---- every stage fails once


def test_a_spec_that_is_wrong_buys_nothing(run_dag: RunDag, make_case: MakeCase) -> None:
    case = make_case(**SMALL, slices={"count": 0})
    done = run_dag(case, retries=2)
    assert done.state == "failed"
    assert done.tasks == {
        "reserve": "failed",
        **dict.fromkeys([*CHAIN[1:], "release_at_end", "verdict"], "upstream_failed"),
    }
    assert done.tries["reserve"] == 1
    assert not case.output.exists()


def test_provision_that_fails_half_way_is_given_back(
    run_dag: RunDag, make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = LocalPlatform.acquire

    def half(self: LocalPlatform) -> None:
        acquire(self)
        raise Infrastructure("stockout")

    monkeypatch.setattr(LocalPlatform, "acquire", half)
    case = make_case(**SMALL)
    done = run_dag(case, retries=1)
    assert_ended_at(done, "provision")
    assert done.tries["provision"] == 2  # what a new try may cure is tried again
    assert done.xcom["release_at_end"]["deleted"] == ["slice 0", "slice 1"]
    case.released()
    assert case.claim is not None
    assert case.claim.claim.state == "done"


@pytest.mark.parametrize(
    ("options", "failed"),
    [
        (["--exit-at", "3:70"], "train"),
        (["--fail-job", "export"], "export"),
        (["--fail-job", "evaluate"], "evaluate"),
        (["--loss", "2.5"], "evaluate"),
    ],
)
def test_a_stage_fails(run_dag: RunDag, make_case: MakeCase, options: list[str], failed: str) -> None:
    case = make_case(*options, **SMALL)
    done = run_dag(case, retries=2)
    assert_ended_at(done, failed)
    assert done.tries[failed] == 1  # a new try would fail as well
    assert case.attempts() == [1]
    assert (case.json("result.json") is None) == (failed == "train")
    case.released()
    assert case.claim is not None
    assert case.claim.claim.state == "done"  # another DAG run may go on with it at once


def test_a_release_that_fails_is_made_up_for_at_the_end(
    run_dag: RunDag, make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, calls = LocalPlatform.release, []

    def fails_once(self: LocalPlatform, jobs: bool = True, waiting: object = None) -> ReleaseReport:
        calls.append(jobs)
        return ReleaseReport((), (), ("pid 1",)) if len(calls) == 1 else release(self, jobs)

    monkeypatch.setattr(LocalPlatform, "release", fails_once)
    case = make_case(**SMALL)
    assert_ended_at(run_dag(case), "release")
    case.released()


def test_slices_that_are_left_at_the_end_fail_the_dag_run(
    run_dag: RunDag, make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, calls = LocalPlatform.release, []

    def fails_at_end(self: LocalPlatform, jobs: bool = True, waiting: object = None) -> ReleaseReport:
        calls.append(jobs)
        return release(self, jobs) if len(calls) == 1 else ReleaseReport((), (), ("pid 1",))

    monkeypatch.setattr(LocalPlatform, "release", fails_at_end)
    done = run_dag(make_case(**SMALL))
    assert done.state == "failed"
    assert done.tasks == {**dict.fromkeys([*CHAIN, "verdict"], "success"), "release_at_end": "failed"}
    assert done.tries["release_at_end"] > 2


def test_success_that_was_marked_by_hand_proves_nothing(run_dag: RunDag, make_case: MakeCase) -> None:
    case = make_case(**SMALL)
    done = run_dag(case, mark_success_pattern="train|export|evaluate")
    assert done.state == "failed"
    assert done.tasks == {**dict.fromkeys([*CHAIN, "release_at_end"], "success"), "verdict": "failed"}
    case.released()


def verdict_on(case: Case) -> str:
    """What the task `verdict` says of a run that is not complete; it fails without a retry."""
    from airflow.sdk.exceptions import AirflowFailException
    from elastic_tpu.dags.train_export_evaluate import verdict

    with pytest.raises(AirflowFailException) as raised:
        verdict.function(case.uri)
    return str(raised.value)


def test_the_verdict_on_a_run_that_a_user_stopped_says_so(airflow: Path, make_case: MakeCase) -> None:
    case = make_case()
    start_or_open(str(case.spec), "dag/1", lambda spec: None)
    driver = Driver(case.run.store, "dag/1", "train try 1", 60.0, on_event=EventLog(case.run.store, "stage").hook)
    driver.take()
    assert verdict_on(case).endswith("(code 70, a bug or user error)")  # nobody has trained
    driver.stop(0.0, "a user of Airflow (dag/1)")
    driver.done()
    told = verdict_on(case)
    assert "is not complete: stop asked for by a user of Airflow (dag/1); training is not proven" in told
    assert told.endswith("(code 76, ended on request)")


@pytest.mark.parametrize(("code", "words"), [(75, "infrastructure, or stalled"), (77, "a limit of the spec is spent")])
def test_the_verdict_on_a_training_that_ended_says_how(
    airflow: Path, make_case: MakeCase, code: int, words: str
) -> None:
    case = make_case()
    start_or_open(str(case.spec), "dag/1", lambda spec: None)
    ended = Status(case.run.run_id, 1, "n", phase="ended", exit=code, reason="no progress for 1h")
    case.run.store.put("status.json", ended.dump())
    told = verdict_on(case)
    assert f"the trainer ended with {code} (no progress for 1h); training is not proven" in told
    assert told.endswith(f"(code {code}, {words})")


def test_a_retry_comes_before_simulated_slices_give_themselves_up(airflow: Path, make_case: MakeCase) -> None:
    from elastic_tpu.dags.train_export_evaluate import train_export_evaluate

    delay = train_export_evaluate("spec.yaml").task_dict["provision"].retry_delay
    assert delay.total_seconds() <= check(small.document()).local.unclaimed / 2  # the scheduler takes its time as well


# ---- what whoever triggers cannot have


@pytest.mark.parametrize("author", [{"specs": ["/srv/specs"]}, {"specs": []}, {"allow_local": False}], ids=str)
def test_a_trigger_alone_runs_nothing_here(run_dag: RunDag, make_case: MakeCase, author: dict[str, Any]) -> None:
    case = make_case(**SMALL)
    done = run_dag(case, author=author, conf={"allow_local": True, "specs": ["/"]})
    assert done.tasks["reserve"] == "failed"
    assert done.tasks["provision"] == "upstream_failed"
    assert done.tries["reserve"] == 1
    assert not case.output.exists()


def test_reserve_says_what_is_not_allowed_and_by_whom(
    airflow: Path, make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from elastic_tpu.dags.train_export_evaluate import reserve

    source = str(make_case().spec)
    with pytest.raises(AirflowFailException, match="may start only what lies under /srv/specs"):
        reserve.function(source, "dag/1", ["/srv/specs"], allow_local=True)
    with pytest.raises(AirflowFailException, match=r"platform: 'local', would run.*allow_local=True"):
        reserve.function(source, "dag/1", ["/"])
    monkeypatch.setenv("ELASTIC_TPU_SPECS", "gs://acme/specs, /srv/specs")  # the operator's word narrows the author's
    with pytest.raises(AirflowFailException, match="may start only what lies under gs://acme/specs, /srv/specs"):
        reserve.function(source, "dag/1", ["/"], allow_local=True)


def test_a_spec_that_is_changed_after_the_reservation_is_not_run(
    run_dag: RunDag, make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(**SMALL)

    def forge(self: LocalPlatform) -> None:
        """Whoever writes the run directory changes the spec, and its hash on record as well."""
        for path in (case.output / "r").rglob("*"):
            if path.name == "spec.yaml" or "-run-" in path.name:
                path.write_text(path.read_text().replace("--step-seconds", "--other-seconds"))

    monkeypatch.setattr(LocalPlatform, "acquire", forge)
    done = run_dag(case)
    assert done.tasks["provision"] == "failed"
    assert done.tasks["release_at_end"] == done.tasks["verdict"] == "failed"
    assert case.attempts() == []


# ---- who drives


def test_a_run_that_another_drives_is_not_touched(
    run_dag: RunDag, make_case: MakeCase, caplog: pytest.LogCaptureFixture
) -> None:
    case = make_case(**SMALL | {"train": {"steps": 100_000}})
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        before, trainer = case.claim, case.trainer()
        assert before is not None
        done = run_dag(case, retries=2)
        assert done.state == "failed"
        assert done.tasks["provision"] == done.tasks["release_at_end"] == done.tasks["verdict"] == "failed"
        assert done.tasks["train"] == "upstream_failed"
        assert done.tries["provision"] == 1
        after = case.claim
        assert after is not None
        assert (after.claim.holder, after.claim.term, after.claim.state) == (
            before.claim.holder,
            before.claim.term,
            "held",
        )
        assert trainer.is_running()
        assert len(case.workers()) == 2
        assert not case.events("claim.stopped")
        assert not case.events("slice.released")
        launcher.interrupt()
        assert launcher.wait() == ExitCode.INTERRUPTED
    case.released()
