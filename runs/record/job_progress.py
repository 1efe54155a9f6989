"""jobs/<job>-progress.json: what an export or evaluation does now, and how far it is. Nothing is decided by it."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, ValidationError

from ..errors import BadInput, NotFound
from ..store import records
from ..store.base import Item
from . import paths
from .run import Run


class JobProgress(BaseModel):
    """What a job does, as of its last write.

    Attributes:
      attempt: process start, from 1.
      doing: in words (`writing the weights`).
      doing_seconds: since when, as of this write.
      done: of `total`, in `unit`; `total` is 0 where nothing is counted.
    """

    model_config = ConfigDict(frozen=True)

    attempt: int
    doing: str
    doing_seconds: NonNegativeFloat = 0.0
    done: NonNegativeInt = 0
    total: NonNegativeInt = 0
    unit: str = ""

    def dump(self) -> bytes:
        """As the bytes of the file."""
        return records.dump(self.model_dump())


def read_job_progress(run: Run, job: str) -> tuple[JobProgress, datetime] | None:
    """The progress of a job, and when it was written by the storage's clock; None if nothing readable is there."""
    name = paths.job_progress(job)
    try:
        item = run.store.read(name)
    except (NotFound, BadInput):
        return None
    progress = job_progress_in(run, name, item)
    return None if progress is None else (progress, item.updated)


def job_progress_in(run: Run, name: str, item: Item) -> JobProgress | None:
    """The progress in a file of this name that was read; None if it is not readable."""
    try:
        return JobProgress.model_validate(records.load(item.data, run.path(name)))
    except (BadInput, ValidationError):
        return None
