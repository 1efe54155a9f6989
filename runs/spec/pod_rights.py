"""Rights of a run's pods beyond those that a run needs: asked for by a spec, allowed by the platform team. Pure.

Whoever may create a pod in a namespace may have it do what the API server lets pods do. A patch, or a name of an
account or image, must not widen that without a word: `gke.allow` in a profile of the platform team names what may.
deploy/admission.yaml says the same to the API server, also of those who go past this product. The rights are those that
Kubernetes' Pod Security Standard "baseline" refuses (kubernetes.io/docs/concepts/security/pod-security-standards), and
the account, whole Secrets and the registry of Pathways.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Problem
from .gke_spec import DEFAULT_ACCOUNT, PATHWAYS_REGISTRY, Gke
from .images import pathways_repository_problem

RIGHTS = {
    "privileged": "the container may do what root of the node may",
    "allowPrivilegeEscalation": "a process may get more rights than the one that starts it",
    "capability": "a capability of Linux",
    "root": "the container runs as root",
    "unconfined": "no seccomp or AppArmor profile",
    "sysctl": "a setting of the node's kernel",
    "hostPID": "sees and signals all processes of the node",
    "hostIPC": "shares the memory of the node's processes",
    "hostNetwork": "is on the node's network",
    "hostPort": "listens on a port of the node",
    "hostPath": "a folder of the node",
    "nodeName": "is put on a node past the scheduler",
    "apiToken": "every container gets the token of the service account",
    "secret": "all keys of a Secret",
    "serviceAccount": "acts as another service account",
    "registry": "Pathways' images come from elsewhere",
}
"""What `gke.allow` may name, each with what it gives. Some are followed by `:` and which one."""

WITH_VALUE = ("capability", "sysctl", "hostPath", "secret", "serviceAccount", "registry")


@dataclass(frozen=True)
class Wanted:
    """A right that a spec asks for: the field, its value, and the name by which it is allowed."""

    path: str
    value: Any
    right: str


def problems(wanted: Iterable[Wanted], allowed: Iterable[str]) -> Iterator[Problem]:
    """Each right that is not allowed, with the two cures."""
    names = tuple(allowed)
    for asked in wanted:
        if not any(_covers(name, asked.right) for name in names):
            meaning = RIGHTS[asked.right.partition(":")[0]]
            yield Problem(
                asked.path,
                asked.value,
                f"is more than a run needs ({meaning}); leave it out, or have the platform team allow it, in a profile "
                f"of $ELASTIC_TPU_PROFILES: gke: {{allow: [{asked.right!r}]}}",
            )


def of_section(gke: Gke) -> Iterator[Wanted]:
    """Rights in the names of accounts and images."""
    if gke.service_account != DEFAULT_ACCOUNT:
        yield Wanted("gke.service_account", gke.service_account, f"serviceAccount:{gke.service_account}")
    if gke.pathways is not None:
        for field in ("server", "proxy"):
            image = getattr(gke.pathways, field)
            if not _is_below(image, PATHWAYS_REGISTRY) and not pathways_repository_problem(image):
                yield Wanted(f"gke.pathways.{field}", image, f"registry:{image.partition('@')[0]}")


def of_patch(section: str, patch: Mapping[str, Any], on_host_network: bool) -> Iterator[Wanted]:
    """Rights that a patch of a pod template adds.

    Args:
      section: of the spec, such as `gke.head`.
      on_host_network: the pod is on the node's network without the patch.
    """
    spec = _mapping(patch.get("spec"))
    where = f"{section}.spec"
    for field in ("hostPID", "hostIPC", "hostNetwork"):
        if spec.get(field) and not (field == "hostNetwork" and on_host_network):
            yield Wanted(f"{where}.{field}", spec[field], field)
    if spec.get("nodeName"):
        yield Wanted(f"{where}.nodeName", spec["nodeName"], "nodeName")
    if spec.get("automountServiceAccountToken"):
        yield Wanted(f"{where}.automountServiceAccountToken", True, "apiToken")
    yield from _of_context(f"{where}.securityContext", _mapping(spec.get("securityContext")))
    for volume in _items(spec.get("volumes")):
        yield from _of_volume(f"{where}.volumes.{volume.get('name')}", volume)
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for container in _items(spec.get(field)):
            yield from _of_container(f"{where}.{field}.{container.get('name')}", container, on_host_network)


def _of_container(where: str, container: Mapping[str, Any], on_host_network: bool) -> Iterator[Wanted]:
    yield from _of_context(f"{where}.securityContext", _mapping(container.get("securityContext")))
    for source in _items(container.get("envFrom")):
        if name := _mapping(source.get("secretRef")).get("name"):
            yield Wanted(f"{where}.envFrom", name, f"secret:{name}")
    for port in _items(container.get("ports")):
        if port.get("hostPort") and not on_host_network:
            yield Wanted(f"{where}.ports", port["hostPort"], "hostPort")


def _of_context(where: str, context: Mapping[str, Any]) -> Iterator[Wanted]:
    for field in ("privileged", "allowPrivilegeEscalation"):
        if context.get(field):
            yield Wanted(f"{where}.{field}", context[field], field)
    for name in _texts(_mapping(context.get("capabilities")).get("add")):
        yield Wanted(f"{where}.capabilities.add", name, f"capability:{name.upper().removeprefix('CAP_')}")
    if context.get("runAsUser") == 0:
        yield Wanted(f"{where}.runAsUser", 0, "root")
    if context.get("runAsNonRoot") is False:
        yield Wanted(f"{where}.runAsNonRoot", False, "root")
    for field in ("seccompProfile", "appArmorProfile"):
        if _mapping(context.get(field)).get("type") == "Unconfined":
            yield Wanted(f"{where}.{field}.type", "Unconfined", "unconfined")
    if context.get("procMount") == "Unmasked":
        yield Wanted(f"{where}.procMount", "Unmasked", "unconfined")
    for sysctl in _items(context.get("sysctls")):
        yield Wanted(f"{where}.sysctls", sysctl.get("name"), f"sysctl:{sysctl.get('name')}")


def _of_volume(where: str, volume: Mapping[str, Any]) -> Iterator[Wanted]:
    if path := _mapping(volume.get("hostPath")).get("path"):
        yield Wanted(f"{where}.hostPath.path", path, f"hostPath:{posixpath.normpath(str(path))}")
    sources = [_mapping(source) for source in _items(_mapping(volume.get("projected")).get("sources"))]
    for source in ({"secret": {"name": _mapping(volume.get("secret")).get("secretName")}}, *sources):
        if name := _mapping(source.get("secret")).get("name"):
            yield Wanted(where, name, f"secret:{name}")
        if "serviceAccountToken" in source:
            yield Wanted(where, "serviceAccountToken", "apiToken")


def _covers(allowed: str, asked: str) -> bool:
    kind, _, value = allowed.partition(":")
    asked_kind, _, asked_value = asked.partition(":")
    if kind != asked_kind:
        return False
    return _is_below(asked_value, value) if kind in ("hostPath", "registry") else value == asked_value


def _is_below(path: str, prefix: str) -> bool:
    prefix = prefix.rstrip("/")
    return path == prefix or path.startswith((f"{prefix}/", f"{prefix}@"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
