"""Commands that only look: plan, status, logs."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from rich.console import Console

from ..platforms.open import open_platform
from ..runs.errors import BadInput, Damaged, Infrastructure, NotFound, Problem
from ..runs.judge import goodput
from ..runs.record import paths
from ..runs.record.claim import StoredClaim, is_stale, read_claim
from ..runs.record.events import EventReader
from ..runs.record.paths import attempts
from ..runs.record.result import read_result
from ..runs.record.run import Run, attempts_of, open_run
from ..runs.record.slices import read_slices
from ..runs.record.status import load_status
from ..runs.spec import input_files
from ..runs.spec import plan as plans
from ..runs.spec.load import has_template, read_spec
from ..runs.spec.run_spec import Gke
from ..runs.store.base import time_to_show
from ..runs.units import GIB, format_duration, show_duration, show_size
from .display import print_rows

T = TypeVar("T")


def plan(source: str, as_json: bool) -> None:
    """Print what a spec resolves to, as text or as JSON."""
    spec = read_spec(source)
    made = plans.make_plan(spec)
    made = replace(made, notes=(*made.notes, *input_files.unread(spec.model_dump())))
    console = Console()
    if as_json:
        whole = {"plan": made.record(), "spec": spec.model_dump(mode="json", exclude_none=True)}
        console.out(json.dumps(whole, indent=1), highlight=False)
        return
    shape, memory = made.shape, made.memory
    rows: list[tuple[str, str]] = [
        ("run", f"{made.uri}   ({made.run_id})"),
        (
            "slices",
            f"{made.slices} x {shape.accelerator}, {made.minimum} at least, {spec.slices.capacity.replace('_', ' ')}",
        ),
        ("each slice", f"topology {shape.topology}, {shape.vms} VMs, {shape.chips} chips, {shape.devices} devices"),
        ("in all", f"{made.vms} VMs, {made.chips} chips, {made.devices} devices; global batch {made.global_batch}"),
    ]
    if memory is not None:
        size = f"{memory.parameters:,} parameters; weights {show_size(memory.parameters_gib * GIB)}, "
        size += f"optimizer {show_size(memory.optimizer_gib * GIB)}"
        per_device = f", {show_size(memory.per_device_gib * GIB)} a device" if memory.per_device_gib else ""
        rows.append(("memory", size + per_device))
    if spec.platform == "gke" and spec.gke is not None:
        rows.append(("cluster", f"{_cluster(spec.gke)}, namespace {spec.gke.namespace}"))
    rows += [
        ("persistence", f"{'on' if made.persistence else 'off'}: {made.persistence_reason}"),
        ("slice-hours", ", ".join(f"{name} {hours:.4g}" for name, hours in made.slice_hours.items()) + " (at most)"),
        ("checkpoints", f"every {spec.checkpoint.every} of {spec.train.steps} steps, {spec.checkpoint.keep} kept"),
        ("recovery", _recovery(spec)),
    ]
    print_rows(console, rows)
    console.print("MaxText overrides", style="bold")
    for key, value in sorted(made.overrides.items()):
        console.print(f"  {key}: {value}", highlight=False, markup=False, soft_wrap=True)
    for note in made.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def _cluster(gke: Gke) -> str:
    if gke.context or gke.kubeconfig:
        return ", ".join(f"{name} {value}" for name in ("context", "kubeconfig") if (value := getattr(gke, name)))
    return f"{gke.project}/{gke.location}/{gke.cluster}" if gke.cluster else "that of kubectl's context, or of this pod"


def manifests(source: str) -> None:
    """Print the Kubernetes objects that a run would create, as YAML for `kubectl apply`."""
    import yaml

    from ..platforms.gke.manifests.manifest import documents

    spec = read_spec(source)
    if spec.platform != "gke":
        raise BadInput([Problem("platform", spec.platform, "creates no Kubernetes objects; --manifests is for gke")])
    text = yaml.safe_dump_all(documents(spec, plans.make_plan(spec)), sort_keys=False, width=1000)
    if has_template(spec):
        text = f"# The run's name is {spec.run.name}: names and hash follow when it starts.\n{text}"
    Console().out(text, end="", highlight=False)


def _recovery(spec: Any) -> str:
    if not spec.recovery:
        return "off"
    wait, stalled = spec.recovery.wait_for_slices, spec.recovery.stalled_after
    return (
        f"waits {format_duration(wait)} for slices, stalled after {format_duration(stalled)}, "
        f"{spec.recovery.attempts_without_progress} attempts without progress"
    )


def status(uri: str, watch: bool) -> None:
    """Print where a run is, once or until it is over."""
    run = open_run(uri)
    console = Console()
    while True:
        over = _status_once(run, console)
        if over or not watch:
            return
        time.sleep(2 * run.spec.beat)


def _status_once(run: Run, console: Console) -> bool:
    now = time_to_show(run.store)
    rows = [("run", f"{run.uri}   ({run.run_id})")]
    if run.copied_from:
        rows.append(("copied from", run.copied_from))
    damaged: list[tuple[str, str]] = []  # rows
    said = _readable(lambda: load_status(run.read(paths.STATUS)), damaged)
    claim = _readable(lambda: read_claim(run.store), damaged)
    result = _readable(lambda: read_result(run), damaged)
    if claim is None:
        rows.append(("driven by", "nobody yet"))
    else:
        rows.append(("driven by", _driver(claim, now)))
    if said is None:
        rows.append(("training", "unknown" if damaged else "not started"))
    else:
        beat = (now - run.store.read(paths.STATUS).updated).total_seconds()
        silent = f" (last heartbeat {show_duration(beat)} ago)" if said.phase != "ended" else f", exit code {said.exit}"
        rows.append(("training", f"{said.phase}{silent}, attempt {said.attempt}"))
        loss = "" if said.loss is None else f", loss {said.loss:.4f}"
        proven = "none yet" if said.proven_step is None else said.proven_step
        rows.append(("step", f"{max(said.step, 0)} of {said.steps}{loss}; newest proven checkpoint: {proven}"))
        if said.reason:
            rows.append(("reason", said.reason))
    rows.append(("slices", _slices(run)))
    story = goodput.measure(EventReader(run.store).all(), datetime.now(UTC))
    if story.recoveries:
        rows.append(("recoveries", f"{len(story.recoveries)}, {story.steps_lost} steps done again"))
    if result is not None:
        rows.append(("result", f"step {result.final_step}, goodput {result.goodput}"))
    print_rows(console, rows + damaged)
    return claim is not None and claim.claim.state == "done"


def _readable(read: Callable[[], T | None], damaged: list[tuple[str, str]]) -> T | None:
    """What `read` returns; None for a damaged file, which gets a row in `damaged`."""
    try:
        return read()
    except Damaged as error:
        damaged.append(("damaged", str(error)))
        return None


def _driver(stored: StoredClaim, now: datetime) -> str:
    claim, age = stored.claim, show_duration((now - stored.updated).total_seconds())
    if claim.state == "done":
        return f"nobody; {claim.holder} was done {age} ago"
    stop = f", stop asked for by {claim.asked_by}" if claim.state == "stop" else ""
    gone = ": its driver is gone" if is_stale(stored, now) else ""
    return f"{claim.holder}, renewed {age} ago{gone}{stop}"


def _slices(run: Run) -> str:
    """Where the slices are: asked of the platform if there may be some, since slices.json may outlive them."""
    try:
        record = read_slices(run) or {}
    except Damaged as error:
        return f"unknown: {error}"
    wanted, recorded = run.spec.slices.count, record.get("state", "none")
    # With a host, the slices are processes, which only that machine can see.
    there = record["host"] == socket.gethostname() if "host" in record else recorded in ("requested", "created")
    if not there:
        return f"{recorded}, {len(record.get('slices', []))} of {wanted}"
    try:
        seen = open_platform(run).slices()
    except (BadInput, Infrastructure) as error:  # this process may have no login to the run's cluster
        return f"unknown: {error}"
    if seen.state not in ("requested", "partly", "ready"):
        return seen.detail if seen.detail.startswith(seen.state) else f"{seen.state} {seen.detail}".strip()
    if seen.detail.startswith(f"{seen.ready} of"):
        return seen.detail
    return f"{seen.ready} of {wanted} slices ready" + (f"; {seen.detail}" if seen.detail else "")


def logs(uri: str, job: str, attempt: int | None, follow: bool) -> None:
    """Print a job's log.

    Args:
      job: train, export or evaluate.
      attempt: its number; None: the newest.
      follow: go on with what is added, and with later attempts, until the run is over.
    """
    if job not in ("train", "export", "evaluate"):
        raise BadInput(f"--job: {job!r}, must be train, export or evaluate")
    run = open_run(uri)
    console = Console(soft_wrap=True, highlight=False, markup=False)
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


def _print_from(run: Run, name: str, start: int, console: Console, lenient: bool) -> int:
    try:
        data = run.store.read(name).data[start:]
    except NotFound:
        if lenient:
            return 0
        raise NotFound(
            f"{run.path(name)}: no such log; see which attempts there are in {run.path('attempts')}"
        ) from None
    if data:
        console.out(data.decode(errors="replace"), end="", highlight=False)
    return len(data)
