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

import logging
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..components.airflow import (
    EvaluateCheckpointOperator,
    ExportCheckpointOperator,
    ProvisionSlicesOperator,
    ReleaseSlicesOperator,
    TrainElasticOperator,
)
from ..components.airflow_operator import HOLDER, airflow_errors
from ..runs.errors import ExitCode, GateFailed, error_for
from ..runs.extras import needed
from ..stages.allowed import home_of, prefixes_in, require_under

with needed("airflow", "the DAG factory"):
    from airflow.sdk import DAG, Param, task

if TYPE_CHECKING:
    from ..runs.record.run import Run

_log = logging.getLogger(__name__)

DOC = """
Trains what the spec describes on TPU slices, gives the slices back, exports the final checkpoint to Hugging Face format
and evaluates it.

| task | |
|---|---|
| `reserve` | starts the run, or finds the one that this DAG run has; buys nothing |
| `provision` | takes the slices and waits until they are ready |
| `train` | trains; recovers from lost slices by itself, so its log may say `recovering` while the task goes on |
| `release` | gives the slices back |
| `export`, `evaluate` | on CPU |
| `release_at_end` | gives the slices back whatever happened before |
| `verdict` | fails the DAG run unless the run directory proves all that the spec asks for |

Marking `train` failed saves a checkpoint and ends the training. Clearing a failed task goes on with the same run, from
the newest proven checkpoint. `report.html` in the run directory (`reserve` returns it as `run`) tells what happened.
"""
"""What Airflow shows of the DAG."""

RESERVED = "reserved"
"""Key of what `reserve` returned in Airflow's store of the task's state."""

RETRIES = 6
RELEASE_RETRIES = 10
RETRY_DELAY = timedelta(seconds=30)
"""Less than `local.unclaimed`, after which simulated slices end because nobody drives them."""


def train_export_evaluate(
    spec: str,
    dag_id: str = "train_export_evaluate",
    *,
    retry_delay: timedelta = RETRY_DELAY,
    specs: Sequence[str] = (),
    allow_local: bool = False,
    **dag_kwargs: Any,
) -> DAG:
    """The DAG that trains, exports and evaluates what a spec describes.

    Airflow reads only files that hold the words "airflow" and "dag": say them in a comment of the file that calls this.

    Args:
      spec: URI of a spec, or of the directory of a run to go on with: the default of the DAG's parameter `spec`.
      dag_id: the DAG's id. For a new run each DAG run, `run.name` of the spec needs a template: `{run}`, or, if no two
        DAG runs have one day, `{date}`, which is the DAG run's logical date.
      retry_delay: between two tries of a task. Only failures that a retry can cure are retried. On platform `local` it
        must be less than `local.unclaimed`: slices that nobody drives for so long end.
      specs: URIs or folders under one of which the parameter `spec` must lie, whoever triggers the DAG; by default the
        bucket (on a filesystem the folder) of `spec` itself. $ELASTIC_TPU_SPECS of the workers narrows it further.
      allow_local: specs may have programs run on Airflow's machines: platform `local`, `local.trainer`, the kubeconfig
        and the context that they name.
      dag_kwargs: other arguments of `airflow.sdk.DAG`, such as `schedule` (default None) and `tags`.

    Raises:
      ValueError: `dagrun_timeout` is given.
    """
    if dag_kwargs.get("dagrun_timeout") is not None:
        raise ValueError(
            f"dagrun_timeout={dag_kwargs['dagrun_timeout']!r} would skip the teardowns and leave slices behind; "
            "set limits.total in the spec, or execution_timeout of a task"
        )
    dag_kwargs = {"schedule": None, "catchup": False, "max_active_runs": 1, "doc_md": DOC, **dag_kwargs}
    allowed = list(specs) or [home_of(spec)]
    dag_kwargs["params"] = {
        "spec": Param(
            spec,
            type="string",
            minLength=1,
            title="Spec",
            description="URI of a spec (.yaml or .yml): a new run. Or of a run directory: that run goes on. It must "
            f"lie under {', '.join(allowed)}. Templates in it are not rendered.",
        ),
        **dag_kwargs.get("params", {}),
    }
    dag_kwargs["default_args"] = {"retries": RETRIES, "retry_delay": retry_delay, **dag_kwargs.get("default_args", {})}
    with DAG(dag_id, **dag_kwargs) as dag:
        # All other tasks get the run's URI and the hash of its spec, which may be edited while the DAG run goes on.
        reserved: Any = reserve("{{ params.spec }}", HOLDER, allowed, allow_local)
        run = reserved["run"]
        of_run: dict[str, Any] = {"run": run, "spec_hash": reserved["spec_hash"], "allow_local": allow_local}
        provision = ProvisionSlicesOperator(task_id="provision", **of_run)
        train = TrainElasticOperator(task_id="train", **of_run)
        release = ReleaseSlicesOperator(task_id="release", **of_run)
        export = ExportCheckpointOperator(task_id="export", **of_run)
        evaluate = EvaluateCheckpointOperator(task_id="evaluate", **of_run)
        at_end = ReleaseSlicesOperator(task_id="release_at_end", last=True, retries=RELEASE_RETRIES, **of_run)
        proven = verdict(run, reserved["spec_hash"])
        reserved >> provision >> train >> release >> export >> evaluate >> [at_end, proven]
        at_end.as_teardown(setups=reserved, on_failure_fail_dagrun=True)
        proven.as_teardown(setups=reserved, on_failure_fail_dagrun=True)
    return dag


