"""The pipeline on this machine: kfp.local in a process group of its own, driven like any stage.

kfp.local runs each component as a process. It does not handle Ctrl-C, and does not run the exit task after it. So it
runs in a session of its own, which a terminal's Ctrl-C does not reach, and its output goes to a log file instead of
the display. The runner, this process, watches the files that the steps write (components/step_files.py). On Ctrl-C,
and on an error of its own, it cancels the running step and gives the slices back. If the runner dies, the pipeline
dies with it; training goes on for `local.unclaimed`, in which the next runner can adopt it.
"""

from __future__ import annotations

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

from ..components.kfp_step import term_of
from ..components.step_files import INSTANCE, NOTES, SPEC_HASH, TAKE_OVER, Note, read_notes
from ..runs import extras
from ..runs.errors import BadInput, ExitCode
from ..runs.judge.verdict import Verdict
from ..runs.record.claim import this_instance
from ..runs.record.run import Run, local_folder
from ..stages.allowed import ALLOW_LOCAL
from ..stages.open import open_stage
from ..stages.progress import progress_text
from ..stages.results import StageResult, error_of
from ..stages.steps import STEPS

_REWRITTEN = "python3"  # kfp.local replaces this word by its interpreter's path, in parameters too


class LocalPipeline:
    """A `Stage` that is the whole pipeline: submit starts kfp.local, poll reads the steps' notes, cancel ends one."""

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
        """Name of the step that began last."""
        return self._notes[-1].step if self._notes else "pipeline"

    @property
    def uri(self) -> str | None:
        """URI of the run directory."""
        return self._run.uri

    @property
    def spec_hash(self) -> str:
        """Hash of the run's spec."""
        return self._run.spec_hash

    @property
    def term(self) -> int | None:
        """The claim's term, if a step of this pipeline has the claim."""
        return term_of(self._run.uri, self._instance) or None

    @property
    def results(self) -> dict[str, StageResult]:
        """Results of the complete steps, by name; of two releases that of the first, which found the slices."""
        complete = [note for note in reversed(self._notes) if note.code == 0]
        return {note.step: StageResult(note.step, note.summary, dict(note.values)) for note in complete}

    @property
    def failed(self) -> str:
        """Name of the first step that is not complete; empty if all are."""
        return next((note.step for note in self._notes if note.code != 0), "")

    def submit(self) -> None:
        """Start kfp.local.

        Raises:
          BadInput: kfp is not installed, or it would change a parameter.
        """
        extras.require("kfp", "--via kfp-local")
        for text in (self._run.uri, self._holder, str(self._folder)):
            if _REWRITTEN in text:
                cure = "take another run.output or run.name, or run without --via"
                raise BadInput(f"{text!r}: kfp.local writes another text for {_REWRITTEN!r}; {cure}")
        notes = self._folder / "steps"
        notes.mkdir(parents=True)
        told = {INSTANCE: self._instance, NOTES: str(notes), TAKE_OVER: "1" if self._take_over else ""}
        told |= {ALLOW_LOCAL: "1", SPEC_HASH: self.spec_hash}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, self._run.uri, self._holder, str(self._folder / "artifacts")],
                stdin=subprocess.PIPE,  # never written to: it closes when this process dies
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **told},
                start_new_session=True,
            )
        self._tell(f"kfp.local writes to {self._log}")

    def poll(self) -> Verdict:
        """Read the notes that the steps wrote."""
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

    def progress(self) -> str:
        """Where the pipeline is; its steps tell where they are."""
        return progress_text(self.name, self._verdict, None)

    def collect(self) -> StageResult:
        """The result of the pipeline. Raises the error of the first step that is not complete."""
        if self._verdict.outcome != "complete":
            raise error_of(self._verdict)
        return StageResult("pipeline", f"{len(self._notes)} steps complete")

    def cancel(self, grace: float, by: str = "", now: bool = False) -> bool:
        """Cancel the running step; it ends by itself, and the exit task gives the slices back."""
        if self.term is None:
            return False  # no step has taken the run yet, or another took it over
        self._notes = read_notes(self._folder / "steps")
        step, pinned = STEPS[self.name], self.spec_hash
        stage = open_stage(step, self._run.uri, self._holder, self._instance, allow_local=True, spec_hash=pinned)
        return stage.cancel(grace, by, now)

    def give_up(self) -> None:
        """Nothing to do: each step gives up its own job."""

    def close(self) -> None:
        """Kill kfp.local and the step that it runs, if they still run."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # also if kfp.local has ended: a step of it may still run
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def judge(notes: Sequence[Note], code: int, log: Path) -> Verdict:
    """The verdict on a pipeline whose kfp.local has ended.

    The first step that failed counts, even if the exit task succeeded after it. Without a failed step the pipeline is
    complete only if kfp.local exited 0 and every step wrote that it is complete.
    """
    for note in notes:
        if note.code is None or note.code == ExitCode.EVICTED:
            reason = f"{note.step}: {note.reason or 'the step was killed'}"
            return Verdict.ended(ExitCode.INFRASTRUCTURE, reason)
        if note.code:
            return Verdict.ended(ExitCode.of(note.code), note.reason)
    missing = [name for name in STEPS if name not in {note.step for note in notes}]
    if code or missing:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        what = f"kfp.local ended with exit code {code}" + (f", without {', '.join(missing)}" if missing else "")
        return Verdict.ended(ExitCode.BUG, f"{what}: {last} (all of it: {log})")
    return Verdict("done", "complete")


def _folder(run: Run) -> Path:
    """A new folder for kfp.local's log, notes and artifacts, beside the run directory and not part of it."""
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
    """Wait until the runner is gone, then kill the pipeline and its steps; with SIGKILL, so that they write no stop."""
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_runner, daemon=True).start()
    main()
