"""What is known of a run now, as plain data: `elastic-tpu status` shows it, with `--json` as it is."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from ..platforms.base import Job
from ..runs.errors import BadInput, Damaged, ElasticTPUError, ExitCode, Infrastructure
from ..runs.judge import goodput
from ..runs.judge.verdict import Observation
from ..runs.record import paths
from ..runs.record.claim import StoredClaim, is_stale, process_is_gone, read_claim
from ..runs.record.events import EventReader
from ..runs.record.job_progress import read_job_progress
from ..runs.record.published import evaluation_of, export_of, finite, judge_gate
from ..runs.record.result import read_result
from ..runs.record.run import Run
from ..runs.record.slices import read_slices
from ..runs.record.status import Status, load_status
from ..runs.spec.gate import HELDOUT, is_figure
from ..runs.store import records
from ..runs.store.base import time_to_show
from .login import open_as_reader

T = TypeVar("T")
# A heartbeat that is older is told as missing, in beats and in seconds: importing or compiling may delay some.
_SILENT_BEATS, _SILENT_SECONDS = 4, 10.0


def look(run: Run) -> dict[str, Any]:
    """Everything that is known of a run now, as plain data (docs/contracts.md 13 has the fields); changes nothing."""
    now = time_to_show(run.store)
    damaged: list[str] = []
    said = _readable(lambda: load_status(run.read(paths.STATUS)), damaged)
    claim = _readable(lambda: read_claim(run.store), damaged)
    result = _readable(lambda: read_result(run), damaged)
    slices, seen = _ask_platform(run)
    story = goodput.measure(EventReader(run.store).all(), datetime.now(UTC))
    driver = _driver(claim, now)
    training = _training(run, said, now, seen)
    if said is None and any(text.startswith(paths.STATUS) for text in damaged):
        training["state"] = "unknown"
    found: dict[str, Any] = {
        "schema": records.SCHEMA,
        "time": records.timestamp(now),
        "run": run.uri,
        "run_id": run.run_id,
        "copied_from": run.copied_from or None,
        "over": claim is not None and claim.claim.state == "done",
        "driver": driver,
        "training": training,
        "slices": slices,
        "recoveries": {"count": len(story.recoveries), "steps_lost": story.steps_lost},
        "result": result and {"step": result.final_step, "goodput": result.goodput, "seconds": result.seconds_by_kind},
        "job": None,
        "export": None,
        "evaluation": None,
        "gate": None,
        "damaged": damaged,
    }
    if result is not None:
        with suppress(ElasticTPUError):  # what cannot be trusted is told by `verify`, file by file
            _published(run, found)
        found["job"] = _job(run, found, now)
    return found | {"resumable": _resumable(run, found)}


def _readable(read: Callable[[], T | None], damaged: list[str]) -> T | None:
    """What `read` returns; None for a damaged file, which is told in `damaged`."""
    try:
        return read()
    except Damaged as error:
        damaged.append(str(error))
        return None


def _driver(stored: StoredClaim | None, now: datetime) -> dict[str, Any] | None:
    if stored is None:
        return None
    claim = stored.claim
    gone = process_is_gone(claim, socket.gethostname())
    return {
        "holder": claim.holder,
        "instance": claim.instance,
        "state": claim.state,
        "drives": claim.state != "done" and not gone and not is_stale(stored, now),
        "process_gone": gone,
        "renewed_seconds": round((now - stored.updated).total_seconds(), 1),
        "stop_by": claim.asked_by if claim.state == "stop" else None,
    }


def _training(run: Run, said: Status | None, now: datetime, seen: Observation | None) -> dict[str, Any]:
    beat = None if said is None else (now - run.store.read(paths.STATUS).updated).total_seconds()
    silent = beat is not None and beat > max(_SILENT_BEATS * run.spec.beat, _SILENT_SECONDS)
    state, why = training_state(said, seen, silent)
    said = said or Status(run.run_id, 0, "", steps=run.spec.train.steps)
    return {
        "state": state,
        "why": why,
        "phase": said.phase if beat is not None else None,
        "doing": said.doing,
        "attempt": said.attempt,
        "heartbeat_seconds": None if beat is None else round(beat, 1),
        "step": said.step,
        "steps": said.steps,
        "loss": said.loss,
        "step_seconds": said.step_seconds,
        "eta_seconds": said.eta,
        "proven_step": said.proven_step,
        "reason": said.reason,
        "exit": said.exit,
    }


def training_state(said: Status | None, seen: Observation | None, silent: bool) -> tuple[str, str]:
    """Where training is, in a word, and what the platform says of it.

    Args:
      said: the trainer's last heartbeat.
      seen: the platform's look at the trainer; None if the platform cannot be asked from here.
      silent: the heartbeat is older than it can be while the trainer lives.
    """
    if seen is None:
        state = "none" if said is None else "ended" if said.phase == "ended" else "silent" if silent else "alive"
        return state, ""
    if seen.relaunching:
        return "restarting", seen.detail
    if seen.state in ("queued", "suspended") or (seen.state == "starting" and not seen.trainer_lives):
        return seen.state, seen.detail
    if seen.state in ("over", "absent") or not seen.trainer_lives:
        if said is None:
            return ("none" if seen.state == "absent" else "gone"), seen.detail
        return ("ended" if said.phase == "ended" else "gone"), seen.detail or "its process is gone"
    if said is None:
        return "starting", seen.detail
    if said.phase == "ended":
        return ("starting" if silent else "ended"), seen.detail  # what runs after an old end is the next process
    return ("silent" if silent else "alive"), seen.detail


def _ask_platform(run: Run) -> tuple[dict[str, Any], Observation | None]:
    """The slices, and the trainer where the platform can be asked: slices.json may outlive both."""
    wanted = run.spec.slices.count
    try:
        record = read_slices(run) or {}
    except Damaged as error:
        return {"state": "unknown", "ready": None, "wanted": wanted, "detail": str(error)}, None
    recorded = record.get("state", "none")
    # With a host, the slices are processes, which only that machine can see.
    there = record["host"] == socket.gethostname() if "host" in record else recorded in ("requested", "created")
    if not there:
        where = f"as host {record['host']} wrote" if "host" in record and recorded != "released" else ""
        return {"state": recorded, "ready": len(record.get("slices", [])), "wanted": wanted, "detail": where}, None
    try:
        platform = open_as_reader(run)
        found, seen = platform.slices(), platform.observe(Job("train", (), slices=True))
    except (BadInput, Infrastructure) as error:  # this process may have no login to the run's cluster
        return {"state": "unknown", "ready": None, "wanted": wanted, "detail": str(error)}, None
    return {"state": found.state, "ready": found.ready, "wanted": wanted, "detail": found.detail}, seen


def _published(run: Run, found: dict[str, Any]) -> None:
    """Fill in what export and evaluation made, as far as it holds."""
    manifest, _ = export_of(run)
    if manifest is None:
        return
    found["export"] = {"step": manifest["step"], "model": run.path(paths.export(manifest["step"]))}
    evaluation, _ = evaluation_of(run)
    if evaluation is None:
        return
    heldout = evaluation["metrics"].get(HELDOUT)
    loss = heldout.get("loss") if isinstance(heldout, dict) else None
    report = judge_gate(run, evaluation)
    found["evaluation"] = {
        "key": evaluation["key"],
        "heldout_loss": loss if is_figure(loss) else None,
        "metrics": finite(evaluation["metrics"]),
    }
    found["gate"] = {
        "outcome": report.outcome,
        "lines": [str(line) for line in report.lines],
        "invalid": list(report.invalid),
    }


def _job(run: Run, found: dict[str, Any], now: datetime) -> dict[str, Any] | None:
    """The job on CPU that is next, if it has told how far it is."""
    name = "evaluate" if found["export"] else "export"
    told = None if found["evaluation"] else read_job_progress(run, name)
    if told is None:
        return None
    progress, written = told
    return {"name": name, **progress.model_dump(), "heartbeat_seconds": round((now - written).total_seconds(), 1)}


def _resumable(run: Run, found: dict[str, Any]) -> bool:
    """Whether nobody drives the run, it is not complete, and running it again would go on with it."""
    driver, training = found["driver"], found["training"]
    if driver is None or driver["drives"]:
        return False
    if found["result"] is not None:
        return bool((run.spec.export and not found["export"]) or (run.spec.evaluate and not found["evaluation"]))
    return training["state"] != "ended" or ExitCode.of(training["exit"]).resumable
