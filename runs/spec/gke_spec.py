"""The section `gke` of a spec: the cluster, the images, the jobs that follow training, and patches of the pods.

As in run_spec.py, docstrings and descriptions are what docs/spec.md and the JSON Schema say.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from .fields import Duration, KubernetesName, Name, Plain, Section
from .images import TRAINER_JAX


def _not_too_short(value: float) -> float:
    if value < 0.1:
        raise ValueError("must be at least 100ms: each heartbeat is a write to the bucket")
    return value


DEFAULT_ACCOUNT = "elastic-tpu-trainer"
PATHWAYS_REGISTRY = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways"

Interval = Annotated[Duration, AfterValidator(_not_too_short)]


class Pathways(Section):
    """The Pathways images: one tag for the server and the proxy, which must be of one release.

    `server` and `proxy` are repositories without a tag; a digest (`@sha256:...`) pins the image and wins over `tag`.
    """

    tag: Name = Field(
        description=f"Release of the images: `<yyyymmdd>-jax_{TRAINER_JAX}`, which names the JAX of the trainer."
    )
    server: Name = Field(
        default=f"{PATHWAYS_REGISTRY}/server",
        description="Repository of the server: the resource manager and the workers.",
    )
    proxy: Name = Field(
        default=f"{PATHWAYS_REGISTRY}/proxy_server",
        description="Repository of the proxy, through which the trainer reaches the slices.",
    )
    colocated_python: Name | None = Field(
        default=None,
        description="Image of the sidecar beside the workers, with the trainer's JAX and Python. Required by "
        "MaxText's `colocated_python_data_input` and `colocated_python_checkpointing`.",
    )


class GkeJob(Section):
    """An export or an evaluation: a Job on CPU or on one TPU host, with the product's command or the user's own.

    The user's own command finds the URI of the run in `$ELASTIC_TPU_RUN`: there `result.json` names the final step, and
    `export/<step>/` is the model. An evaluator writes `evaluation/<name>.json` there: `{key, export_digest, metrics}`,
    with the `export_digest` that `export/<step>/manifest.json` holds.
    """

    hardware: Literal["cpu", "tpu"] = Field(
        default="cpu", description="`tpu`: one TPU host of the slices' machine type, with all its chips."
    )
    image: Name | None = Field(
        default=None, description="Image, with a tag that stays or a digest. Without it: `gke.image`."
    )
    command: list[Name] = Field(
        default_factory=list, description="Command, one argument an item. Without it: the product's own."
    )
    cpu: float = Field(default=8.0, gt=0, le=1024, allow_inf_nan=False, description="CPU cores to request.")
    memory: float = Field(
        default=32.0, gt=0, le=65536, allow_inf_nan=False, description="Memory in GiB: request and limit."
    )
    patch: dict[str, Plain] = Field(
        default_factory=dict, description="Patch of the pod template, merged as `gke.head`; the container is `trainer`."
    )


class GkeJobs(Section):
    """The jobs that follow training."""

    export: GkeJob = Field(default=GkeJob(), description="The export of the final checkpoint.")
    evaluate: GkeJob = Field(default=GkeJob(), description="The evaluation of the export.")


class Gke(Section):
    """The cluster, the images, the jobs that follow training, and patches of the pods.

    The cluster is the first of these that there is: the one of `kubeconfig` or `context`; the one of `project`,
    `location` and `cluster`, through Google's API; the one that the launcher is a pod of; the one of `$KUBECONFIG` or
    `~/.kube/config`.
    """

    project: Name | None = Field(default=None, description="Google Cloud project of the cluster.")
    location: Name | None = Field(default=None, description="Region or zone of the cluster, e.g. `europe-west4`.")
    cluster: Name | None = Field(default=None, description="Name of the cluster; with `project` and `location`.")
    endpoint: Literal["public", "private", "dns"] = Field(
        default="public", description="Endpoint of `cluster` that the launcher calls."
    )
    context: Name | None = Field(
        default=None,
        description="Context of the kubeconfig. Without it: the kubeconfig's current context. That of a stored spec is "
        "used only if the reader agrees, or names one: `elastic-tpu --context`, `$ELASTIC_TPU_CONTEXT`.",
    )
    kubeconfig: Name | None = Field(
        default=None,
        description="Path of a kubeconfig. Without it: `$KUBECONFIG`, else `~/.kube/config`. It may run programs, so "
        "that of a stored spec is used only if the reader agrees, or names one: `elastic-tpu --kubeconfig`, "
        "`$ELASTIC_TPU_KUBECONFIG`.",
    )
    namespace: KubernetesName = Field(
        default="default", description="Namespace of everything that the run creates; it must exist."
    )
    service_account: KubernetesName = Field(
        default=DEFAULT_ACCOUNT,
        description="Kubernetes service account of the run's pods; deploy/rbac.yaml makes it. Another one must be in "
        "`allow`.",
    )
    priority_class: KubernetesName | None = Field(
        default=None, description="PriorityClass of the run's pods. Without it: the cluster's default."
    )
    image: Name | None = Field(
        default=None,
        description="Image of the trainer, with a tag that stays or a digest; `latest` is refused. Required on "
        "platform `gke`.",
    )
    pathways: Pathways | None = Field(default=None, description="The Pathways images. Required on platform `gke`.")
    single_host_slices: bool = Field(
        default=False, description="Allow several slices of one VM each: not verified on GKE."
    )
    ttl: Duration = Field(
        default=3600.0, description="How long Kubernetes keeps the JobSet and the Jobs after their end."
    )
    interval: Interval = Field(
        default=15.0,
        description="Time between two heartbeats of the trainer, each a write to the bucket, and between two looks of "
        "a launcher at the run. At least 100ms.",
    )
    jobs: GkeJobs = Field(
        default=GkeJobs(), description="Hardware, images and commands of the export and the evaluation."
    )
    allow: list[Name] = Field(
        default_factory=list,
        description="Rights that patches, accounts and images may give the run's pods beyond what a run needs, e.g. "
        "`hostPath:/mnt/data`, `serviceAccount:NAME`, `registry:PREFIX`, `privileged`; all are in docs/security.md. "
        "Stands only in a profile of the platform team, in `$ELASTIC_TPU_PROFILES`.",
    )
    head: dict[str, Plain] = Field(
        default_factory=dict,
        description="Patch of the head's pod template (containers `trainer`, `pathways-rm`, `pathways-proxy`): "
        "mappings are merged, containers, volumes and variables by name, `args` of Pathways by flag, other lists are "
        "replaced, null deletes. What the run depends on cannot be changed.",
    )
    worker: dict[str, Plain] = Field(
        default_factory=dict,
        description="Patch of the workers' pod template (container `pathways-worker`), merged as `head`.",
    )
