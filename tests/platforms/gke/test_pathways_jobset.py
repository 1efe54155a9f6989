"""The JobSet beside the one that pathwaysutils renders: the same, but for the differences that are listed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.gke.manifests import manifest
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.plan import make_plan
from elastic_tpu.tests.platforms.gke.golden_cases import GOLDEN

pytestmark = pytest.mark.slow  # importing pathwaysutils takes seconds

Json = dict[str, Any]
HEAD_POD = "head.spec.template"
WORKER_POD = "worker.spec.template"

# Path -> why it is another than theirs, or is not in theirs. A path covers what is below it.
INTENDED: dict[str, str] = {
    # What the run is found, adopted and cleaned up by.
    "metadata.labels": "run labels",
    "metadata.annotations": "run URI and spec hash, which a second launch compares",
    "ttlSecondsAfterFinished": "gke.ttl; theirs stays for ever",
    "head.metadata": "run labels; the exclusive-topology annotation works from the pod template",
    "worker.metadata.labels": "run labels",
    f"{HEAD_POD}.metadata.labels": "run labels",
    f"{WORKER_POD}.metadata.labels": "run labels",
    # Who is restarted.
    "failurePolicy.maxRestarts": "recovery.head_restarts: a head that died resumes from its newest checkpoint",
    "failurePolicy.rules": "a head that ended for good is not restarted",
    "head.spec.podFailurePolicy": "exit codes that end a run for good",
    "worker.spec.backoffLimit": "a budget a pod: theirs makes the slice wait longer the more VMs it has",
    "worker.spec.backoffLimitPerIndex": "a budget a pod",
    "worker.spec.maxFailedIndexes": "a budget a pod",
    f"{HEAD_POD}.metadata.annotations.cluster-autoscaler.kubernetes.io/safe-to-evict": "the head is not moved about",
    f"{HEAD_POD}.spec.terminationGracePeriodSeconds": "time to save a checkpoint",
    f"{WORKER_POD}.spec.terminationGracePeriodSeconds": "time for Pathways to suspend a preempted slice",
    # Where pods go, and as whom.
    f"{HEAD_POD}.spec.nodeSelector": "theirs is a pool that only xpk's clusters have; TPU nodes are tainted anyway",
    f"{HEAD_POD}.spec.hostNetwork": "as xpk and the Pathways controller: DCN traffic at the host's speed",
    f"{WORKER_POD}.spec.hostNetwork": "as xpk and the Pathways controller",
    f"{HEAD_POD}.spec.dnsPolicy": "host network",
    f"{WORKER_POD}.spec.dnsPolicy": "host network",
    f"{HEAD_POD}.spec.serviceAccountName": "the bucket, and the Jobs of lost slices",
    f"{WORKER_POD}.spec.serviceAccountName": "the bucket",
    f"{WORKER_POD}.spec.automountServiceAccountToken": "a worker never asks Kubernetes",
    f"{HEAD_POD}.spec.automountServiceAccountToken": "the trainer alone asks Kubernetes",
    f"{HEAD_POD}.spec.volumes.kubernetes-api": "the token, for the trainer alone",
    f"{HEAD_POD}.spec.containers.trainer.volumeMounts": "the token",
    "*.securityContext.seccompProfile.type": "no pod needs more",
    "*.securityContext.allowPrivilegeEscalation": "no container needs it",
    "*.securityContext.capabilities.drop": "none of the head's containers needs one",
    f"{WORKER_POD}.spec.tolerations": "the taint of TPU nodes, which GKE may or may not add",
    # What runs.
    "*.imagePullPolicy": "tags that stay need no registry when a slice comes back",
    f"{HEAD_POD}.spec.initContainers.pathways-proxy.args.--virtual_slices": "as in Google's nightly elastic runs",
    f"{HEAD_POD}.spec.initContainers.pathways-proxy.args.--sidecar_name": "without it the proxy ignores the sidecar",
    f"{WORKER_POD}.spec.initContainers.colocated-python-sidecar.ports": "TCP is said, which is the default",
    f"{HEAD_POD}.spec.containers.trainer.env.XCLOUD_ENVIRONMENT": "as xpk",
    f"{HEAD_POD}.spec.containers.trainer.env.ELASTIC_TPU_PATHWAYS_JAX": "the trainer refuses images for another JAX",
    f"{HEAD_POD}.spec.containers.trainer.env.ENABLE_PATHWAYS_PERSISTENCE": "large checkpoints",
    f"{HEAD_POD}.spec.containers.trainer.resources": "the scheduler must know of the trainer",
    f"{HEAD_POD}.spec.containers.trainer.terminationMessagePolicy": "the last lines are the reason of a failure",
}


def by_name(value: Any) -> Any:
    """Lists of named things as mappings and arguments by flag, so that order and repetition do not matter."""
    if isinstance(value, dict):
        return {key: by_name(inner) for key, inner in value.items() if inner not in (None, {}, [])}
    if isinstance(value, list):
        if all(isinstance(item, dict) and "name" in item for item in value):
            return {item["name"]: by_name({k: v for k, v in item.items() if k != "name"}) for item in value}
        if all(isinstance(item, str) and item.startswith("--") for item in value):
            return dict(item.partition("=")[::2] for item in value)
        return [by_name(item) for item in value]
    return value


def flat(jobset: Json) -> Json:
    """What is compared, with head and worker by name."""
    spec = jobset["spec"]
    replicated = {r["name"]: r for r in spec["replicatedJobs"]}
    rest = {k: v for k, v in spec.items() if k != "replicatedJobs"}
    named = {"head": replicated[names.HEAD]["template"], "worker": replicated[names.WORKER]["template"]}
    counts = {f"{name}.replicas": r["replicas"] for name, r in replicated.items()}
    whole = {"apiVersion": jobset["apiVersion"], "kind": jobset["kind"], "metadata": jobset["metadata"]}
    flattened: Json = by_name({**whole, **rest, **named, **counts})
    return flattened


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    if isinstance(ours or theirs, dict):
        ours, theirs = ours or {}, theirs or {}
        for key in sorted({*ours, *theirs}):
            yield from differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
    elif ours != theirs:
        yield path


def covered(path: str) -> str | None:
    """The entry that allows a difference."""
    for entry in INTENDED:
        matches = path.endswith(entry[1:]) if entry.startswith("*") else f"{path}.".startswith(f"{entry}.")
        if matches:
            return entry
    return None


def rendered(name: str) -> tuple[Json, Json]:
    """Our JobSet and theirs of the same run."""
    theirs = pytest.importorskip("pathwaysutils.experimental.gke.jobset", reason="pathwaysutils is not installed")
    spec = check(GOLDEN[name])
    plan = make_plan(spec)
    ours = manifest.jobset(spec, plan)
    assert spec.gke is not None
    assert spec.gke.pathways is not None
    jobset = theirs.PathwaysJobSet(
        name=spec.run_id,
        namespace=spec.gke.namespace,
        pathways_dir=f"{spec.uri}/pathways",
        tpu_type=plan.shape.machine_type,
        topology=plan.shape.topology,
        num_slices=plan.slices,
        elastic_slices=plan.slices,
        pathways_version=spec.gke.pathways.tag,
    )
    command = ["python", "-m", "elastic_tpu.trainer", "train", "--run", spec.uri]
    jobset.add_user_workload(spec.gke.image, command, name=names.TRAINER)
    if spec.gke.pathways.colocated_python:
        jobset.add_colocated_python(spec.gke.pathways.colocated_python)
    return flat(ours), flat(jobset.to_dict())


@pytest.mark.parametrize("name", ["plain", "colocated-python"])
def test_only_intended_differences(name: str) -> None:
    ours, theirs = rendered(name)
    found = list(differences(ours, theirs))
    assert [path for path in found if covered(path) is None] == []


def test_every_listed_difference_is_one() -> None:
    """An entry that explains nothing would hide the next difference there."""
    found = [path for name in ("plain", "colocated-python") for path in differences(*rendered(name))]
    persistence = {f"{HEAD_POD}.spec.containers.trainer.env.ENABLE_PATHWAYS_PERSISTENCE"}  # of larger models
    assert {covered(path) for path in found} - {None} == set(INTENDED) - persistence
