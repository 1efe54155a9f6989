"""The pipeline: provision, train, release, export, evaluate; and release again at its end, whatever happened.

    run spec -> provision -> train -> release -> export -> evaluate        (exit: release)
                                                      -> model             (an importer; not in kfp.local)

Every task takes `run` (URI of the run directory, or of the spec) and `holder`, which is the same for all tasks of one
pipeline run. On a cluster the holder is the pipeline job's id. Backends fill in that placeholder only where it is a
task's whole input, not in a default of a pipeline parameter, so there the pipeline has one parameter, `run`. Provision
gives the hash of the run's spec, and the tasks after it refuse another one; the exit task can take no output. On this
machine kfp.local makes a new job id each time, so the runner passes the holder as a second parameter.

Caching is off for every task: provision, train and release act on the outside world, and export and evaluate find
from proofs on the storage that they are complete. KFP's cache would compare names only, and not renew the claim.
"""

from typing import Any

from ..components.kfp import (
    evaluate_checkpoint,
    export_checkpoint,
    provision_slices,
    release_slices,
    train_elastic,
)
from ..components.kfp_step import IMAGE
from ..runs.extras import needed
from .step_settings import StepSettings

with needed("kfp", "the KFP pipeline"):
    from kfp import dsl

NAME = "train-export-evaluate"
DESCRIPTION = "Train on TPU slices that may be lost, give them back, export the proven checkpoint and evaluate it."


def for_backend(image: str = IMAGE, settings: StepSettings | None = None) -> Any:
    """The pipeline for a cluster or Vertex AI; its parameter is `run`. Every step gets the settings."""

    @dsl.pipeline(name=NAME, description=DESCRIPTION)  # type: ignore[untyped-decorator]
    def pipeline(run: str) -> None:
        _tasks(run, dsl.PIPELINE_JOB_ID_PLACEHOLDER, image, settings or StepSettings())

    return pipeline


def for_this_machine() -> Any:
    """The pipeline for kfp.local; its parameters are `run` and `holder`."""

    @dsl.pipeline(name=NAME, description=DESCRIPTION)  # type: ignore[untyped-decorator]
    def pipeline(run: str, holder: str) -> None:
        _tasks(run, holder, IMAGE, None)

    return pipeline


def _tasks(run: str, holder: str, image: str, settings: StepSettings | None) -> None:
    """The tasks; without settings those for kfp.local, whose steps are processes."""

    def task(component: Any, name: str, after: Any = None, **inputs: Any) -> Any:
        made = component(run=run, holder=holder, **inputs).set_caching_options(False).set_container_image(image)
        made.set_display_name(name)
        if settings is not None:
            settings.apply(made)
        return made if after is None else made.after(after)

    # No retries: a backend cannot tell a lost pod from a user's error, which a retry would only repeat.
    with dsl.ExitHandler(task(release_slices, "release-at-the-end", last=True), name="slices-are-given-back"):
        provision = task(provision_slices, "provision")
        pinned = {"spec_hash": provision.outputs["spec_hash"]}
        train = task(train_elastic, "train", provision, **pinned)
        release = task(release_slices, "release", train, **pinned)
        export = task(export_checkpoint, "export", release, **pinned)
        task(evaluate_checkpoint, "evaluate", export, **pinned)
        if settings is not None:  # kfp.local resolves no condition on a task beside it, and shows no artifacts
            with dsl.If(export.outputs["model_uri"] != "", name="exported"):
                # The export's own artifact must lie inside the pipeline root; the model stays in the run directory.
                model = dsl.importer(export.outputs["model_uri"], dsl.Model)
                model.set_caching_options(False).set_display_name("model")
