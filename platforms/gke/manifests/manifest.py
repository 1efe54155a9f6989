"""The objects of a run as Kubernetes gets them: the JobSet that trains, and a Job each for export and evaluation.

Pure: from a validated spec and its plan to JSON, so that `elastic-tpu plan --manifests` shows what will be sent.
"""

from __future__ import annotations

import math

from ....runs.errors import final_codes
from ....runs.spec import patch_rules, tpu
from ....runs.spec.plan import Plan
from ....runs.spec.run_spec import GkeJob, RunSpec
from ...base import Job
from .. import names
from ..k8s_json import Json
from . import head, manifest_common, patches, worker

_RETRIES = 3  # of a plain Job; pods that are evicted or lose their node do not count


def jobset(spec: RunSpec, made: Plan) -> Json:
    """The JobSet of a run: the head, and a replica of the worker Job for each slice.

    Args:
      spec: validated, platform gke.
      made: the plan of this spec.
    """
    queue = {patch_rules.QUEUE: spec.slices.queue} if spec.slices.queue else {}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(spec, made, made.run_id, queue),
        "spec": {
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [names.HEAD]},
            "failurePolicy": {
                "maxRestarts": min(spec.recovery_limits.head_restarts, manifest_common.INT32_MAX),
                "restartStrategy": "Recreate",
                "rules": [
                    {
                        "name": "trainerEnded",  # with one of `final_codes("trainer")`
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                        "targetReplicatedJobs": [names.HEAD],
                    }
                ],
            },
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "coordinator": {"replicatedJob": names.HEAD},
            "ttlSecondsAfterFinished": _ttl(spec),
            "replicatedJobs": [
                {"name": names.HEAD, "replicas": 1, "template": head.job(spec, made)},
                {"name": names.WORKER, "replicas": made.slices, "template": worker.job(spec, made)},
            ],
        },
    }


def job(spec: RunSpec, made: Plan, wanted: Job) -> Json:
    """The Job of an export or an evaluation, on CPU or on one TPU host (`gke.jobs.<name>`). Arguments as `jobset`."""
    on_tpu = _settings(spec, wanted.name).hardware == "tpu"
    queue = {patch_rules.QUEUE: spec.slices.queue} if spec.slices.queue and on_tpu else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(spec, made, names.plain_job(made.run_id, wanted.name), queue, wanted.name),
        "spec": {
            "backoffLimit": _RETRIES,
            "completions": 1,
            "parallelism": 1,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": names.TRAINER,
                            "operator": "In",
                            "values": final_codes("job"),
                        },
                    },
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "ttlSecondsAfterFinished": _ttl(spec),
            "template": patches.merge(_job_pod(spec, made, wanted), _settings(spec, wanted.name).patch),
        },
    }


def documents(spec: RunSpec, made: Plan) -> list[Json]:
    """All objects that a run creates, in the order of its stages. Arguments as `jobset`."""
    switched_on: dict[str, object] = {"export": spec.export, "evaluate": spec.evaluate}
    later = [name for name, on in switched_on.items() if on]
    return [
        jobset(spec, made),
        *(job(spec, made, Job(name, (name, "--run", made.uri), slices=False)) for name in later),
    ]


def _metadata(spec: RunSpec, made: Plan, name: str, more: dict[str, str], role: str = "") -> Json:
    return {
        "name": name,
        "namespace": manifest_common.section(spec).namespace,
        "labels": manifest_common.labels(spec, role) | more,
        "annotations": {names.RUN_URI: made.uri, names.SPEC_HASH: made.spec_hash},
    }


def _ttl(spec: RunSpec) -> int:
    return min(math.ceil(manifest_common.section(spec).ttl), manifest_common.INT32_MAX)


def _settings(spec: RunSpec, name: str) -> GkeJob:
    jobs = manifest_common.section(spec).jobs
    return jobs.export if name == "export" else jobs.evaluate


def _job_pod(spec: RunSpec, made: Plan, wanted: Job) -> Json:
    settings = _settings(spec, wanted.name)
    variables: dict[str, str | Json] = {patch_rules.RUN_ENV: made.uri}
    size = settings.memory
    memory = f"{size:.0f}Gi" if size.is_integer() else f"{math.ceil(size * 1024)}Mi"
    resources: Json = {"requests": {"cpu": f"{settings.cpu:g}", "memory": memory}, "limits": {"memory": memory}}
    pod: Json = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        **manifest_common.placement(spec),
        "securityContext": manifest_common.pod_context(),
        "automountServiceAccountToken": False,
    }
    on_tpu = settings.hardware == "tpu"
    if on_tpu:
        host, capacity = tpu.one_host(made.shape), manifest_common.capacity(spec)
        resources["limits"][patch_rules.TPU] = str(host.chips_per_vm)
        pod["nodeSelector"] = {
            "cloud.google.com/gke-tpu-accelerator": host.gke_accelerator_label,
            "cloud.google.com/gke-tpu-topology": host.topology,
            **capacity["nodeSelector"],
        }
        pod["tolerations"] = capacity["tolerations"]
        if not settings.command:
            variables["JAX_PLATFORMS"] = "tpu"  # an image without libtpu must fail instead of computing on the CPU
    else:
        variables["JAX_PLATFORMS"] = "cpu"
    pod["containers"] = [
        {
            "name": names.TRAINER,
            "image": settings.image or manifest_common.section(spec).image,
            "command": settings.command or ["python", "-m", "elastic_tpu.trainer", *wanted.argv],
            "env": manifest_common.env(variables | manifest_common.secrets(spec)),
            "resources": resources,
            "securityContext": manifest_common.container_context(on_tpu),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    ]
    return {
        "metadata": {
            "labels": manifest_common.labels(spec, wanted.name),
            "annotations": dict(manifest_common.NOT_EVICTED),
        },
        "spec": pod,
    }