@task(multiple_outputs=True)
def reserve(
    spec: str,
    holder: str,
    specs: Sequence[str] = (),
    allow_local: bool = False,
    logical_date: datetime | None = None,
    task_state_store: Any = None,
) -> dict[str, Any]:
    """URI and spec hash of the run: started from a spec, or opened to go on.

    Airflow gives `logical_date`, which `{date}` in a run's name becomes (a DAG run may have none), and the task's own
    `task_state_store`, which outlives a clear: this task is cleared with each task of the DAG run, because it is the
    setup of the teardowns, and they must run though the spec was edited meanwhile.
    Nothing is written without a login to the platform, or of a spec that lies elsewhere or wants what is not allowed.
    """
    from ..stages.open import start_or_open_with_login

    if task_state_store is not None and (reserved := task_state_store.get(RESERVED)):
        return dict(reserved)
    with airflow_errors():
        for prefixes in (specs, prefixes_in(os.environ)):
            require_under(spec, prefixes)
        run = start_or_open_with_login(spec, holder, allow_local=allow_local, tell=_log.info, when=logical_date)
    reserved = {"run": run.uri, "spec_hash": run.spec_hash}
    if task_state_store is not None:
        task_state_store.set(RESERVED, reserved, retention=timedelta(days=365))
    return reserved


@task
def verdict(run: str, spec_hash: str = "") -> None:
    """Fail unless the run directory proves all that its spec asks for, the spec that the DAG run began with."""
    from ..runs.record.run import open_run
    from ..stages.open import require_pinned

    with airflow_errors(acts=False):
        opened = open_run(run)
        require_pinned(opened, spec_hash)
        require_complete(opened)


def require_complete(run: Run) -> None:
    """Check that all that the spec asks for is proven.

    Raises:
      ElasticTPUError: training, export or evaluation is not proven; the message says which and why. It has the code of
        the stop that was asked for, or of the trainer's end.
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
            code, because = _how_it_ended(run)
            raise error_for(code, f"{run.uri} is not complete: {because}{what} is not proven: {why}")
    why = judge_gate(run, found).why if run.spec.evaluate else ""
    if why:
        raise GateFailed(f"{run.uri}: {why}")


def _how_it_ended(run: Run) -> tuple[ExitCode, str]:
    """The exit code of a run that is not complete, and its words: of the stop that was asked for, or the trainer's."""
    from ..runs.record.events import EventReader
    from ..runs.record.status import read_status

    acts = [event for event in EventReader(run.store).all() if event.kind in ("claim.taken", "claim.stopped")]
    if acts and acts[-1].kind == "claim.stopped":
        return ExitCode.ENDED_ON_REQUEST, f"stop asked for by {acts[-1].data.get('by')}; "
    status = read_status(run)
    if status is None or not status.exit:
        return ExitCode.BUG, ""
    return ExitCode.of(status.exit), f"the trainer ended with {status.exit} ({status.reason}); "
