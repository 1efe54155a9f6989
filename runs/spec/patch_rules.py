"""Rules for patches of pod templates (`gke.head`, `gke.worker`, `gke.jobs.<job>.patch`): merging, protected paths.

A patch is merged: a mapping into a mapping, a list of named items by name, `args` of a Pathways container by flag; any
other list is replaced, null deletes. A patch may change anything in the pod except the paths that the run depends on.
Both are checked with the spec, before anything is created.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Problem

Path = tuple[str, ...]

TRAINER, RM, PROXY, WORKER, SIDECAR = (
    "trainer",
    "pathways-rm",
    "pathways-proxy",
    "pathways-worker",
    "colocated-python-sidecar",
)
OURS = ("elastic-tpu.dev/", "jobset.sigs.k8s.io/", "batch.kubernetes.io/")
QUEUE = "kueue.x-k8s.io/queue-name"
TPU = "google.com/tpu"
HEAD_ENV = ("JAX_PLATFORMS", "JAX_BACKEND_TARGET", "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS")
RUN_ENV = "ELASTIC_TPU_RUN"  # the URI of the run, for the user's own command

# Lists whose items are merged by name, so that a patch need not repeat the other items.
_BY_NAME = ("containers", "initContainers", "volumes", "env", "imagePullSecrets")
_PATHWAYS = (RM, PROXY, WORKER)


def identities(items: object, field: str, container: str = "") -> list[str] | None:
    """The key by which each item of a list is merged, or None for a list that is replaced."""
    if not isinstance(items, list):
        return None
    if field == "args" and container in _PATHWAYS:
        return [str(item).partition("=")[0] for item in items]
    if not all(isinstance(item, dict) for item in items):
        return None
    if field == "tolerations":  # equal ones are one, others are added: a toleration never excludes a node
        return [json.dumps(item, sort_keys=True) for item in items]
    if field == "ports":
        return [f"{item.get('containerPort')}/{item.get('protocol', 'TCP')}" for item in items]
    key = "mountPath" if field == "volumeMounts" else "name" if field in _BY_NAME else ""
    return [item[key] for item in items] if key and all(isinstance(item.get(key), str) for item in items) else None


@dataclass(frozen=True)
class Contract:
    """What a patch of one pod template must leave as it is.

    Attributes:
      fixed: protected paths, each with the message for a patch that touches it.
      alone: whether the pod ends with its containers, so that another main container would keep it from ending.
    """

    fixed: Mapping[Path, str]
    alone: bool = True


def _container(where: str, name: str, cures: Mapping[str, str]) -> dict[Path, str]:
    return {("spec", where, name, *field.split(" ")): cure for field, cure in cures.items()}


_PART = "is set by the product: the parts of the run find one another by it; leave it out"
_ELASTIC = "follows from slices.count and slices.type; change those"
_SIDECAR = {"restartPolicy": "must stay Always: it makes this a sidecar that ends with the pod; leave it out"}
_IMAGE = {"image": "is set by the product; use gke.pathways", "command": "is the image's own; leave it out"}
_COMMON = {
    ("spec", "serviceAccountName"): "is set by the product; use gke.service_account",
    ("spec", "serviceAccount"): "is the old name of serviceAccountName; use gke.service_account",
    ("spec", "priorityClassName"): "is set by the product; use gke.priority_class",
}
_NEVER = {("spec", "restartPolicy"): "must stay Never: a restart is decided by the exit code; leave it out"}
_TRAINER = {"command": "is set by the product; leave it out", "args": "is set by the product; leave it out"}
_SCRATCH = {"args --gcs_scratch_location": "must be below the run directory, to be deleted with it; leave it out"}

HEAD = Contract(
    _COMMON
    | _NEVER
    | _container(
        "containers",
        TRAINER,
        {**_TRAINER, "image": "is set by the product; use gke.image"} | {f"env {name}": _PART for name in HEAD_ENV},
    )
    | _container(
        "initContainers",
        RM,
        {
            **_SIDECAR,
            **_IMAGE,
            **_SCRATCH,
            "args --server_port": _PART,
            "args --node_type": _PART,
            "args --instance_count": _ELASTIC,
            "args --instance_type": _ELASTIC,
        },
    )
    | _container(
        "initContainers",
        PROXY,
        {
            **_SIDECAR,
            **_IMAGE,
            **_SCRATCH,
            "args --server_port": _PART,
            "args --resource_manager_address": _PART,
            "args --num_elastic_slices": _ELASTIC,
            "args --virtual_slices": _ELASTIC,
            "env PATHWAYS_HEAD": _PART,
        },
    )
)

_CAPACITY = "follows from slices.capacity; change that"
WORKER_POD = Contract(
    _COMMON
    | {("spec", "restartPolicy"): "must stay OnFailure: a worker that crashes starts again in place; leave it out"}
    | {
        ("spec", "nodeSelector", f"cloud.google.com/{label}"): cure
        for label, cure in {
            "gke-tpu-accelerator": "follows from slices.type; change that",
            "gke-tpu-topology": "follows from slices.type; change that",
            "gke-spot": _CAPACITY,
            "gke-flex-start": _CAPACITY,
            "reservation-name": _CAPACITY,
            "reservation-project": _CAPACITY,
        }.items()
    }
    | _container(
        "containers",
        WORKER,
        {
            **_IMAGE,
            **_SCRATCH,
            "args --server_port": _PART,
            "args --resource_manager_address": _PART,
            "env PATHWAYS_HEAD": _PART,
            f"resources limits {TPU}": "follows from slices.type; change that",
        },
    )
    | _container("initContainers", SIDECAR, {**_SIDECAR, "image": "use gke.pathways.colocated_python"}),
    alone=False,
)


def job_contract(job: str) -> Contract:
    """The contract of a plain Job's pod."""
    section = f"gke.jobs.{job}"
    cures = {
        **_TRAINER,
        "image": f"is set by the product; use {section}.image",
        "command": f"is set by the product; use {section}.command",
        f"resources limits {TPU}": f"follows from slices.type; use {section}.hardware",
        f"env {RUN_ENV}": _PART,
    }
    return Contract(_COMMON | _NEVER | _container("containers", TRAINER, cures))


