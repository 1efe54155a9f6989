"""The whole pipeline as an Airflow DAG, from one spec.

    reserve -> provision -> train -> release -> export -> evaluate -> release_at_end
                                                                  +-> verdict

`reserve` starts the run and buys nothing. It is the setup of the teardowns `release_at_end` and `verdict`: both run
once it has succeeded, whatever fails later. With `provision` as their setup they would not run after a `provision` that
failed half-way (apache/airflow#29334). `verdict` fails the DAG run unless the run directory proves what the spec asks
for; without it a DAG run whose training was marked failed while it was deferred would end as a success. It does not
follow `release_at_end`, because Airflow takes the state of a DAG run from its last tasks only. `dagrun_timeout` is
refused, since it skips teardowns and leaves slices behind: set the `limits` of the spec instead.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..components.airflow import HOLDER, airflow_errors
from ..components.evaluate_checkpoint.operator import EvaluateCheckpointOperator
from ..components.export_checkpoint.operator import ExportCheckpointOperator
from ..components.provision_slices.operator import ProvisionSlicesOperator
from ..components.release_slices.operator import ReleaseSlicesOperator
from ..components.train_elastic.operator import TrainElasticOperator
from ..runs.errors import ElasticTPUError, GateFailed
from ..runs.extras import needed

with needed("airflow", "the DAG factory"):
    from airflow.sdk import DAG, Param, task

if TYPE_CHECKING:
    from ..runs.record.run import Run

RETRIES = 3
RELEASE_RETRIES = 8
RETRY_DELAY = timedelta(minutes=1)


def train_export_evaluate(
    spec: str, dag_id: str = "train_export_evaluate", *, retry_delay: timedelta = RETRY_DELAY, **dag_kwargs: Any
) -> DAG:
    """The DAG that trains, exports and evaluates what a spec describes.

    Args:
      spec: URI of a spec, or of the directory of a run to go on with: the default of the DAG's parameter `spec`.
      dag_id: the DAG's id. For a new run each DAG run, `run.name` of the spec needs a template such as `{date}`.
      retry_delay: between two tries of a task. Only failures that a retry can cure are retried.
      dag_kwargs: other arguments of `airflow.sdk.DAG`, such as `schedule` (default None) and `tags`.

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
        # All other tasks get the run's URI: the spec may be edited while the DAG run goes on.
        run: Any = reserve("{{ params.spec }}", HOLDER)
        provision = ProvisionSlicesOperator(task_id="provision", run=run)
        train = TrainElasticOperator(task_id="train", run=run)
        release = ReleaseSlicesOperator(task_id="release", run=run)
        export = ExportCheckpointOperator(task_id="export", run=run)
        evaluate = EvaluateCheckpointOperator(task_id="evaluate", run=run)
        at_end = ReleaseSlicesOperator(task_id="release_at_end", run=run, last=True, retries=RELEASE_RETRIES)
        proven = verdict(run)
        run >> provision >> train >> release >> export >> evaluate >> [at_end, proven]
        at_end.as_teardown(setups=run, on_failure_fail_dagrun=True)
        proven.as_teardown(setups=run, on_failure_fail_dagrun=True)
    return dag


@task
def reserve(spec: str, holder: str) -> str:
    """URI of the run: started from a spec, or opened to go on. Without a login to the platform nothing is written."""
    from ..stages.open import start_or_open_with_login

    with airflow_errors():
        return start_or_open_with_login(spec, holder).uri


@task
def verdict(run: str) -> None:
    """Fail unless the run directory proves everything that its spec asks for."""
    from ..runs.record.run import open_run

    with airflow_errors():
        require_complete(open_run(run))


def require_complete(run: Run) -> None:
    """Check that all that the spec asks for is proven.

    Raises:
      ElasticTPUError: training, export or evaluation is not proven; the message says which and why.
      GateFailed: all is proven, but the gate does not pass, or the evaluation cannot be trusted.
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
    why = judge_gate(run, found).why if run.spec.evaluate else ""
    if why:
        raise GateFailed(f"{run.uri}: {why}")
