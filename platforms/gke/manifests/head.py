"""The head: one pod with the trainer, and Pathways' resource manager and proxy as sidecars. Pure."""

from __future__ import annotations

from ....runs.errors import final_codes
from ....runs.spec import images, patch_rules, plan
from ....runs.spec.images import pathways_image
from ....runs.spec.plan import Plan
from ....runs.spec.run_spec import RunSpec
from .. import names
from ..k8s_json import Json
from . import manifest_common, patches

PROXY_PORT = 29000
MANAGER_PORT = 29001

_GRACE = 300  # seconds from SIGTERM to SIGKILL: the trainer saves in it


def job(spec: RunSpec, made: Plan) -> Json:
    """The Job template of the replicated Job `pathways-head`, with the patch `gke.head` merged in."""
    values = final_codes("trainer")
    return {
        "metadata": {"labels": manifest_common.labels(spec, "head")},
        "spec": {
            "backoffLimit": 0,  # JobSet restarts a head that died, and its workers with it
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": names.TRAINER, "operator": "In", "values": values},
                    }
                ]
            },
            "template": patches.merge(_pod(spec, made), manifest_common.section(spec).head),
        },
    }


def scratch(made: Plan) -> str:
    """The argument for Pathways' own folder, `pathways/` in the run directory."""
    return f"--gcs_scratch_location={made.uri}/pathways"


def _pod(spec: RunSpec, made: Plan) -> Json:
    volume, token = manifest_common.api_token()
    return {
        "metadata": {
            "labels": manifest_common.labels(spec, "head"),
            # One head a node: heads use the host's network and the same ports.
            "annotations": {
                manifest_common.EXCLUSIVE_TOPOLOGY: "kubernetes.io/hostname",
                **manifest_common.NOT_EVICTED,
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "hostNetwork": True,
            "dnsPolicy": "ClusterFirstWithHostNet",
            "terminationGracePeriodSeconds": _GRACE,
            **manifest_common.placement(spec),
            "securityContext": manifest_common.pod_context(),
            "automountServiceAccountToken": False,  # the trainer alone calls Kubernetes, for lost slices
            "initContainers": [_manager(spec, made), _proxy(spec, made)],
            "containers": [_trainer(spec, made, token)],
            "volumes": [volume],
        },
    }


def _trainer(spec: RunSpec, made: Plan, token: Json) -> Json:
    variables: dict[str, str | Json] = {
        "JAX_PLATFORMS": "proxy",
        "JAX_BACKEND_TARGET": f"grpc://localhost:{PROXY_PORT}",
        "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        "XCLOUD_ENVIRONMENT": "GCP",
        "ELASTIC_TPU_PATHWAYS_JAX": images.TRAINER_JAX,  # that of the Pathways tags; the trainer refuses another one
    }
    if made.persistence:
        variables["ENABLE_PATHWAYS_PERSISTENCE"] = "1"
    return {
        "name": names.TRAINER,
        "image": manifest_common.section(spec).image,
        "command": ["python", "-m", "elastic_tpu.trainer", "train", "--run", made.uri],
        "env": manifest_common.env(variables | manifest_common.secrets(spec)),
        "resources": {"requests": {"cpu": "4", "memory": "16Gi"}},
        "securityContext": manifest_common.container_context(),
        "volumeMounts": [token],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _manager(spec: RunSpec, made: Plan) -> Json:
    pathways = manifest_common.pathways(spec)
    return {
        "name": patch_rules.RM,
        "image": pathways_image(pathways.server, pathways.tag),
        "restartPolicy": "Always",
        "args": [
            f"--server_port={MANAGER_PORT}",
            scratch(made),
            "--node_type=resource_manager",
            f"--instance_count={made.slices}",
            f"--instance_type={made.shape.pathways_instance_type}",
        ],
        "env": manifest_common.env(
            {
                "REPLICATED_JOB_NAME": manifest_common.field(f"metadata.annotations['{names.REPLICATED_JOB}']"),
                "JOBSET_NAME": manifest_common.field(f"metadata.annotations['{names.JOBSET_NAME}']"),
                "HOST_ADDRESS": manifest_common.field(manifest_common.COORDINATOR),
                "TPU_SKIP_MDS_QUERY": "true",
            }
        ),
        "ports": manifest_common.ports([MANAGER_PORT, 29002]),
        "resources": {"limits": {"cpu": "8", "memory": "32G"}},
        "securityContext": manifest_common.container_context(),
    }


def _proxy(spec: RunSpec, made: Plan) -> Json:
    pathways = manifest_common.pathways(spec)
    slices = ",".join([made.shape.pathways_instance_type] * made.slices)
    args = [
        f"--server_port={PROXY_PORT}",
        f"--resource_manager_address=$(PATHWAYS_HEAD):{MANAGER_PORT}",
        scratch(made),
        # All slices may be lost without ending the proxy: the trainer decides whether enough are left (slices.min).
        f"--num_elastic_slices={made.slices}",
        f"--virtual_slices={slices}",
    ]
    if plan.colocated_python(spec):
        args.append("--sidecar_name=external")
    return {
        "name": patch_rules.PROXY,
        "image": pathways_image(pathways.proxy, pathways.tag),
        "restartPolicy": "Always",
        "args": args,
        "env": manifest_common.env(
            {
                "PATHWAYS_HEAD": manifest_common.field(manifest_common.COORDINATOR),
                "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
            }
        ),
        "ports": manifest_common.ports([PROXY_PORT]),
        "resources": {"limits": {"cpu": "16", "memory": "100G"}},
        "securityContext": manifest_common.container_context(),
    }
