"""Rules for platform `gke`, in the form of those in rules.py: what a spec must say there, and what cannot run there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..errors import BadInput, Problem
from . import images, patch_rules, plan, pod_rights
from .run_spec import Gke, RunSpec
from .tpu import SliceShape

_RESERVATION = re.compile(
    r"(projects/(?P<project>[a-z][a-z0-9.:-]*)/reservations/)?(?P<name>[a-z]([a-z0-9-]{0,61}[a-z0-9])?)"
    r"(/reservationBlocks/[a-z0-9-]+(/reservationSubBlocks/[a-z0-9-]+)?)?"
)
_JOBS = ("export", "evaluate")


def own_evaluator(spec: RunSpec) -> bool:
    """Whether the user's own command evaluates: then the product knows neither its data nor its metrics."""
    return spec.platform == "gke" and spec.gke is not None and bool(spec.gke.jobs.evaluate.command)


def is_mounted(spec: RunSpec, path: str) -> bool:
    """Whether a path lies in a volume that the patch of the head mounts into a container."""
    pod = spec.gke.head.get("spec") if spec.gke is not None else None
    containers = pod.get("containers") if isinstance(pod, dict) else None
    mounts = [m for c in containers or () if isinstance(c, dict) for m in c.get("volumeMounts") or ()]
    below = [str(m.get("mountPath", "")) for m in mounts if isinstance(m, dict)]
    return any(mount.startswith("/") and path.startswith(f"{mount.rstrip('/')}/") for mount in below)


def reservation_of(name: str) -> tuple[str, str]:
    """Project (empty: the run's own) and name of a reservation, from its name or path; both empty if it is neither."""
    match = _RESERVATION.fullmatch(name)
    return (match["project"] or "", match["name"]) if match else ("", "")


def _required(spec: RunSpec) -> Iterator[Problem]:
    if spec.platform == "gke" and spec.gke is None:
        cure = "is required on platform gke: the trainer's `image`, `pathways: {tag}`, and the cluster"
        yield Problem("gke", None, cure)


def _on_gke(rule: Callable[[RunSpec, Gke], Iterator[Problem]]) -> Callable[[RunSpec], Iterator[Problem]]:
    def asked(spec: RunSpec) -> Iterator[Problem]:
        if spec.platform == "gke" and spec.gke is not None:
            yield from rule(spec, spec.gke)

    return asked


