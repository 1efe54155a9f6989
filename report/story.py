"""From the records of a run to the story that the page lays out: what happened, in figures and judgements. Pure.

Every figure and every judgement on the page is made here, or in the module that owns it (goodput, gate, proof).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Literal

from ..runs.errors import ExitCode, exit_words
from ..runs.judge import goodput
from ..runs.judge.goodput import Goodput
from ..runs.record import slice_counts
from ..runs.record.claim import is_stale
from ..runs.record.events import Event, is_simulated
from ..runs.record.loss_log import Loss
from ..runs.record.recovery_events import RecoveryFinished, RecoveryStarted, finished_recoveries
from ..runs.record.result import TrainingResult
from ..runs.units import show_duration
from .run_records import AttemptRow, Records
from .timeline import Timeline, timeline

State = Literal["complete", "live", "stopped", "failed", "idle"]


@dataclass(frozen=True)
class Headline:
    """Where the run is, in one line."""

    state: State
    text: str


@dataclass(frozen=True)
class Curve:
    """Losses as lines: one of the steps that count, and those of steps whose work was lost and done again."""

    kept: tuple[Loss, ...]
    repeated: tuple[tuple[Loss, ...], ...]

    @property
    def finite(self) -> list[Loss]:
        """The losses that count and are numbers, by step."""
        return [p for p in self.kept if p.loss is not None]


@dataclass(frozen=True)
class Speed:
    """Median wall seconds of a step, and tokens a second: global batch times sequence, padding too; None if unknown."""

    step_seconds: float
    tokens_per_second: float | None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was saved: what became of it, and its proof.

    `state`: kept = on storage with the names and sizes that were proven; removed = proven, then removed by retention;
    differs = on storage, and not what was proven; unproven; rejected = set aside. `size` in bytes.
    """

    step: int
    state: Literal["kept", "removed", "differs", "unproven", "rejected"]
    saved: datetime | None
    proven: datetime | None
    files: int | None
    size: int | None
    digest: str
    note: str = ""


@dataclass(frozen=True)
class Story:
    """A run as the page tells it. `simulated`: its slices were simulated, so no figure is one of TPUs."""

    records: Records
    headline: Headline
    simulated: bool
    curve: Curve
    step_times: tuple[Loss, ...]
    speed: Speed | None
    goodput: Goodput
    recovering: RecoveryStarted | None
    timeline: Timeline | None
    checkpoints: tuple[Checkpoint, ...]
    slice_changes: tuple[str, ...]


def tell(records: Records) -> Story:
    """The story of a run, finished or not."""
    spent = account(records)
    return Story(
        records=records,
        headline=headline(records),
        simulated=is_simulated(records.spec.traits, records.events),
        curve=curve(records.losses),
        step_times=step_times(records.losses, records.events),
        speed=speed(records),
        goodput=spent,
        recovering=_recovering(records),
        timeline=timeline(records.events, _ends(records.attempts), end_of(records)),
        checkpoints=checkpoints(records),
        slice_changes=tuple(slice_counts.changes(records.events)),
    )


def account(records: Records) -> Goodput:
    """How the time was spent: from the result, else from the events until now or until training ended.

    A stretch of training that goes on, or whose process died, is in no event yet; its seconds are in the heartbeat.
    """
    result, status = records.result, records.status
    if result is not None:
        kinds = result.seconds_by_kind
        found = tuple(finished_recoveries(records.events))
        return Goodput(sum(kinds.values()), kinds.get("training", 0.0), kinds, found)
    events, end = list(records.events), _end_of_training(records)
    last = _last_stretch(events)
    if status and status.step >= 0 and last and last.kind in ("train.first_step", RecoveryFinished.KIND):
        open_stretch = {"trained_seconds": status.trained_seconds}
        events.append(Event(end, "report", "train.stopped", status.attempt, status.step, open_stretch))
    return goodput.measure(events, end)


