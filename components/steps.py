"""The steps of a pipeline, in their order: the one table that every adapter reads. Standard library only."""

from __future__ import annotations

from .evaluate_checkpoint.step import STEP as EVALUATE
from .export_checkpoint.step import STEP as EXPORT
from .provision_slices.step import STEP as PROVISION
from .release_slices.step import STEP as RELEASE
from .stage import Step
from .train_elastic.step import STEP as TRAIN

__all__ = ["EVALUATE", "EXPORT", "PROVISION", "RELEASE", "STEPS", "TRAIN"]

STEPS: dict[str, Step] = {step.name: step for step in (PROVISION, TRAIN, RELEASE, EXPORT, EVALUATE)}