def _image(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    if gke.image is None:
        yield Problem("gke.image", None, "is required: the trainer's image, e.g. gcr.io/acme/elastic-tpu:0.1.0")
    elif cure := images.image_problem(gke.image):
        yield Problem("gke.image", gke.image, cure)


def _pathways(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    if gke.pathways is None:
        cure = f"is required: the release of the Pathways images, <yyyymmdd>-jax_{images.TRAINER_JAX}"
        yield Problem("gke.pathways.tag", None, cure)
        return
    if cure := images.pathways_tag_problem(gke.pathways.tag):
        yield Problem("gke.pathways.tag", gke.pathways.tag, cure)
    for name in ("server", "proxy"):
        image = getattr(gke.pathways, name)
        if cure := images.pathways_repository_problem(image):
            yield Problem(f"gke.pathways.{name}", image, cure)


def _sidecar(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    keys = plan.colocated_python(spec)
    image = gke.pathways.colocated_python if gke.pathways else None
    if keys and image is None:
        cure = f"is required by train.maxtext.{keys[0]}: the image of the sidecar, with the trainer's JAX and Python"
        yield Problem("gke.pathways.colocated_python", None, cure)
    elif image is not None and (cure := images.image_problem(image)):
        yield Problem("gke.pathways.colocated_python", image, cure)


def _job_image(job: str) -> Callable[[RunSpec, Gke], Iterator[Problem]]:
    def rule(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
        image = getattr(gke.jobs, job).image
        if image is not None and (cure := images.image_problem(image)):
            yield Problem(f"gke.jobs.{job}.image", image, cure)

    return rule


def _cluster(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    names = ("project", "location", "cluster")
    missing = [name for name in names if getattr(gke, name) is None]
    if 0 < len(missing) < len(names):
        cure = "is required: a cluster is named by gke.project, gke.location and gke.cluster"
        yield Problem(f"gke.{missing[0]}", None, cure)


def _shape(spec: RunSpec) -> SliceShape | None:
    try:
        return plan.shape_of(spec)
    except BadInput:
        return None  # rules.py reports it


def _machine(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    shape = _shape(spec)
    if shape is None or shape.simulated:
        return
    field = "machine_type" if spec.slices.machine_type is not None else "type"
    value = getattr(spec.slices, field)
    if not shape.pathways_instance_type:
        yield Problem(
            f"slices.{field}", value, "has one chip a machine, which Pathways does not run; take four or eight"
        )
    elif not shape.multi_host and spec.slices.count > 1 and not gke.single_host_slices:
        cure = (
            "is one VM, and GKE joins only slices of several; take a larger slice, `slices.count: 1`, or "
            "`gke.single_host_slices: true` to try it"
        )
        yield Problem(f"slices.{field}", value, cure)


def _reservation(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    name = spec.slices.reservation
    if name is not None and not reservation_of(name)[1]:
        cure = "must be a reservation's name, or projects/<project>/reservations/<name>"
        yield Problem("slices.reservation", name, cure)


def _labels(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    for key, value in spec.run.labels.items():
        if key.startswith(patch_rules.OURS):
            yield Problem(f"run.labels.{key}", value, "is reserved: the product finds the run by it; take another name")
        elif key == patch_rules.QUEUE:
            yield Problem(f"run.labels.{key}", value, "is set by the product; use slices.queue")


def _environment(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    for name in spec.secrets:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield Problem(f"secrets.{name}", None, "names an environment variable; use letters, digits and '_'")
        elif name in (*patch_rules.HEAD_ENV, patch_rules.RUN_ENV):
            yield Problem(f"secrets.{name}", None, "is a variable that the product sets; take another name")


def _allow(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    for name in gke.allow:
        kind, _, value = name.partition(":")
        if kind not in pod_rights.RIGHTS:
            yield Problem("gke.allow", name, f"is no right; there are {', '.join(pod_rights.RIGHTS)}")
        elif (kind in pod_rights.WITH_VALUE) is not bool(value):
            cure = f"names no {kind}; write `{kind}:WHICH`" if not value else f"takes no value; write `{kind}`"
            yield Problem("gke.allow", name, cure)


def _names(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    yield from pod_rights.problems(pod_rights.of_section(gke), gke.allow)


def _head(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    yield from patch_rules.problems("gke.head", gke.head, patch_rules.HEAD)
    yield from pod_rights.problems(pod_rights.of_patch("gke.head", gke.head, on_host_network=True), gke.allow)


def _worker(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
    yield from patch_rules.problems("gke.worker", gke.worker, patch_rules.WORKER_POD)
    yield from pod_rights.problems(pod_rights.of_patch("gke.worker", gke.worker, on_host_network=True), gke.allow)


def _job_patch(job: str) -> Callable[[RunSpec, Gke], Iterator[Problem]]:
    def rule(spec: RunSpec, gke: Gke) -> Iterator[Problem]:
        section, patch = f"gke.jobs.{job}.patch", getattr(gke.jobs, job).patch
        yield from patch_rules.problems(section, patch, patch_rules.job_contract(job))
        yield from pod_rights.problems(pod_rights.of_patch(section, patch, on_host_network=False), gke.allow)

    return rule


_SLICE = ("slices.type", "slices.machine_type", "slices.topology")

RULES: tuple[tuple[tuple[str, ...], Callable[[RunSpec], Iterator[Problem]]], ...] = (
    (("gke", "platform"), _required),
    *(
        ((*fields, "platform"), _on_gke(rule))
        for fields, rule in (
            (("gke.image",), _image),
            (("gke.pathways",), _pathways),
            (("gke.pathways", "train.maxtext", "model.name"), _sidecar),
            *((((f"gke.jobs.{job}.image",), _job_image(job))) for job in _JOBS),
            (("gke.project", "gke.location", "gke.cluster"), _cluster),
            ((*_SLICE, "slices.count", "gke.single_host_slices"), _machine),
            (("slices.reservation",), _reservation),
            (("run.labels",), _labels),
            (("secrets",), _environment),
            (("gke.allow",), _allow),
            (("gke.service_account", "gke.pathways", "gke.allow"), _names),
            (("gke.head", "gke.allow"), _head),
            (("gke.worker", "gke.allow"), _worker),
            *(((f"gke.jobs.{job}.patch", "gke.allow"), _job_patch(job)) for job in _JOBS),
        )
    ),
)