def curve(losses: Sequence[Loss]) -> Curve:
    """Losses, in the order in which they were measured, as lines; of a step that was done again the first loss is lost.

    A lost line begins at the last point before it that counts, so that it is joined to the curve.
    """
    stretches: list[list[Loss]] = []
    for point in losses:
        if not stretches or point.step <= stretches[-1][-1].step:
            stretches.append([])
        stretches[-1].append(point)
    kept: list[Loss] = []
    repeated: list[tuple[Loss, ...]] = []
    again: float = float("inf")
    for stretch in reversed(stretches):
        counts = [p for p in stretch if p.step < again]
        lost = [p for p in stretch if p.step >= again]
        again = min(again, stretch[0].step)
        kept = counts + kept
        if lost:
            repeated.insert(0, tuple(counts[-1:] + lost))
    return Curve(tuple(kept), tuple(repeated))


def step_times(losses: Sequence[Loss], events: Sequence[Event] = ()) -> tuple[Loss, ...]:
    """Wall seconds a step, by step, between losses that follow one another; a later try of a step replaces an earlier.

    A stretch's first step has none: before it came a start or a recovery, also one that lost no step.
    """
    restored = [e.step for e in events if e.kind == "train.restored" and e.step is not None]
    found = {}
    for before, point in pairwise(losses):
        if before.step < point.step and not any(before.step <= step < point.step for step in restored):
            seconds = (point.time - before.time) / (point.step - before.step)
            found[point.step] = Loss(point.step, max(0.0, seconds), point.time)
    return tuple(found[step] for step in sorted(found))


def speed(records: Records) -> Speed | None:
    """How fast the run trains; None before it has done two steps in a row."""
    timed = [(p.step, p.loss) for p in step_times(records.losses, records.events) if p.loss]
    if not timed:
        return None
    plan, changed = records.plan, [e for e in records.events if e.kind == slice_counts.KIND]
    tokens = None
    if plan and plan.sequence_length:
        # Of each step: on fewer slices a step is of fewer sequences.
        batches = [slice_counts.batch_of(step, changed, plan.global_batch) for step, _ in timed]
        rates = [batch * plan.sequence_length / took for batch, (_, took) in zip(batches, timed, strict=True)]
        tokens = median(rates)
    return Speed(median(took for _, took in timed), tokens)


def headline(records: Records) -> Headline:
    """Where the run is and how it ended: from the proven result, else from the trainer's last status."""
    if records.result is not None:
        return _after_training(records, records.result)
    status, spec = records.status, records.spec
    died = next((a for a in reversed(records.attempts) if a.job == "train"), None)
    if status is None:
        if died is not None and died.code:
            return Headline("failed", f"The trainer did not start: {_ending(died)}")
        return Headline("idle", "Training has not started")
    where = f"step {status.step + 1} of {spec.train.steps}"
    if status.phase == "ended":
        reason = f": {status.reason}" if status.reason else ""
        if ExitCode.of(status.exit).outcome == "cancelled":
            return Headline("stopped", f"Stopped on request after {where}{reason}")
        code = f"exit code {status.exit} ({exit_words(status.exit)})"
        return Headline("failed", f"Ended after {where} with {code}{reason}")
    silence = (records.now - (records.seen or records.now)).total_seconds()
    if silence > spec.traits.silent_after:
        last = f"the last heartbeat, {show_duration(silence)} ago, said {status.phase}"
        return Headline("failed", f"Not running: {last} after {where}")
    reason = f" ({status.reason})" if status.reason else ""
    return Headline("live", f"{status.phase.capitalize()}, {where} done{reason}")


def _after_training(records: Records, result: TrainingResult) -> Headline:
    spec, trained = records.spec, f"Trained: step {result.final_step} is proven"
    for job, wanted, there in (
        ("export", spec.export, records.manifest is not None),
        ("evaluate", spec.evaluate, records.evaluation is not None),
    ):
        if wanted and not there:
            newest = next((a for a in reversed(records.attempts) if a.job == job), None)
            if newest is not None and newest.code:
                return Headline("failed", f"{trained}, but {job} failed: {_ending(newest)}")
            goes_on = records.claim is not None and records.claim.claim.state == "held"
            if goes_on and records.claim is not None and not is_stale(records.claim, records.now):
                return Headline("live", f"{trained}; {job} is next or under way")
            return Headline("stopped", f"{trained}; {job} has not been done")
    gate = records.gate
    if gate is not None and gate.outcome == "failed":
        return Headline("failed", f"{trained}, but the gate did not pass")
    if gate is not None and gate.outcome == "invalid":
        return Headline("failed", f"{trained}, but the evaluation contradicts itself")
    passed = ", the gate passed" if gate is not None and gate.lines else ""
    return Headline("complete", f"Complete: step {result.final_step} is proven{passed}")


