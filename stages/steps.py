"""The steps of a pipeline, in their order: the one table that every adapter reads. Standard library only."""

from __future__ import annotations

from .stage import JobStep, SliceStep, Step

PROVISION = SliceStep("provision")
"""Take the slices of a run and wait until they are ready; nothing is bought for a run that is complete."""

TRAIN = JobStep("train", slices=True, claim="take")
"""Train on the slices as ONE long job that recovers by itself and survives its orchestrator."""

RELEASE = SliceStep("release")
"""Give every slice of a run back and verify that it is gone; safe to call at any time, as often as one likes."""

RELEASE_AT_END = SliceStep("release", last=True)
"""The release after all other steps of a pipeline, also of one that failed: it gives the claim up as well."""

EXPORT = JobStep("export", slices=False, claim="join")
"""Export the final, proven checkpoint to a Hugging Face directory; needs only CPU."""

EVALUATE = JobStep("evaluate", slices=False, claim="join")
"""Evaluate the export on held-out data, and apply the gate; needs only CPU."""

STEPS: dict[str, Step] = {step.name: step for step in (PROVISION, TRAIN, RELEASE, EXPORT, EVALUATE)}
