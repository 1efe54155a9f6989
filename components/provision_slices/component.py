"""This step as a KFP component; the step is declared in stages/steps.py."""

from ..kfp_step import IMAGE, kfp_needed

with kfp_needed():
    from kfp import dsl


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator]
def provision_slices(
    run: str,
    holder: str,
    spec_hash: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> None:
    """Take the slices of a run and wait until they are ready. For a run that is already trained nothing is bought.

    Args:
      run: URI of the run directory, or of the run's spec.
      holder: Who drives the run, the same for every task of one pipeline run: `dsl.PIPELINE_JOB_ID_PLACEHOLDER`.
      spec_hash: Of the run's spec, for the other tasks: one that finds another spec refuses it.
    """
    from elastic_tpu.components.kfp_step import run_step

    run_step("provision", run, holder, spec_hash_file=spec_hash)
