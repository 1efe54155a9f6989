"""Train on the slices as ONE long job that recovers by itself and survives its orchestrator."""

from ..stage import JobStep

STEP = JobStep("train", slices=True, claim="take")