def _ending(attempt: AttemptRow) -> str:
    return f"exit code {attempt.code} ({attempt.meaning})" + (f", {attempt.reason}" if attempt.reason else "")


def checkpoints(records: Records) -> tuple[Checkpoint, ...]:
    """Every checkpoint that was saved, newest first, compared by names and sizes with its proof."""
    proofs, sizes = records.proofs or {}, records.sizes or {}
    told = {kind: _by_step(records.events, kind) for kind in ("saved", "proven", "rejected")}
    found = []
    for step in sorted({*proofs, *sizes, *(s for steps in told.values() for s in steps)}, reverse=True):
        saved, proven, rejected = (told[kind].get(step) for kind in ("saved", "proven", "rejected"))
        proof, there = proofs.get(step), sizes.get(step)
        state: Literal["kept", "removed", "differs", "unproven", "rejected"] = "unproven"
        note = ""
        if rejected is not None and (saved is None or rejected.time >= saved.time):
            state, note = "rejected", "; ".join(map(str, rejected.data.get("why", ())))
        elif there and proof:
            same = dict(there) == {name: file.size for name, file in proof.files.items()}
            state = "kept" if same else "differs"
            note = "" if same else "not the names and sizes that were proven; see `elastic-tpu verify`"
        elif not there and (proof or proven):
            state = "removed"
        files = len(proof.files) if proof else proven.data.get("files") if proven else None
        size = sum(file.size for file in proof.files.values()) if proof else sum(there.values()) if there else None
        digest = proof.digest if proof else str(proven.data.get("digest", "")) if proven else ""
        times = (saved.time if saved else None, proven.time if proven else None)
        found.append(Checkpoint(step, state, *times, files if isinstance(files, int) else None, size, digest, note))
    return tuple(found)


def _by_step(events: Sequence[Event], kind: str) -> dict[int, Event]:
    return {e.step: e for e in events if e.kind == f"checkpoint.{kind}" and e.step is not None}


def _recovering(records: Records) -> RecoveryStarted | None:
    """A recovery that has begun and not finished."""
    last = _last_stretch(records.events)
    return RecoveryStarted.of(last) if last is not None and last.kind == RecoveryStarted.KIND else None


def _last_stretch(events: Sequence[Event]) -> Event | None:
    """The last event that began or ended a stretch of training."""
    kinds = ("train.first_step", RecoveryFinished.KIND, RecoveryStarted.KIND, "train.stopped")
    return next((e for e in reversed(events) if e.kind in kinds), None)


def _ends(attempts: Sequence[AttemptRow]) -> dict[tuple[str, int], datetime]:
    return {(a.job, a.number): a.ended for a in attempts if a.ended is not None}


def _end_of_training(records: Records) -> datetime:
    """When training was last known to go on: now, unless it ended or fell silent."""
    status, seen = records.status, records.seen
    last = max((e.time for e in records.events if e.writer == "trainer"), default=records.now)
    if status is None or seen is None:
        return records.now
    if status.phase == "ended":
        return last
    silent = (records.now - seen) > timedelta(seconds=records.spec.traits.silent_after)
    return max(last, seen) if silent else records.now


def end_of(records: Records) -> datetime:
    """Where the time axis ends: now, or with the last event of a run that is over."""
    last = max((e.time for e in records.events), default=records.now)
    if records.claim is None or records.claim.claim.state == "done" or is_stale(records.claim, records.now):
        return max([last, *(a.ended for a in records.attempts if a.ended is not None)])
    return max(last, records.now)
