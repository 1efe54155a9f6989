"""Commands that only look: plan, status, logs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from ..runs import goodput
from ..runs import plan as plans
from ..runs import run as names
from ..runs.claim import read_claim
from ..runs.errors import BadInput, NotFound
from ..runs.events import EventReader
from ..runs.load import read_spec
from ..runs.result import read_result
from ..runs.run import Run, attempts, open_run
from ..runs.spec import format_duration
from ..runs.status import load_status


def plan(source: str, as_json: bool) -> None:
    """Print what a spec amounts to."""
    spec = read_spec(source)
    made = plans.make_plan(spec)
    console = Console()
    if as_json:
        console.print_json(json.dumps({"plan": made.record(), "spec": spec.model_dump(mode="json", exclude_none=True)}))
        return
    shape, memory = made.shape, made.memory
    table = Table(show_header=False, box=None, pad_edge=False)
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
    rows += [
        ("persistence", f"{'on' if made.persistence else 'off'}: {made.persistence_reason}"),
        ("slice-hours", ", ".join(f"{name} {hours:.4g}" for name, hours in made.slice_hours.items()) + " (at most)"),
        ("checkpoints", f"every {spec.checkpoint.every} of {spec.train.steps} steps, {spec.checkpoint.keep} kept"),
        ("recovery", _recovery(spec)),
    ]
    for name, text in rows:
        table.add_row(name, text)
    console.print(table)
    console.print("MaxText overrides", style="bold")
    for key, value in sorted(made.overrides.items()):
        console.print(f"  {key}: {value}", highlight=False, markup=False)
    for note in made.notes:
        console.print(f"note: {note}", highlight=False, markup=False)


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
        time.sleep(2.0 if run.spec.platform == "local" else 15.0)


def _status_once(run: Run, console: Console) -> bool:
    now = run.store.now()
    said = load_status(run.read(names.STATUS))
    claim, result = read_claim(run.store), read_result(run)
    slices = run.read(names.SLICES) or {}
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("run", f"{run.uri}   ({run.run_id})")
    if claim is None:
        table.add_row("driven by", "nobody yet")
    else:
        age = (now - claim.updated).total_seconds()
        state = {"held": "", "stop": ", stop asked for", "done": ", done"}[claim.claim.state]
        table.add_row("driven by", f"{claim.claim.holder}, renewed {age:.0f} s ago{state}")
    if said is None:
        table.add_row("training", "not started")
    else:
        beat = (now - run.store.read(names.STATUS).updated).total_seconds()
        silent = f" (last heartbeat {beat:.0f} s ago)" if said.phase != "ended" else f", exit code {said.exit}"
        table.add_row("training", f"{said.phase}{silent}, attempt {said.attempt}")
        loss = "" if said.loss is None else f", loss {said.loss:.4f}"
        table.add_row("step", f"{said.step} of {said.steps}{loss}; newest proven checkpoint: {said.proven_step}")
        if said.reason:
            table.add_row("reason", said.reason)
    table.add_row(
        "slices", f"{slices.get('state', 'none')}, {len(slices.get('slices', []))} of {run.spec.slices.count}"
    )
    story = goodput.measure(EventReader(run.store).all(), datetime.now(UTC))
    if story.recoveries:
        table.add_row("recoveries", f"{len(story.recoveries)}, {story.steps_lost} steps done again")
    if result is not None:
        table.add_row("result", f"step {result.final_step}, goodput {result.goodput}")
    console.print(table)
    return claim is not None and claim.claim.state == "done"


def logs(uri: str, job: str, attempt: int | None, follow: bool) -> None:
    """Print a job's log, and what is added to it."""
    if job not in ("train", "export", "evaluate"):
        raise BadInput(f"--job: {job!r}, must be train, export or evaluate")
    run = open_run(uri)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    shown, number = 0, attempt
    while True:
        newest = _newest(run, job)
        if attempt is None and newest != number:
            number, shown = newest, 0
        if number is not None:
            shown += _print_from(
                run, f"{attempts(job)}/{number}/{'trainer' if job == 'train' else job}.log", shown, console, follow
            )
        elif not follow:
            raise NotFound(f"{uri}: {job} has no attempt yet, so there is no log")
        if not follow:
            return
        claim = read_claim(run.store)
        if claim is not None and claim.claim.state == "done":
            return
        time.sleep(1.0)


def _newest(run: Run, job: str) -> int | None:
    folder = attempts(job) + "/"
    numbers = (entry.name.removeprefix(folder).partition("/")[0] for entry in run.store.list(folder))
    return max((int(n) for n in numbers if n.isdigit()), default=None)


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
