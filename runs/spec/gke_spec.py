"""The section `gke` of a spec: the cluster, the images, the jobs that follow training, and patches of the pods."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from .fields import Duration, KubernetesName, Name, Plain, Section


def _not_too_short(value: float) -> float:
    if value < 0.1:
        raise ValueError("must be at least 100ms: each heartbeat is a write to the bucket")
    return value


Interval = Annotated[Duration, AfterValidator(_not_too_short)]


class Pathways(Section):
    """The Pathways images: one tag for the server and the proxy, which must be of one release.

    `server` and `proxy` are repositories, with a digest (`@sha256:...`) where the copy is to be pinned as well.
    """

    tag: Name = Field(description="<date>-jax_<version>, with the version of JAX that the trainer has")
    server: Name = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server"
    proxy: Name = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/proxy_server"
    colocated_python: Name | None = Field(default=None, description="image of the sidecar that MaxText's keys need")


class GkeJob(Section):
    """An export or an evaluation: on CPU, or on one TPU host, in the trainer image or with the user's own command.

    A command of one's own finds the run in $ELASTIC_TPU_RUN: `result.json` names the final step, `export/<step>/` is
    the model. An evaluator writes `evaluation/<name>.json` there: {key, export_digest, metrics}, with the digest of
    `export/<step>/manifest.json`. `memory` in GiB; `patch` is merged into the pod template.
    """

    hardware: Literal["cpu", "tpu"] = "cpu"
    image: Name | None = None
    command: list[Name] = Field(default_factory=list)
    cpu: float = Field(default=8.0, gt=0, le=1024, allow_inf_nan=False)
    memory: float = Field(default=32.0, gt=0, le=65536, allow_inf_nan=False)
    patch: dict[str, Plain] = Field(default_factory=dict)


class GkeJobs(Section):
    """The jobs that follow training."""

    export: GkeJob = GkeJob()
    evaluate: GkeJob = GkeJob()


class Gke(Section):
    """Where the run goes on GKE. `head` and `worker` are patches merged into the pod templates.

    The cluster is that of `context` and `kubeconfig`, or of project, location and cluster, or the one around.
    """

    project: Name | None = None
    location: Name | None = None
    cluster: Name | None = None
    endpoint: Literal["public", "private", "dns"] = "public"
    context: Name | None = None
    kubeconfig: Name | None = None
    namespace: KubernetesName = "default"
    service_account: KubernetesName = "elastic-tpu-trainer"
    priority_class: KubernetesName | None = None
    image: Name | None = Field(default=None, description="of the trainer")
    pathways: Pathways | None = None
    single_host_slices: bool = Field(default=False, description="several slices of one VM: not verified on GKE")
    ttl: Duration = 3600.0
    interval: Interval = Field(default=15.0, description="between two heartbeats, and two looks at the run")
    jobs: GkeJobs = GkeJobs()
    head: dict[str, Plain] = Field(default_factory=dict)
    worker: dict[str, Plain] = Field(default_factory=dict)
