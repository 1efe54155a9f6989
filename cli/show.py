"""Commands that only look: plan, logs."""

from __future__ import annotations

import codecs
import json
import sys
import time
from dataclasses import replace
from typing import Any

from ..runs.errors import BadInput, NotFound, Problem
from ..runs.record.claim import is_stale, read_claim
from ..runs.record.paths import attempts
from ..runs.record.run import Run, attempts_of
from ..runs.spec import bucket_files, input_files
from ..runs.spec import plan as plans
from ..runs.spec.load import has_template, read_spec
from ..runs.spec.run_spec import Gke, RunSpec
from ..runs.store.base import time_to_show
from ..runs.units import GIB, counted, format_duration, show_size
from .display import OutputConsole, print_rows, say_aside
from .given import open_given

_LATER = "the braces in run.name are filled in when the run starts"

_OF_THE_NAME = ("run_id", "uri", "spec_hash", "overrides.run_name")  # fields of a plan


def plan(source: str, as_json: bool, with_manifests: bool = False) -> None:
    """Print what a spec resolves to, as text or as JSON; the JSON may have the Kubernetes objects in it."""
    spec = read_spec(source)
    looked = bucket_files.look(spec, say_aside)
    if looked.problems:
        raise BadInput(looked.problems)
    made = plans.make_plan(spec)
    template = (f"{_LATER}: id and hash follow",) if has_template(spec) else ()
    unread = (*input_files.unread(spec.model_dump()), *looked.unread)
    made = replace(made, notes=(*template, *made.notes, *unread))
    console = OutputConsole()
    if as_json:
        whole: dict[str, Any] = {"plan": made.record(), "spec": spec.model_dump(mode="json", exclude_none=True)}
        whole["provisional"] = list(_OF_THE_NAME) if has_template(spec) else []
        if with_manifests:
            whole["manifests"] = _documents(spec, made)
        console.out(json.dumps(whole, indent=1), highlight=False)
        return
    shape, memory = made.shape, made.memory
    rows: list[tuple[str, str]] = [
        ("run", made.uri + ("" if has_template(spec) else f"   ({made.run_id})")),
        (
            "slices",
            f"{made.slices} x {shape.accelerator}, {made.minimum} at least, {spec.slices.capacity.replace('_', ' ')}",
        ),
        ("each slice", f"topology {shape.topology}, {_hardware(shape.vms, shape.chips, shape.devices)}"),
        ("in all", f"{_hardware(made.vms, made.chips, made.devices)}; global batch {made.global_batch}"),
    ]
    if memory is not None:
        size = f"{memory.parameters:,} parameters; weights {show_size(memory.parameters_gib * GIB)}, "
        size += f"optimizer {show_size(memory.optimizer_gib * GIB)}"
        per_device = f"; state {show_size(memory.per_device_gib * GIB)} a device" if memory.per_device_gib else ""
        step = f", a step about {show_size(memory.step_gib * GIB)}" if memory.step_gib else ""
        rows.append(("memory", size + per_device + step))
    if spec.platform == "gke" and spec.gke is not None:
        rows.append(("cluster", f"{_cluster(spec.gke)}, namespace {spec.gke.namespace}"))
    rows += [
        ("persistence", f"{'on' if made.persistence else 'off'}: {made.persistence_reason}"),
        ("slice-hours", _slice_hours(spec, made)),
        ("checkpoints", f"every {spec.checkpoint.every} of {spec.train.steps} steps, {spec.checkpoint.keep} kept"),
        ("recovery", _recovery(spec)),
    ]
    print_rows(console, rows)
    console.print("MaxText overrides", style="bold")
    for key, value in sorted(made.overrides.items()):
        console.print(f"  {key}: {value}", highlight=False, soft_wrap=True)
    for note in made.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)


def _cluster(gke: Gke) -> str:
    if gke.context or gke.kubeconfig:
        return ", ".join(f"{name} {value}" for name in ("context", "kubeconfig") if (value := getattr(gke, name)))
    return f"{gke.project}/{gke.location}/{gke.cluster}" if gke.cluster else "that of kubectl's context, or of this pod"


