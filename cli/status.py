"""`elastic-tpu status`: where a run is, as rows for a person or as JSON for a program."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Group
from rich.live import Live

from ..runs.errors import exit_words
from ..runs.record.job_progress import JobProgress
from ..runs.units import counted, show_duration
from ..stages.progress import job_words
from .display import OutputConsole, print_rows, row_text
from .given import open_given
from .look import look
from .summary import evaluation_rows

# What changes with each look although nothing happened.
_AGES = ("time", "renewed_seconds", "heartbeat_seconds", "eta_seconds", "doing_seconds")
_JOB_SILENT = 60.0  # seconds without a word of a job on CPU that are told as such


def status(uri: str, watch: bool, as_json: bool, *, pause: Callable[[float], None] = time.sleep) -> None:
    """Print where a run is, once or until it is over.

    On a terminal a watched run is shown in place. Elsewhere it is printed again when something changed: as a block of
    lines, or as one JSON document a line.
    """
    run, console = open_given(uri), OutputConsole()
    if not watch:
        seen = look(run)
        console.out(json.dumps(seen, indent=1), highlight=False) if as_json else print_rows(console, rows(seen))
        return

    def looks(show: Callable[[Mapping[str, Any]], None]) -> None:
        while True:
            seen = look(run)
            show(seen)
            if seen["over"]:
                return
            pause(2 * run.spec.beat)

    if console.is_terminal and not as_json:
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            looks(lambda seen: live.update(Group(*(row_text(*row) for row in rows(seen))), refresh=True))
        return
    told: list[Any] = []

    def tell(seen: Mapping[str, Any]) -> None:
        if told != [news := _without_ages(seen)]:
            if as_json:
                console.out(json.dumps(seen), highlight=False)
            else:
                print_rows(console, [("as of", seen["time"]), *rows(seen)])
            told[:] = [news]

    looks(tell)


def _without_ages(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_ages(inner) for key, inner in value.items() if key not in _AGES}
    return value


def rows(seen: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `look` found, in words: name and text of each row."""
    told = [("run", f"{seen['run']}   ({seen['run_id']})")]
    if seen["copied_from"]:
        told.append(("copied from", seen["copied_from"]))
    told.append(("driven by", _driver_words(seen["driver"])))
    told += _training_rows(seen["training"])
    told.append(("slices", _slice_words(seen["slices"])))
    if seen["recoveries"]["count"]:
        lost = counted(seen["recoveries"]["steps_lost"], "step")
        told.append(("recoveries", f"{seen['recoveries']['count']}, {lost} done again"))
    if (result := seen["result"]) is not None:
        share = "" if result["goodput"] is None else f", goodput {100 * result['goodput']:.0f} %"
        told.append(("result", f"step {result['step']}{share}"))
    if (job := seen["job"]) is not None:
        told.append((job["name"], _job_words(job)))
    if seen["export"] is not None:
        told.append(("model", seen["export"]["model"]))
    if seen["evaluation"] is not None:
        told += evaluation_rows(seen["evaluation"]["metrics"], seen["gate"]["lines"], seen["gate"]["invalid"])
    if seen["resumable"]:
        told.append(("go on with", f"elastic-tpu run {shlex.quote(seen['run'])}"))
    return told + [("damaged", text) for text in seen["damaged"]]


def _driver_words(driver: Mapping[str, Any] | None) -> str:
    if driver is None:
        return "nobody yet"
    holder, ago = driver["holder"], show_duration(driver["renewed_seconds"])
    if driver["state"] == "done":
        return f"nobody; {holder} was done {ago} ago"
    stop = f", stop asked for by {driver['stop_by']}" if driver["stop_by"] else ""
    if driver["drives"]:
        return f"{holder}, renewed {ago} ago{stop}"
    why = f"the process of {holder} is gone" if driver["process_gone"] else f"{holder} does not renew its claim"
    return f"nobody drives this run: {why}, last renewed {ago} ago{stop}"


def _training_rows(training: Mapping[str, Any]) -> list[tuple[str, str]]:
    state, phase, why = training["state"], training["phase"], training["why"]
    if state == "none":
        return [("training", "not started")]
    beats = training["heartbeat_seconds"]
    ago = "" if beats is None else show_duration(beats)
    words = {
        "alive": f"{phase}{', ' + training['doing'] if training['doing'] else ''} (last heartbeat {ago} ago)",
        "silent": f"no heartbeat for {ago}; its last word was {phase}",
        "gone": f"not running: {why}",
        "ended": f"ended, exit code {training['exit']} ({exit_words(training['exit'])})",
        "restarting": "being started again" + (f": {why}" if why else ""),
    }.get(state, state + (f": {why}" if why else ""))
    if phase is None:
        return [("training", words)]
    if state == "gone":
        words += f"; its last word was {phase}, {ago} ago"
    told = [("training", f"{words}, attempt {training['attempt']}")]
    loss = "" if training["loss"] is None else f", loss {training['loss']:.4f}"
    proven = "none yet" if training["proven_step"] is None else training["proven_step"]
    step = f"{training['step'] if training['step'] >= 0 else 'none yet'} of {training['steps']}"
    told.append(("step", f"{step}{loss}; newest proven checkpoint: {proven}"))
    if training["reason"] and state != "starting":
        # What a wait is about has happened before it: the slices may be there again.
        told.append(("because" if phase == "waiting" else "reason", training["reason"]))
    return told


def _job_words(job: Mapping[str, Any]) -> str:
    words, ago = job_words(JobProgress.model_validate(job)), show_duration(job["heartbeat_seconds"])
    if job["heartbeat_seconds"] > _JOB_SILENT:
        return f"no word for {ago}; its last was: {words}"
    return f"{words} (told {ago} ago)"


def _slice_words(slices: Mapping[str, Any]) -> str:
    state, ready, wanted, detail = (slices[name] for name in ("state", "ready", "wanted", "detail"))
    if state in ("none", "absent"):
        return "not taken yet"
    if state in ("requested", "partly", "ready"):
        count = f"{ready} of {wanted} slices ready"
        return str(detail) if detail.startswith(f"{ready} of") else count + (f"; {detail}" if detail else "")
    return str(detail) if detail.startswith(state) else state + (f": {detail}" if detail else "")
