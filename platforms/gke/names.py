"""Names, labels and annotations of a run's objects in a cluster (contracts.md 1). Standard library only."""

from __future__ import annotations

PREFIX = "elastic-tpu.dev"
RUN_ID = f"{PREFIX}/run-id"  # label of every object of a run, pods too
ROLE = f"{PREFIX}/role"  # label: head, worker, export, evaluate
RUN_URI = f"{PREFIX}/run-uri"  # annotation
SPEC_HASH = f"{PREFIX}/spec-hash"  # annotation: what a second launch compares before it adopts

HEAD = "pathways-head"  # replicated Jobs of the JobSet
WORKER = "pathways-worker"
TRAINER = "trainer"  # the container that runs us, in the head pod and in the Jobs

# Labels that the JobSet and Job controllers put on pods.
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"  # the slice, of a worker
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"


def worker_job(run_id: str, index: int) -> str:
    """The child Job of a slice."""
    return f"{run_id}-{WORKER}-{index}"


def head_job(run_id: str) -> str:
    """The child Job of the head."""
    return f"{run_id}-{HEAD}-0"


def plain_job(run_id: str, job: str) -> str:
    """The Job of an export or an evaluation."""
    return f"{run_id}-{job}"