def _hardware(vms: int, chips: int, devices: int) -> str:
    return ", ".join((counted(vms, "VM"), counted(chips, "chip"), counted(devices, "device")))


def _slice_hours(spec: RunSpec, made: plans.Plan) -> str:
    """What the limits allow. Not an estimate, which `limits.total` (weeks by default) would be taken for."""
    within = ", ".join(f"{name} {made.slice_hours[name]:.4g}" for name in ("start", "first_step", "wait_for_slices"))
    total = f"at most {made.slice_hours['total']:.4g} by limits.total ({format_duration(spec.limits.total)})"
    return f"{total}, a limit and no estimate; within it {within}"


def manifests(source: str) -> None:
    """Print the Kubernetes objects that a run would create, as YAML for `kubectl apply`."""
    from .kubectl_yaml import dump_all

    spec = read_spec(source)
    text = dump_all(_documents(spec, plans.make_plan(spec)))
    if has_template(spec):
        text = f"# The run's name is {spec.run.name}: names and hash follow when it starts.\n{text}"
    OutputConsole().out(text, end="", highlight=False)


def _documents(spec: RunSpec, made: plans.Plan) -> list[dict[str, Any]]:
    from ..platforms.gke.manifests.manifest import documents

    if spec.platform != "gke":
        raise BadInput([Problem("platform", spec.platform, "creates no Kubernetes objects; --manifests is for gke")])
    return list(documents(spec, made))


def _recovery(spec: RunSpec) -> str:
    if not spec.recovery:
        return "off"
    wait, stalled = spec.recovery.wait_for_slices, spec.recovery.stalled_after
    return (
        f"waits {format_duration(wait)} for slices, stalled after {format_duration(stalled)}, "
        f"{spec.recovery.attempts_without_progress} attempts without progress"
    )


def logs(uri: str, job: str, attempt: int | None, follow: bool) -> None:
    """Print a job's log.

    Args:
      job: train, export or evaluate.
      attempt: its number; None: the newest.
      follow: go on with what is added, and with later attempts, until the run is over.
    """
    if job not in ("train", "export", "evaluate"):
        raise BadInput(f"--job: {job!r}, must be train, export or evaluate")
    run = open_given(uri)
    console = OutputConsole(soft_wrap=True, highlight=False)
    file = "trainer" if job == "train" else job
    shown: dict[int, int] = {}  # bytes, by attempt
    waiting = False
    while True:
        claim = read_claim(run.store)
        over = claim is None or claim.claim.state == "done" or is_stale(claim, time_to_show(run.store))
        there = attempts_of(run, job)
        if attempt is None and not there and (over or not follow):
            raise NotFound(f"{uri}: {job} has no attempt yet, so there is no log")
        if not there and not waiting:
            waiting = True
            print(f"{job} has no attempt yet; waiting for one", file=sys.stderr)  # noqa: T201
        if attempt is not None:
            wanted = [attempt]
        else:  # the newest one and those after it
            wanted = [number for number in there if number >= max(shown, default=there[-1])]
        for number in wanted:
            name = f"{attempts(job)}/{number}/{file}.log"
            shown[number] = shown.get(number, 0) + _print_from(run, name, shown.get(number, 0), console, follow)
        if not follow or over:
            return
        time.sleep(run.spec.traits.log_interval)


def _print_from(run: Run, name: str, start: int, console: OutputConsole, lenient: bool) -> int:
    at, decoder = start, codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while data := run.store.read_from(name, at):
            console.out(decoder.decode(data), end="", highlight=False)
            at += len(data)
    except NotFound:
        if lenient:
            return 0
        raise NotFound(
            f"{run.path(name)}: no such log; see which attempts there are in {run.path('attempts')}"
        ) from None
    return at - start - len(decoder.getstate()[0])  # a character that is cut off is read again
