"""This step as a KFP component; the step is declared in stages/steps.py."""

from ..kfp_step import IMAGE, kfp_needed

with kfp_needed():
    from kfp import dsl


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator]
def evaluate_checkpoint(
    run: str, holder: str, metrics: dsl.Output[dsl.Metrics], report: dsl.Output[dsl.HTML], spec_hash: str = ""
) -> None:
    """Evaluate the export on held-out data and apply the gate. Needs only CPU.

    Args:
      run: URI of the run directory, or of the run's spec.
      holder: Who drives the run, the same for every task of one pipeline run: `dsl.PIPELINE_JOB_ID_PLACEHOLDER`.
      spec_hash: That the run's spec must have, as `provision_slices` gave it; without it any spec.
      metrics: What was measured on the held-out data, and of which export.
      report: The story of the run so far as one HTML page.
    """
    from elastic_tpu.components.kfp_step import run_step

    run_step("evaluate", run, holder, spec_hash=spec_hash, metrics=metrics, report=report)
