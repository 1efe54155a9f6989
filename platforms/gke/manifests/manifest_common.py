"""What the manifests of head, workers and Jobs have in common: labels, variables, ports, placement. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ....runs.spec import gke_rules, patch_rules
from ....runs.spec.gke_spec import Pathways
from ....runs.spec.run_spec import Gke, RunSpec
from .. import names
from ..k8s_json import Json

INT32_MAX = 2**31 - 1  # the greatest value of Kubernetes' counters and seconds
MANAGED_BY = {"app.kubernetes.io/managed-by": "elastic-tpu"}
EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NOT_EVICTED = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
COORDINATOR = "metadata.labels['jobset.sigs.k8s.io/coordinator']"
TPU_TOLERATION = {"key": patch_rules.TPU, "operator": "Exists"}


def section(spec: RunSpec) -> Gke:
    """The spec's section `gke`, which platform gke requires."""
    assert spec.gke is not None, "platform gke without section gke: the spec was not validated"
    return spec.gke


def pathways(spec: RunSpec) -> Pathways:
    """The spec's `gke.pathways`: names and tag of the Pathways images."""
    found = section(spec).pathways
    assert found is not None, "platform gke without gke.pathways: the spec was not validated"
    return found


def labels(spec: RunSpec, role: str = "") -> dict[str, str]:
    """Labels of an object of the run: the user's `run.labels`, and ours, by which the object is found."""
    ours = {**MANAGED_BY, names.RUN_ID: spec.run_id}
    return {**spec.run.labels, **ours, **({names.ROLE: role} if role else {})}


def env(variables: Mapping[str, str | Json]) -> list[Json]:
    """`env` of a container, from name -> value (a string), or name -> `valueFrom` (a mapping)."""
    return [
        {"name": name, "value": source} if isinstance(source, str) else {"name": name, "valueFrom": source}
        for name, source in variables.items()
    ]


def field(path: str) -> Json:
    """`valueFrom` of a variable that takes a field of its own pod."""
    return {"fieldRef": {"fieldPath": path}}


def secrets(spec: RunSpec) -> dict[str, str | Json]:
    """The spec's `secrets` for `env`: name -> reference to the Kubernetes Secret. No value is read."""
    return {
        name: {"secretKeyRef": {"name": reference.secret, "key": reference.key}}
        for name, reference in spec.secrets.items()
    }


# Contexts are what Kubernetes' Pod Security Standard "restricted" asks for, as far as any image can run with it. Not:
# runAsNonRoot and a read-only root, which the images of MaxText and Pathways do not promise; a patch may add them.
def pod_context() -> Json:
    """`securityContext` of every pod."""
    return {"seccompProfile": {"type": "RuntimeDefault"}}


def container_context(on_tpu: bool = False) -> Json:
    """`securityContext` of a container. On a TPU it keeps its capabilities: libtpu locks memory for its devices."""
    return {"allowPrivilegeEscalation": False, **({} if on_tpu else {"capabilities": {"drop": ["ALL"]}})}


def api_token() -> tuple[Json, Json]:
    """A volume with the token of the pod's account as Kubernetes would mount it into every container, and its mount."""
    name = "kubernetes-api"
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    volume = {"name": name, "projected": {"sources": sources}}
    return volume, {"name": name, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}


def ports(numbers: Iterable[int]) -> list[Json]:
    """`ports` of a container, all TCP."""
    return [{"containerPort": number, "protocol": "TCP"} for number in numbers]


def placement(spec: RunSpec) -> Json:
    """Service account and priority class of a pod of the run, as part of the pod's spec."""
    gke = section(spec)
    priority = {"priorityClassName": gke.priority_class} if gke.priority_class else {}
    return {"serviceAccountName": gke.service_account, **priority}


def capacity(spec: RunSpec) -> Json:
    """`nodeSelector` and `tolerations` for `slices.capacity` and `slices.reservation`, as part of a pod's spec."""
    selector: dict[str, str] = {}
    tolerations = [TPU_TOLERATION]
    kind = spec.slices.capacity
    if kind in ("spot", "flex_start"):
        label = "cloud.google.com/gke-spot" if kind == "spot" else "cloud.google.com/gke-flex-start"
        selector[label] = "true"
        tolerations.append({"key": label, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    elif spec.slices.reservation:
        project, name = gke_rules.reservation_of(spec.slices.reservation)
        selector["cloud.google.com/reservation-name"] = name
        if project:
            selector["cloud.google.com/reservation-project"] = project
    return {"nodeSelector": selector, "tolerations": tolerations}
