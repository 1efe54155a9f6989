"""Evaluate the export on held-out data, and apply the gate; needs only CPU."""

from ..stage import JobStep

STEP = JobStep("evaluate", slices=False, claim="join")
