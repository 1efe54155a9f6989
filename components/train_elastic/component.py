"""This step as a KFP component; the step is declared in stages/steps.py."""

from ..kfp_step import IMAGE, kfp_needed

with kfp_needed():
    from kfp import dsl


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator]
def train_elastic(
    run: str, holder: str, metrics: dsl.Output[dsl.Metrics], report: dsl.Output[dsl.HTML], spec_hash: str = ""
) -> None:
    """Train on the slices as one long job that recovers from lost slices by itself and outlives its orchestrator.

    Args:
      run: URI of the run directory, or of the run's spec.
      holder: Who drives the run, the same for every task of one pipeline run: `dsl.PIPELINE_JOB_ID_PLACEHOLDER`.
      spec_hash: That the run's spec must have, as `provision_slices` gave it; without it any spec.
      metrics: Final step, recoveries, steps lost, goodput, seconds by kind; of which checkpoint and spec.
      report: The story of the run so far as one HTML page.
    """
    from elastic_tpu.components.kfp_step import run_step

    run_step("train", run, holder, spec_hash=spec_hash, metrics=metrics, report=report)
