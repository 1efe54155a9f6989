"""Where a stage is, in a line for people: on a terminal, and in an orchestrator's log.

Standard library only at import, as all of this package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..runs.judge.verdict import Verdict
from ..runs.units import show_duration, show_size

if TYPE_CHECKING:
    from ..runs.record.job_progress import JobProgress
    from ..runs.record.status import Status


def job_words(job: JobProgress) -> str:
    """What a job on CPU does, and how far it is."""
    words = f"{job.doing}, {show_duration(job.doing_seconds)}"
    if not job.total:
        return words
    done, total = (show_size(n) if job.unit == "bytes" else f"{n:,}" for n in (job.done, job.total))
    unit = "" if job.unit == "bytes" else f" {job.unit}"
    return f"{words}, {done} of {total}{unit} ({100 * job.done / job.total:.0f} %)"


def progress_text(stage: str, verdict: Verdict, status: Status | None = None, job: JobProgress | None = None) -> str:
    """Where a stage is, in a line."""
    if job is not None and verdict.phase in ("starting", "running"):
        return f"{stage}: {job_words(job)}" + (f", {verdict.reason}" if verdict.reason else "")
    if stage != "train" or status is None or (status.phase == "ended" and verdict.phase in ("queued", "starting")):
        return f"{stage}: {verdict.phase}" + (f", {verdict.reason}" if verdict.reason else "")
    if status.phase == "ended":
        return "train: the trainer has ended"
    if verdict.phase in ("recovering", "finishing") and status.phase in ("training", "saving"):
        return f"train: {verdict.phase}, {verdict.reason}"  # status.json is from the trainer that died
    parts: list[str] = [status.phase]
    if status.doing:
        parts.append(f"{status.doing}, {show_duration(status.doing_seconds)}")
    if status.step >= 0:  # before its first step a process that resumes has none to tell
        parts.append(f"step {status.step} of {status.steps}")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.3f}")
    if status.step_seconds:
        parts.append(f"{status.step_seconds:.2f} s a step")
    if status.eta is not None and status.phase == "training":
        parts.append(f"{show_duration(status.eta)} to go")
    if status.slices.wanted:  # 0 until the trainer has looked at its slices
        parts.append(f"slices {status.slices.active} of {status.slices.wanted}")
    if status.reason and status.phase in ("waiting", "suspended", "stopping"):
        # What a recovery is from: the slice that it names may be back.
        parts.append(f"recovering from: {status.reason}" if status.phase == "waiting" else status.reason)
    told = (status.reason, status.doing)
    if verdict.phase in ("running", "suspended") and verdict.reason and verdict.reason not in told:
        parts.append(verdict.reason)
    return "train: " + ", ".join(parts)


class ProgressLog:
    """Tells a log where a stage is: at once when its phase or its reason changes, else from time to time.

    Args:
      tell: writes a line.
      every: seconds between two lines of a stage that just goes on.
      clock: in seconds.
    """

    def __init__(self, tell: Callable[[str], None], every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._every, self._clock = tell, every, clock
        self._told: tuple[str, str] | None = None
        self._next = 0.0

    def look(self, verdict: Verdict, line: str) -> None:
        """Tell the line of this look, if it is time to."""
        now = self._clock()
        if (news := (verdict.phase, verdict.reason)) != self._told or now >= self._next:
            self._told, self._next = news, now + self._every
            self._tell(line)
