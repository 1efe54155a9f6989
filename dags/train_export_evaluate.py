"""The whole pipeline as an Airflow DAG, from one spec.

    reserve -> provision -> train -> release -> export -> evaluate -> release_at_end
                                                                  +-> verdict

`reserve` starts the run and buys nothing. It is the setup of the two teardowns `release_at_end` and `verdict`, so both
run once it has succeeded, whatever fails after it; they would not run after a `provision` that failed half-way if that
were their setup (apache/airflow#29334). `verdict` fails the DAG run unless the run directory proves what the spec asks
for: a DAG run that was marked failed while training was deferred would end as a success otherwise. It is no successor
of `release_at_end`, since Airflow takes a DAG run's state from its last tasks only. There is no `dagrun_timeout`, which
skips teardowns and leaves slices behind; bound the run by the `limits` of its spec.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, task

from ..components.airflow import HOLDER, airflow_errors
from ..components.evaluate_checkpoint.operator import EvaluateCheckpointOperator
from ..components.export_checkpoint.operator import ExportCheckpointOperator
from ..components.provision_slices.operator import ProvisionSlicesOperator
from ..components.release_slices.operator import ReleaseSlicesOperator
from ..components.train_elastic.operator import TrainElasticOperator
from ..runs.errors import ElasticTPUError, GateFailed

if TYPE_CHECKING:
    from ..runs.record.run import Run

RETRIES = 3
RELEASE_RETRIES = 8
RETRY_DELAY = timedelta(minutes=1)


def train_export_evaluate(
    spec: str, dag_id: str = "train_export_evaluate", *, retry_delay: timedelta = RETRY_DELAY, **dag_kwargs: Any
) -> DAG:
    """The DAG that takes a spec from slices to an evaluated model.

    Args:
      spec: URI of a spec, or of the directory of a run that is to go on; a DAG run may be given another one.
      dag_id: the DAG's id. Give `run.name` of the spec a template if every DAG run is to be a new run.
      retry_delay: between two tries of a task. Only what a new try can cure is retried.
      dag_kwargs: more of `airflow.sdk.DAG`, such as `schedule` (None, if it is left out) and `tags`.

    Raises:
      ValueError: `dagrun_timeout` is given.
    """
    if dag_kwargs.get("dagrun_timeout") is not None:
        raise ValueError(
            f"dagrun_timeout={dag_kwargs['dagrun_timeout']!r} would skip the teardowns and leave slices behind; "
            "set limits.total in the spec, or execution_timeout of a task"
        )
    dag_kwargs = {"schedule": None, "catchup": False, "max_active_runs": 1, **dag_kwargs}
    dag_kwargs["params"] = {
        "spec": Param(spec, type="string", minLength=1, title="Spec"),
        **dag_kwargs.get("params", {}),
    }
    dag_kwargs["default_args"] = {"retries": RETRIES, "retry_delay": retry_delay, **dag_kwargs.get("default_args", {})}
    with DAG(dag_id, **dag_kwargs) as dag:
        # The run's URI for all others: the spec itself may be edited while the DAG run goes on.
        run: Any = reserve("{{ params.spec }}", HOLDER)
        provision = ProvisionSlicesOperator(task_id="provision", run=run)
        train = TrainElasticOperator(task_id="train", run=run)
        release = ReleaseSlicesOperator(task_id="release", run=run)
        export = ExportCheckpointOperator(task_id="export", run=run)
        evaluate = EvaluateCheckpointOperator(task_id="evaluate", run=run)
        at_end = ReleaseSlicesOperator(task_id="release_at_end", run=run, retries=RELEASE_RETRIES)
        proven = verdict(run)
        run >> provision >> train >> release >> export >> evaluate >> [at_end, proven]
        at_end.as_teardown(setups=run, on_failure_fail_dagrun=True)
        proven.as_teardown(setups=run, on_failure_fail_dagrun=True)
    return dag


@task
def reserve(spec: str, holder: str) -> str:
    """Start the run of a spec, or open the one that is to go on; its URI."""
    from ..runs.record.run import open_run
    from ..runs.record.start import start_run

    with airflow_errors():
        return (start_run(spec, holder) if spec.endswith((".yaml", ".yml")) else open_run(spec)).uri


@task
def verdict(run: str) -> None:
    """Fail unless the run directory proves everything that its spec asks for."""
    from ..runs.record.run import open_run

    with airflow_errors():
        require_complete(open_run(run))


def require_complete(run: Run) -> None:
    """Compare what the spec asks for with what is proven.

    Raises:
      ElasticTPUError: training, export or evaluation is not proven; the message says which and why.
      GateFailed: all of it is, and the gate does not pass.
    """
    from ..runs.record.published import evaluation_of, export_of, judge_gate
    from ..runs.record.result import proven_result

    proofs: list[tuple[str, Callable[[Run], tuple[Any, str]]]] = [("training", proven_result)]
    proofs += [("the export", export_of)] if run.spec.export else []
    proofs += [("the evaluation", evaluation_of)] if run.spec.evaluate else []
    found: Any = None
    for what, proof in proofs:
        found, why = proof(run)
        if found is None:
            raise ElasticTPUError(f"{run.uri} is not complete: {what} is not proven: {why}")
    problems = judge_gate(run, found).problems if run.spec.evaluate else ()
    if problems:
        raise GateFailed(f"{run.uri}: the gate did not pass: {'; '.join(problems)}")