def problems(section: str, patch: Mapping[str, Any], contract: Contract) -> Iterator[Problem]:
    """What a patch would break, each with the path in the spec (`gke.head.spec...`) and the cure."""
    for name in patch:
        if name not in ("metadata", "spec"):
            cure = "is no part of a pod template, which has `metadata` and `spec`; put it below one of them"
            yield Problem(f"{section}.{name}", None, cure)
    yield from _metadata(section, patch.get("metadata", {}))
    yield from _containers(section, patch.get("spec", {}), contract)
    reported = set()
    for path, cure in contract.fixed.items():
        found = _touched(patch, path)
        if found and found not in reported:
            reported.add(found)
            if found != path:
                cure = f"must stay, with {path[-1]} in it; patch only what should differ"
            yield Problem(".".join((section, *found)), None, cure)


def _metadata(section: str, metadata: object) -> Iterator[Problem]:
    if not isinstance(metadata, dict):
        yield Problem(f"{section}.metadata", None, "must be a mapping of labels and annotations")
        return
    for name, content in metadata.items():
        if name not in ("labels", "annotations"):
            yield Problem(
                f"{section}.metadata.{name}", None, "is set by Kubernetes; only labels and annotations can be"
            )
        elif not isinstance(content, dict):
            yield Problem(f"{section}.metadata.{name}", None, "must be a mapping; the product finds the run by it")
        else:
            for key, value in content.items():
                if key.startswith(OURS):
                    yield Problem(f"{section}.metadata.{name}.{key}", None, "is reserved; leave it out")
                elif value is not None and not isinstance(value, str):
                    yield Problem(f"{section}.metadata.{name}.{key}", value, "must be text; put it in quotes")


def _containers(section: str, spec: object, contract: Contract) -> Iterator[Problem]:
    if not isinstance(spec, dict):
        yield Problem(f"{section}.spec", None, "must be a mapping: the containers of the run are in it")
        return
    for field in ("containers", "initContainers"):
        ours = {path[2] for path in contract.fixed if path[1] == field and len(path) > 2}
        if field not in spec:
            continue
        named = identities(spec[field], field)
        if named is None:
            yield Problem(f"{section}.spec.{field}", None, "must be a list of mappings, each with its `name`")
        elif field == "containers" and contract.alone:
            for name in sorted({*named} - ours):
                cure = "would keep the pod from ending; put it under initContainers with `restartPolicy: Always`"
                yield Problem(f"{section}.spec.containers.{name}", None, cure)
        else:
            for name, container in zip(named, spec[field], strict=True):
                if name not in ours and "image" not in container:
                    there = f"there is {', '.join(sorted(ours))}" if ours else "there is none"
                    cure = f"is no container of the pod ({there}); a new one needs an `image`"
                    yield Problem(f"{section}.spec.{field}.{name}", None, cure)


def _touched(patch: Mapping[str, Any], path: Path) -> Path | None:
    """The part of a protected path that a patch replaces or deletes, the whole path if it sets it; None if neither."""
    here: Any = patch
    for depth, name in enumerate(path):
        if isinstance(here, list):
            keys = identities(here, path[depth - 1], path[2] if len(path) > 2 else "")
            here = None if keys is None else dict(zip(keys, here, strict=True))
        if not isinstance(here, dict):
            reported = depth < 2 or path[depth - 1] in ("containers", "initContainers")  # by `_containers`
            return None if reported else path[:depth]
        if name not in here:
            return None
        here = here[name]
    return path
