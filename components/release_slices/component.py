"""This step as a KFP component; the step is declared in stages/steps.py."""

from kfp import dsl

from ..kfp import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator]
def release_slices(run: str, holder: str) -> None:
    """Give every slice of a run back and verify that it is gone; safe to call at any time, as often as one likes.

    Args:
      run: URI of the run directory, or of the run's spec.
      holder: Who drives the run, the same for every task of one pipeline run: `dsl.PIPELINE_JOB_ID_PLACEHOLDER`.
    """
    from elastic_tpu.components.kfp import run_step  # type: ignore[import-not-found]

    run_step("release", run, holder)
