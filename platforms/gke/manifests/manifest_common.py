"""What the manifests of head, workers and Jobs have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ....runs.errors import ExitCode
from ....runs.spec import gke_rules, patch_rules
from ....runs.spec.gke_spec import Pathways
from ....runs.spec.run_spec import Gke, RunSpec
from .. import names

Json = dict[str, Any]

MOST = 2**31 - 1  # of what Kubernetes counts in 32 bits
MANAGED_BY = {"app.kubernetes.io/managed-by": "elastic-tpu"}
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
STAY = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
COORDINATOR = "metadata.labels['jobset.sigs.k8s.io/coordinator']"
TPU_TOLERATION = {"key": patch_rules.TPU, "operator": "Exists"}

# Only a relaunch can cure 75, 143 and a signal; these say that it would not.
FINAL = tuple(map(int, (ExitCode.BAD_INPUT, ExitCode.BUG, ExitCode.ENDED_ON_REQUEST, ExitCode.LIMIT_SPENT)))


def section(spec: RunSpec) -> Gke:
    """The section that platform gke requires."""
    assert spec.gke is not None, "a spec for gke was not checked"
    return spec.gke


def pathways(spec: RunSpec) -> Pathways:
    """The images that platform gke requires."""
    found = section(spec).pathways
    assert found is not None, "a spec for gke was not checked"
    return found


def labels(spec: RunSpec, role: str = "") -> dict[str, str]:
    """Labels of an object of the run: the user's, and those by which it is found."""
    ours = {**MANAGED_BY, names.RUN_ID: spec.run_id}
    return {**spec.run.labels, **ours, **({names.ROLE: role} if role else {})}


def env(variables: Mapping[str, str | Json]) -> list[Json]:
    """Environment variables: text is a value, anything else where it comes from."""
    return [
        {"name": name, "value": source} if isinstance(source, str) else {"name": name, "valueFrom": source}
        for name, source in variables.items()
    ]


def field(path: str) -> Json:
    """A variable's source: a field of its own pod."""
    return {"fieldRef": {"fieldPath": path}}


def secrets(spec: RunSpec) -> dict[str, str | Json]:
    """The run's secrets, by reference."""
    return {
        name: {"secretKeyRef": {"name": reference.secret, "key": reference.key}}
        for name, reference in spec.secrets.items()
    }


def ports(numbers: Iterable[int]) -> list[Json]:
    """TCP ports of a container."""
    return [{"containerPort": number, "protocol": "TCP"} for number in numbers]


def placement(spec: RunSpec) -> Json:
    """Where a pod of the run may be and as whom, as part of its spec."""
    gke = section(spec)
    priority = {"priorityClassName": gke.priority_class} if gke.priority_class else {}
    return {"serviceAccountName": gke.service_account, **priority}


def capacity(spec: RunSpec) -> Json:
    """Selectors and tolerations of the TPU nodes that the spec pays for, as part of a pod's spec."""
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
