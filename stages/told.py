"""What a job tells of itself in its run directory, as far as people may be shown it.

The trainer writes status.json, an export or evaluation its progress file. The file may be an earlier process's, whose
step and loss would be taken for those of the one that starts; one that lives writes it anew every few seconds.
Standard library only at import, as all of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runs.errors import NotFound
from ..runs.judge.verdict import Verdict

if TYPE_CHECKING:
    from ..runs.record.job_progress import JobProgress
    from ..runs.record.run import Run
    from ..runs.record.status import Status
    from ..runs.store.base import Item

_SAY_NOTHING_OF_A_TRAINER = ("queued", "suspended", "done")


class Told:
    """The file in which a job (`train`, `export` or `evaluate`) says what it does.

    Attributes:
      status, progress: what may be shown of a trainer or of another job, as of the last `read`; None if nothing is.
    """

    def __init__(self, run: Run, job: str) -> None:
        from ..runs.record import paths

        self._run, self._job = run, job
        self._name = paths.STATUS if job == "train" else paths.job_progress(job)
        self._hidden: str | None = None  # generation that an earlier process wrote
        self.status: Status | None = None
        self.progress: JobProgress | None = None

    def hide(self) -> None:
        """Show nothing of what is there now: an earlier process of the job wrote it."""
        item = self._item()
        self._hidden = None if item is None else item.generation
        self.status = self.progress = None

    def read(self) -> Status | None:
        """Look again. Returns the status of the last trainer, be it shown or not: verdicts are by it.

        Raises:
          BadInput: a newer version wrote it.
          Unreachable: the storage does not answer.
        """
        item = self._item()
        hidden = item is not None and item.generation == self._hidden
        if not hidden:
            self._hidden = None
        if self._job != "train":
            from ..runs.record.job_progress import job_progress_in

            self.progress = None if hidden or item is None else job_progress_in(self._run, self._name, item)
            return None
        from ..runs.record.status import status_in

        status = None if item is None else status_in(self._run, item)
        self.status = None if hidden else status
        return status

    def shown(self, verdict: Verdict) -> Verdict:
        """The verdict as people may be told it: one on training is by the hidden status as well."""
        if self._job == "train" and self._hidden is not None and verdict.phase not in _SAY_NOTHING_OF_A_TRAINER:
            return Verdict("starting")
        return verdict

    def _item(self) -> Item | None:
        try:
            return self._run.store.read(self._name)
        except NotFound:
            return None
