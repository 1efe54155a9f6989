"""This step as a KFP component; the step is declared in stages/steps.py."""

from ..kfp_step import IMAGE, kfp_needed

with kfp_needed():
    from kfp import dsl


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator]
def export_checkpoint(
    run: str,
    holder: str,
    model: dsl.Output[dsl.Model],
    model_uri: dsl.OutputPath(str),  # type: ignore[valid-type]
    spec_hash: str = "",
) -> None:
    """Export the final, proven checkpoint to a Hugging Face directory. Needs only CPU.

    Args:
      run: URI of the run directory, or of the run's spec.
      holder: Who drives the run, the same for every task of one pipeline run: `dsl.PIPELINE_JOB_ID_PLACEHOLDER`.
      spec_hash: That the run's spec must have, as `provision_slices` gave it; without it any spec.
      model: Which model was exported: its metadata has the URI of the Hugging Face directory (`model`), step, digests
        and spec hash. The artifact holds no file: the model stays in the run directory.
      model_uri: URI of the Hugging Face directory, for `dsl.importer`, which makes an artifact of that URI; empty where
        the spec has `export: false`.
    """
    from elastic_tpu.components.kfp_step import run_step

    run_step("export", run, holder, spec_hash=spec_hash, model=model, model_uri=model_uri)
