"""This step as a KFP component; the step is declared in stages/steps.py."""

from ..kfp_step import IMAGE, kfp_needed

with kfp_needed():
    from kfp import dsl


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator]
def release_slices(run: str, holder: str, last: bool = False, spec_hash: str = "") -> None:
    """Give back every slice of a run and wait until it is gone. Safe to call at any time and repeatedly.

    Args:
      run: URI of the run directory, or of the run's spec; or of an output, below which every run that this holder
        started is released: one exit task for all runs of a sweep.
      holder: Who drives the run, the same for every task of one pipeline run: `dsl.PIPELINE_JOB_ID_PLACEHOLDER`.
      last: No other task of the pipeline run follows: the claim is given up, unless a job still runs.
      spec_hash: That the run's spec must have, as `provision_slices` gave it; without it any spec.
    """
    from elastic_tpu.components.kfp_step import run_step

    run_step("release", run, holder, spec_hash=spec_hash, last=last)
