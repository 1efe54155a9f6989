"""Where each file of a run is, below its run directory."""

from __future__ import annotations

SPEC = "spec.yaml"
CLAIM = "claim.json"
SLICES = "slices.json"
STATUS = "status.json"
RESULT = "result.json"
GATE = "gate.json"


def attempts(job: str) -> str:
    """Folder of a job's attempts; those of training are at the top of the run directory."""
    return "attempts" if job == "train" else f"jobs/{job}"


def job_progress(job: str) -> str:
    """How far an export or evaluation is."""
    return f"jobs/{job}-progress.json"


def checkpoint(step: int) -> str:
    """Folder of a checkpoint."""
    return f"checkpoints/{step}"


def proof(step: int) -> str:
    """Proof of a checkpoint."""
    return f"proofs/{step}.json"


def export(step: int) -> str:
    """Folder of an exported model."""
    return f"export/{step}"
