"""A slice: one Job of as many pods as the slice has VMs, each with a Pathways worker. Pure."""

from __future__ import annotations

from ...runs import patch_rules, plan
from ...runs.images import pathways_image
from ...runs.plan import Plan
from ...runs.spec import RunSpec
from . import names, parts, patches
from .head import MANAGER_PORT, scratch
from .parts import Json

WORKER_PORT = 29005
_SHARED = "/tmp/shared-memory"
_LOST_PODS = 50  # of one VM of a slice, in a row; the trainer deletes a lost slice's Job long before


def job(spec: RunSpec, made: Plan) -> Json:
    """The template of a slice's Job."""
    return {
        "metadata": {"labels": parts.labels(spec, "worker")},
        "spec": {
            # Counted by pod: with one budget a Job, the loss of a slice of many VMs waits ten minutes for its return.
            "backoffLimitPerIndex": _LOST_PODS,
            "maxFailedIndexes": 0,
            "completionMode": "Indexed",
            "completions": made.shape.vms,
            "parallelism": made.shape.vms,
            "template": patches.merge(_pod(spec, made), parts.section(spec).worker),
        },
    }


def _pod(spec: RunSpec, made: Plan) -> Json:
    capacity = parts.capacity(spec)
    own_place = "cloud.google.com/gke-nodepool" if made.shape.multi_host else "kubernetes.io/hostname"
    pod: Json = {
        "restartPolicy": "OnFailure",
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": 60,
        **parts.placement(spec),
        "automountServiceAccountToken": False,  # a worker talks to Pathways and to the bucket, not to Kubernetes
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": made.shape.gke_accelerator_label,
            "cloud.google.com/gke-tpu-topology": made.shape.topology,
            **capacity["nodeSelector"],
        },
        "tolerations": capacity["tolerations"],
        "containers": [_worker(spec, made)],
        "volumes": [{"name": "shared-tmp", "hostPath": {"path": "/tmp", "type": "DirectoryOrCreate"}}],
    }
    if plan.colocated_python(spec):
        _add_sidecar(spec, pod)
    return {
        "metadata": {"labels": parts.labels(spec, "worker"), "annotations": {parts.EXCLUSIVE: own_place}},
        "spec": pod,
    }


def _worker(spec: RunSpec, made: Plan) -> Json:
    pathways = parts.pathways(spec)
    return {
        "name": patch_rules.WORKER,
        "image": pathways_image(pathways.server, pathways.tag),
        "args": [
            f"--resource_manager_address=$(PATHWAYS_HEAD):{MANAGER_PORT}",
            f"--server_port={WORKER_PORT}",
            scratch(made),
        ],
        "env": parts.env(
            {
                "TPU_MIN_LOG_LEVEL": "0",
                "TF_CPP_MIN_LOG_LEVEL": "0",
                "XCLOUD_ENVIRONMENT": "GCP",
                "MEGASCALE_GRPC_ENABLE_XOR_TRACER": "false",
                "MEGASCALE_NUM_SLICES": parts.field("metadata.labels['jobset.sigs.k8s.io/replicatedjob-replicas']"),
                "JOBSET_NAME": parts.field(f"metadata.annotations['{names.JOBSET_NAME}']"),
                "REPLICATED_JOB_NAME": parts.field(f"metadata.annotations['{names.REPLICATED_JOB}']"),
                "MEGASCALE_SLICE_ID": parts.field(f"metadata.labels['{names.JOB_INDEX}']"),
                "PATHWAYS_HEAD": parts.field(parts.COORDINATOR),
                "MEGASCALE_COORDINATOR_ADDRESS": parts.field(parts.COORDINATOR),
            }
        ),
        "ports": parts.ports([WORKER_PORT, 29006, 8471, 8080]),
        "resources": {"limits": {patch_rules.TPU: str(made.shape.chips_per_vm)}},
        "volumeMounts": [{"name": "shared-tmp", "mountPath": "/tmp"}],
    }


def _add_sidecar(spec: RunSpec, pod: Json) -> None:
    """Python beside the worker, joined with it by shared memory."""
    pathways = parts.pathways(spec)
    memory = {"name": "shared-memory", "mountPath": _SHARED}
    folder = parts.env({"CLOUD_PATHWAYS_SIDECAR_SHM_DIRECTORY": _SHARED})
    pod["volumes"].append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    pod["initContainers"] = [
        {
            "name": patch_rules.SIDECAR,
            "image": pathways.colocated_python,
            "restartPolicy": "Always",
            "env": parts.env({"GRPC_SERVER_ADDRESS": "0.0.0.0:50051"}) + folder,
            "ports": parts.ports([50051]),
            "volumeMounts": [{"name": "shared-tmp", "mountPath": "/tmp"}, memory],
        }
    ]
    worker = pod["containers"][0]
    worker["args"].append(f"--cloud_pathways_sidecar_shm_directory={_SHARED}")
    worker["env"] += folder
    worker["volumeMounts"].append(memory)
