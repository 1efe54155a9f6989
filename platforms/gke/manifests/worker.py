"""A slice: one Job with a pod for each VM, and a Pathways worker in each pod. Pure."""

from __future__ import annotations

from ....runs.spec import patch_rules, plan
from ....runs.spec.images import pathways_image
from ....runs.spec.plan import Plan
from ....runs.spec.run_spec import RunSpec
from .. import names
from ..k8s_json import Json
from . import manifest_common, patches
from .head import MANAGER_PORT, scratch

WORKER_PORT = 29005
_SHARED = "/tmp/shared-memory"
_LOST_PODS = 50  # failed pods that a VM of a slice may have; the trainer deletes a lost slice's Job long before


def job(spec: RunSpec, made: Plan) -> Json:
    """The Job template of the replicated Job `pathways-worker`, with the patch `gke.worker` merged in."""
    return {
        "metadata": {"labels": manifest_common.labels(spec, "worker")},
        "spec": {
            # Counted for each pod: with one count for the Job, the pods of a lost slice of many VMs would raise its
            # back-off to ten minutes at once.
            "backoffLimitPerIndex": _LOST_PODS,
            "maxFailedIndexes": 0,
            "completionMode": "Indexed",
            "completions": made.shape.vms,
            "parallelism": made.shape.vms,
            "template": patches.merge(_pod(spec, made), manifest_common.section(spec).worker),
        },
    }


def _pod(spec: RunSpec, made: Plan) -> Json:
    capacity = manifest_common.capacity(spec)
    own_place = "cloud.google.com/gke-nodepool" if made.shape.multi_host else "kubernetes.io/hostname"
    pod: Json = {
        "restartPolicy": "OnFailure",
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": 60,
        **manifest_common.placement(spec),
        "securityContext": manifest_common.pod_context(),
        "automountServiceAccountToken": False,  # a worker calls Pathways and the bucket, not Kubernetes
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
        "metadata": {
            "labels": manifest_common.labels(spec, "worker"),
            "annotations": {manifest_common.EXCLUSIVE_TOPOLOGY: own_place},
        },
        "spec": pod,
    }


def _worker(spec: RunSpec, made: Plan) -> Json:
    pathways = manifest_common.pathways(spec)
    return {
        "name": patch_rules.WORKER,
        "image": pathways_image(pathways.server, pathways.tag),
        "args": [
            f"--resource_manager_address=$(PATHWAYS_HEAD):{MANAGER_PORT}",
            f"--server_port={WORKER_PORT}",
            scratch(made),
        ],
        "env": manifest_common.env(
            {
                "TPU_MIN_LOG_LEVEL": "0",
                "TF_CPP_MIN_LOG_LEVEL": "0",
                "XCLOUD_ENVIRONMENT": "GCP",
                "MEGASCALE_GRPC_ENABLE_XOR_TRACER": "false",
                "MEGASCALE_NUM_SLICES": manifest_common.field(
                    "metadata.labels['jobset.sigs.k8s.io/replicatedjob-replicas']"
                ),
                "JOBSET_NAME": manifest_common.field(f"metadata.annotations['{names.JOBSET_NAME}']"),
                "REPLICATED_JOB_NAME": manifest_common.field(f"metadata.annotations['{names.REPLICATED_JOB}']"),
                "MEGASCALE_SLICE_ID": manifest_common.field(f"metadata.labels['{names.JOB_INDEX}']"),
                "PATHWAYS_HEAD": manifest_common.field(manifest_common.COORDINATOR),
                "MEGASCALE_COORDINATOR_ADDRESS": manifest_common.field(manifest_common.COORDINATOR),
            }
        ),
        "ports": manifest_common.ports([WORKER_PORT, 29006, 8471, 8080]),
        "resources": {"limits": {patch_rules.TPU: str(made.shape.chips_per_vm)}},
        "securityContext": manifest_common.container_context(on_tpu=True),
        "volumeMounts": [{"name": "shared-tmp", "mountPath": "/tmp"}],
    }


def _add_sidecar(spec: RunSpec, pod: Json) -> None:
    """Add the colocated-Python sidecar to a worker's pod, and the memory that both share."""
    pathways = manifest_common.pathways(spec)
    memory = {"name": "shared-memory", "mountPath": _SHARED}
    folder = manifest_common.env({"CLOUD_PATHWAYS_SIDECAR_SHM_DIRECTORY": _SHARED})
    pod["volumes"].append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    pod["initContainers"] = [
        {
            "name": patch_rules.SIDECAR,
            "image": pathways.colocated_python,
            "restartPolicy": "Always",
            "securityContext": manifest_common.container_context(),
            "env": manifest_common.env({"GRPC_SERVER_ADDRESS": "0.0.0.0:50051"}) + folder,
            "ports": manifest_common.ports([50051]),
            "volumeMounts": [{"name": "shared-tmp", "mountPath": "/tmp"}, memory],
        }
    ]
    worker = pod["containers"][0]
    worker["args"].append(f"--cloud_pathways_sidecar_shm_directory={_SHARED}")
    worker["env"] += folder
    worker["volumeMounts"].append(memory)
