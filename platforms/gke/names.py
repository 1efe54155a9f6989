"""Names, labels and annotations of a run's objects in a cluster (docs/contracts.md 1). Standard library only."""

from __future__ import annotations

PREFIX = "elastic-tpu.dev"
RUN_ID = f"{PREFIX}/run-id"  # label of every object of a run, pods too
ROLE = f"{PREFIX}/role"  # label: head, worker, export, evaluate
RUN_URI = f"{PREFIX}/run-uri"  # annotation
SPEC_HASH = f"{PREFIX}/spec-hash"  # annotation: a second launch adopts an object only if it has the same hash

HEAD = "pathways-head"  # replicated Jobs of the JobSet
WORKER = "pathways-worker"
TRAINER = "trainer"  # the container that runs `elastic_tpu.trainer`, in the head pod and in the pods of Jobs

# Labels that the JobSet and Job controllers put on pods.
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"  # on a worker's pod: the index of its slice
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"


def worker_job(run_id: str, index: int) -> str:
    """Name of the child Job of a slice."""
    return f"{run_id}-{WORKER}-{index}"


def head_job(run_id: str) -> str:
    """Name of the child Job of the head."""
    return f"{run_id}-{HEAD}-0"


def plain_job(run_id: str, job: str) -> str:
    """Name of the Job of a CPU job: `export` or `evaluate`."""
    return f"{run_id}-{job}"
