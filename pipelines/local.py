"""The pipeline on this machine: kfp.local in a process group of its own, driven like any stage.

kfp.local runs each component as a process and knows neither Ctrl-C nor an exit task that must run. So it gets a
session of its own, where no Ctrl-C of a terminal reaches it, and writes to a log file, where it disturbs no display.
The runner is the one who acts: it watches what the steps leave in a folder, and on a Ctrl-C or an error of its own it
cancels the step that is under way and gives the slices back. When the runner dies, the pipeline dies with it; training
goes on until nobody has driven it for `local.unclaimed`, and the next runner adopts it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ..components.kfp import term_of
from ..components.step_files import INSTANCE, NOTES, TAKE_OVER, Note, read_notes
from ..runs.errors import BadInput, ExitCode
from ..runs.judge.verdict import Verdict
from ..runs.record.claim import this_instance
from ..runs.record.run import Run, local_folder
from ..stages.open import open_stage
from ..stages.results import StageResult, error_of
from ..stages.steps import STEPS

_REWRITTEN = "python3"  # kfp.local puts its interpreter's path in the place of this word, in parameters as well


class LocalPipeline:
    """A `Stage` that is the whole pipeline: submit starts kfp.local, poll looks at its steps, cancel ends the one."""

    interval = 0.25

    def __init__(
        self, run: Run, holder: str, *, take_over: bool = False, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self._run, self._holder, self._take_over, self._tell = run, holder, take_over, tell
        self._instance = this_instance()
        self._folder = _folder(run)
        self._log = self._folder / "pipeline.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._notes: list[Note] = []
        self._verdict = Verdict("starting")

    @property
    def name(self) -> str:
        """The step that began last."""
        return self._notes[-1].step if self._notes else "pipeline"

    @property
    def uri(self) -> str | None:
        """The run's."""
        return self._run.uri

    @property
    def term(self) -> int | None:
        """The term of the claim, if a step of this very pipeline has it."""
        return term_of(self._run.uri, self._instance) or None

    @property
    def results(self) -> dict[str, StageResult]:
        """What the steps came to, by name; of two releases the first, which found the slices."""
        complete = [note for note in reversed(self._notes) if note.code == 0]
        return {note.step: StageResult(note.step, note.summary, dict(note.values)) for note in complete}

    @property
    def failed(self) -> str:
        """The first step that is not complete, or none."""
        return next((note.step for note in self._notes if note.code != 0), "")

    def submit(self) -> None:
        """Start kfp.local.

        Raises:
          BadInput: kfp is not installed, or it would change a parameter.
        """
        if importlib.util.find_spec("kfp") is None:
            raise BadInput("--via kfp-local needs kfp: pip install 'elastic-tpu[kfp]', or run without --via")
        for text in (self._run.uri, self._holder, str(self._folder)):
            if _REWRITTEN in text:
                cure = "take another run.output or run.name, or run without --via"
                raise BadInput(f"{text!r}: kfp.local writes another text for {_REWRITTEN!r}; {cure}")
        notes = self._folder / "steps"
        notes.mkdir(parents=True)
        told = {INSTANCE: self._instance, NOTES: str(notes), TAKE_OVER: "1" if self._take_over else ""}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, self._run.uri, self._holder, str(self._folder / "artifacts")],
                stdin=subprocess.PIPE,  # never written to: that it ends says that this process has
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **told},
                start_new_session=True,
            )
        self._tell(f"kfp.local writes to {self._log}")

    def poll(self) -> Verdict:
        """One look at what the steps left."""
        assert self._process is not None, "submit() comes first"
        code = self._process.poll()  # before the notes are read, so that the last one is among them
        known = sum(note.code is not None for note in self._notes)
        self._notes = read_notes(self._folder / "steps")
        over = [note for note in self._notes if note.code is not None]
        for note in over[known:]:
            self._tell(f"{note.step}: {note.reason or note.summary}")
        if code is not None:
            self._verdict = judge(self._notes, code, self._log)
        else:
            self._verdict = Verdict("running") if self._notes else Verdict("starting", reason="kfp is being loaded")
        return self._verdict

    def collect(self) -> StageResult:
        """All steps are complete; else the error of the first that is not."""
        if self._verdict.outcome != "complete":
            raise error_of(self._verdict)
        return StageResult("pipeline", f"{len(self._notes)} steps complete")

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        """Cancel the step that is under way; it ends by itself, and the exit task gives the slices back."""
        if self.term is None:
            return False  # no step has taken the run yet, or another took it over
        self._notes = read_notes(self._folder / "steps")
        return open_stage(STEPS[self.name], self._run.uri, self._holder, self._instance).cancel(grace, by, now)

    def give_up(self) -> None:
        """Each step does it for its own job."""

    def close(self) -> None:
        """End kfp.local and the step that it runs, if they are there."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # though kfp.local is over: a step of it may not be
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def judge(notes: Sequence[Note], code: int, log: Path) -> Verdict:
    """The verdict on a kfp.local that is over.

    The exit task's success hides no failure (the first step that failed counts), and kfp.local's own success is none
    unless every step said so.
    """
    for note in notes:
        if note.code is None or note.code == ExitCode.EVICTED:
            reason = f"{note.step}: {note.reason or 'the step was killed'}"
            return Verdict("done", "failed", "relaunch", ExitCode.INFRASTRUCTURE, reason)
        if note.code:
            return Verdict("done", "failed", code=note.code, reason=note.reason)
    missing = [name for name in STEPS if name not in {note.step for note in notes}]
    if code or missing:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        what = f"kfp.local ended with exit code {code}" + (f", without {', '.join(missing)}" if missing else "")
        return Verdict("done", "failed", "user", ExitCode.BUG, f"{what}: {last} (all of it: {log})")
    return Verdict("done", "complete")


def _folder(run: Run) -> Path:
    """Where kfp.local keeps its artifacts: beside the run directory, which is the same whoever drives."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    here = local_folder(run)
    if here is None:
        return Path(tempfile.mkdtemp(prefix="elastic-tpu-kfp-")) / stamp
    return Path(here).parent / ".kfp" / Path(here).name / stamp


def main() -> None:
    """The process that kfp.local runs in."""
    from kfp import local

    from .train_export_evaluate import for_this_machine

    run, holder, root = sys.argv[1:]
    local.init(runner=local.SubprocessRunner(use_venv=False), raise_on_error=True, pipeline_root=root)
    for_this_machine()(run=run, holder=holder)


def _end_with_runner() -> None:
    """Wait until the runner is gone, then end the pipeline with its steps; their stop would be nobody's wish."""
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_runner, daemon=True).start()
    main()
