"""Export the final, proven checkpoint to a Hugging Face directory; needs only CPU."""

from ..stage import JobStep

STEP = JobStep("export", slices=False, claim="join")
