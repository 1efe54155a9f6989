"""Commands that only look: plan, status, logs."""

from __future__ import annotations

import json
import socket
import sys
import time
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from ..platforms.open import open_platform
from ..runs.errors import BadInput, Infrastructure, NotFound, Problem
from ..runs.judge import goodput
from ..runs.record import paths
from ..runs.record.claim import Seen, is_stale, read_claim
from ..runs.record.events import EventReader
from ..runs.record.paths import attempts
from ..runs.record.result import read_result
from ..runs.record.run import Run, attempts_of, open_run
from ..runs.record.status import load_status
from ..runs.spec import plan as plans
from ..runs.spec.load import has_template, read_spec
from ..runs.spec.run_spec import Gke, format_duration
from .display import print_rows


def plan(source: str, as_json: bool) -> None:
    """Print what a spec amounts to."""
    spec = read_spec(source)
    made = plans.make_plan(spec)
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
        size = f"{memory.parameters:,} parameters; weights {memory.parameters_gib:.3g} GiB, "
        size += f"optimizer {memory.optimizer_gib:.3g} GiB"
        rows.append(("memory", size + (f", {memory.per_device_gib:.3g} GiB a device" if memory.per_device_gib else "")))
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
    return f"{gke.project}/{gke.location}/{gke.cluster}" if gke.cluster else "the one that kubectl or the pod is in"


def manifests(source: str) -> None:
    """Print the objects that a run would create in its cluster, as `kubectl apply` takes them."""
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
    now = run.store.now()
    said = load_status(run.read(paths.STATUS))
    claim, result = read_claim(run.store), read_result(run)
    rows = [("run", f"{run.uri}   ({run.run_id})")]
    if claim is None:
        rows.append(("driven by", "nobody yet"))
    else:
        rows.append(("driven by", _driver(claim, now)))
    if said is None:
        rows.append(("training", "not started"))
    else:
        beat = (now - run.store.read(paths.STATUS).updated).total_seconds()
        silent = f" (last heartbeat {beat:.0f} s ago)" if said.phase != "ended" else f", exit code {said.exit}"
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
    print_rows(console, rows)
    return claim is not None and claim.claim.state == "done"


def _driver(claim: Seen, now: datetime) -> str:
    age = (now - claim.updated).total_seconds()
    if claim.claim.state == "done":
        return f"nobody; {claim.claim.holder} was done {age:.0f} s ago"
    stop = f", stop asked for by {claim.claim.by or claim.claim.holder}" if claim.claim.state == "stop" else ""
    gone = ": its driver is gone" if is_stale(claim, now) else ""
    return f"{claim.claim.holder}, renewed {age:.0f} s ago{gone}{stop}"


def _slices(run: Run) -> str:
    """Asked of the platform where there may be some: a record of what was ready outlives the slices."""
    record = run.read(paths.SLICES) or {}
    wanted, recorded = run.spec.slices.count, record.get("state", "none")
    if run.spec.platform == "local":
        asked = record.get("host") == socket.gethostname()
    else:
        asked = recorded in ("requested", "created")
    if not asked:
        return f"{recorded}, {len(record.get('slices', []))} of {wanted}"
    try:
        seen = open_platform(run).slices()
    except (BadInput, Infrastructure) as error:  # whoever looks may have no login to where the run is
        return f"unknown: {error}"
    if seen.state not in ("requested", "partly", "ready"):
        return f"{seen.state} {seen.detail}".strip()
    if run.spec.platform == "local" or seen.detail.startswith(f"{seen.ready} of"):
        return seen.detail
    return f"{seen.ready} of {wanted} slices ready" + (f"; {seen.detail}" if seen.detail else "")


def logs(uri: str, job: str, attempt: int | None, follow: bool) -> None:
    """Print a job's log, and what is added to it."""
    if job not in ("train", "export", "evaluate"):
        raise BadInput(f"--job: {job!r}, must be train, export or evaluate")
    run = open_run(uri)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    file = "trainer" if job == "train" else job
    shown: dict[int, int] = {}  # bytes, by attempt
    waiting = False
    while True:
        claim = read_claim(run.store)
        over = claim is None or claim.claim.state == "done" or is_stale(claim, run.store.now())
        there = attempts_of(run, job)
        if attempt is None and not there and (over or not follow):
            raise NotFound(f"{uri}: {job} has no attempt yet, so there is no log")
        if not there and not waiting:
            waiting = True
            print(f"{job} has no attempt yet; waiting for one", file=sys.stderr)  # noqa: T201
        if attempt is not None:
            wanted = [attempt]
        else:  # first only the newest; then whatever is added to it, and to later ones
            wanted = [number for number in there if number >= max(shown, default=there[-1])]
        for number in wanted:
            name = f"{attempts(job)}/{number}/{file}.log"
            shown[number] = shown.get(number, 0) + _print_from(run, name, shown.get(number, 0), console, follow)
        if not follow or over:
            return
        time.sleep(0.5 if run.spec.platform == "local" else 5.0)


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
