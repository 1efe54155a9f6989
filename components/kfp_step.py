"""The adapter for Kubeflow Pipelines, Vertex AI Pipelines and kfp.local: one loop that drives any stage.

Every component only calls `run_step`, in its container (kfp.local: in a process of its own). `run_step` submits the
stage, polls it until it is done, collects the result and fills the component's artifacts; all decisions are the
stage's. A step that fails exits with the code of its error (docs/contracts.md 8). On SIGTERM it writes a stop, which
the step undoes if it is scheduled again, and exits with 143. SIGINT is ignored: a Ctrl-C reaches every process of a
kfp.local pipeline, and only the runner (pipelines/local.py) must act on it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from .. import __version__
from ..runs import masking
from ..runs.errors import ElasticTPUError, ExitCode, Infrastructure, Unreachable
from ..runs.extras import needed
from ..runs.units import counted, show_duration
from ..stages.allowed import ALLOW_LOCAL, allows_local, prefixes_in, require_under
from ..stages.open import open_stage
from ..stages.progress import ProgressLog
from ..stages.results import StageResult
from ..stages.retry import until_answered
from ..stages.stage import Stage, Step
from ..stages.steps import PROVISION, RELEASE, RELEASE_AT_END, STEPS
from .step_end import why
from .step_files import INSTANCE, SPEC_HASH, TAKE_OVER, Note, NoteFile
from .step_outputs import fill, write_model_uri

IMAGE = f"elastic-tpu:{__version__}"
"""The default image of every component: this version of the package, with its `kfp` extra."""

_GRACE = 300.0  # seconds in which a rescheduled step undoes the stop: SIGTERM may come from a drained node, not a user
_EVERY = 30.0  # seconds between lines of the log when nothing changes
_NOBODY = 0  # a term that no claim has
_RELEASES = 4  # tries of a release: orchestrators do not retry an exit task after every kind of failure


class Terminated(BaseException):
    """SIGTERM arrived. Interrupts what is under way; SIGKILL may follow within a second."""


def run_step(
    name: str,
    run: str,
    holder: str,
    *,
    last: bool = False,
    model: Any = None,
    metrics: Any = None,
    report: Any = None,
    model_uri: str = "",
    spec_hash: str = "",
    spec_hash_file: str = "",
) -> None:
    """Drive a stage to its end, as the body of a component.

    Args:
      name: of the step: provision, train, release, export or evaluate.
      run, holder: the component's two parameters (docs/contracts.md 2).
      last: of a release: see `SliceStep.last`.
      model, metrics, report: the output artifacts that the component has: `dsl.Model`, `dsl.Metrics`, `dsl.HTML`.
      model_uri, spec_hash_file: paths of the files of the output parameters `model_uri` and `spec_hash`, where the
        component has them.
      spec_hash: that the run's spec must have; empty for any.

    Raises:
      SystemExit: the step failed; the code is an `ExitCode`.
    """
    step = RELEASE_AT_END if last else STEPS[name]
    with _signals():
        file, seen = NoteFile(name), _Seen()
        try:
            drive = _release_all if step.name == RELEASE.name else _drive
            result = drive(step, run, holder, spec_hash, seen)
            if model_uri:
                write_model_uri(model_uri, result)
            if spec_hash_file:
                Path(spec_hash_file).write_text(seen.spec_hash, encoding="utf-8")
            try:
                until_answered(lambda: fill(seen.uri, result, model, metrics, report, say), say)
            except Unreachable as error:
                say(f"warning: the artifacts are not filled: {error}")  # the stage is complete all the same
            note = Note(name, 0, "", result.summary, result.values)
        except Terminated:
            note = Note(name, int(ExitCode.EVICTED), "ended by SIGTERM")
        except ElasticTPUError as error:
            note = Note(name, int(error.code), str(error))
        except Exception as error:
            say(masking.mask(traceback.format_exc()))
            note = Note(name, int(ExitCode.BUG), masking.mask(f"a bug of elastic-tpu: {type(error).__name__}: {error}"))
        file.write(note)
        if note.code:
            for line in why(name, ExitCode.of(note.code), note.reason, seen.uri or _run_named(run), run):
                say(line)
            raise SystemExit(note.code)
    say(f"{name}: {note.summary}")


@dataclass
class _Seen:
    """What a step has found so far."""

    uri: str | None = None
    spec_hash: str = ""


def _run_named(source: str) -> str:
    """The URI of the run directory that the parameter `run` is; empty if it is a spec."""
    from ..runs.record.start import is_spec

    return "" if is_spec(source) else source


def kfp_needed() -> AbstractContextManager[None]:
    """Around a component's import of kfp: without the `kfp` extra it says how to install it. Raises MissingExtra."""
    return needed("kfp", "a KFP component")


def say(text: str) -> None:
    """Write a line to the step's log, stdout."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


def _release_all(step: Step, run: str, holder: str, spec_hash: str, seen: _Seen) -> StageResult:
    """Release a run, or all that the holder started below an output; raises the first error, once all were tried."""
    from ..runs.record.start import runs_below

    require_under(run, prefixes_in(os.environ))
    started = until_answered(lambda: runs_below(run, holder), say)
    if started is None:
        return _drive(step, run, holder, spec_hash, seen)
    failed: ElasticTPUError | None = None
    for uri in started:
        try:
            say(f"{uri}: {_drive(step, uri, holder, spec_hash, seen).summary}")
        except ElasticTPUError as error:
            say(f"{uri}: {error}")
            failed = failed or error
    if failed is not None:
        raise failed
    seen.uri = None  # what is said of all is not of the last one
    return StageResult(step.name, f"{counted(len(started), 'run')} of {holder} below {run} released")


def _drive(step: Step, run: str, holder: str, spec_hash: str, seen: _Seen) -> StageResult:
    """Run the stage to its end; returns its result. A release is tried several times."""
    from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    def once() -> StageResult:
        stage = until_answered(lambda: _open(step, run, holder, spec_hash), say)
        seen.uri, seen.spec_hash = stage.uri, stage.spec_hash
        return follow(stage)

    def tell(state: RetryCallState) -> None:
        say(f"{step.name}: {state.outcome.exception() if state.outcome else ''}; trying again")

    return Retrying(
        stop=stop_after_attempt(_RELEASES if step.name == RELEASE.name else 1),
        wait=wait_exponential(multiplier=2),
        retry=retry_if_exception_type(Infrastructure),
        before_sleep=tell,
        reraise=True,
    )(once)


def follow(
    stage: Stage,
    *,
    tell: Callable[[str], None] = say,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StageResult:
    """Submit the stage, poll it until it is done, collect. Logs a line on each change, and every 30 s.

    Args:
      tell: writes a line to the log.
      clock, sleep: in seconds.

    Raises:
      Terminated: SIGTERM arrived; the stage was asked to stop.
      ElasticTPUError: the stage failed.
    """
    try:
        until_answered(stage.submit, tell, clock, sleep)
        log = ProgressLog(tell, _EVERY, clock)
        while True:
            verdict = until_answered(stage.poll, tell, clock, sleep)
            if verdict.done:
                return until_answered(stage.collect, tell, clock, sleep)
            log.look(verdict, stage.progress())
            sleep(stage.interval)
    except Terminated:
        try:
            if stage.cancel(_GRACE, by="SIGTERM"):
                undone = f"undone if this step runs again within {show_duration(_GRACE)}"
                tell(f"{stage.name}: SIGTERM: stop written; {undone}")
            else:
                tell(f"{stage.name}: SIGTERM: nothing is stopped; this step goes on if it runs again")
        except ElasticTPUError as error:
            tell(f"{stage.name}: SIGTERM: no stop was written: {error}")
        raise


def _open(step: Step, run: str, holder: str, spec_hash: str) -> Stage:
    require_under(run, prefixes_in(os.environ))
    instance = os.environ.get(INSTANCE)
    # With an instance the runner of kfp.local started this process: beside the others, be it all in one container.
    allow_local = os.environ.get(ALLOW_LOCAL) == "1" if instance else allows_local(os.environ)
    if instance is None:
        from ..runs.record.claim import this_instance

        # The process is part of the instance: a container that is restarted has the same host name as before.
        who = f"{socket.gethostname()}:{this_instance()}"
        return open_stage(step, run, holder, who, allow_local=allow_local, spec_hash=spec_hash, tell=say)
    term = term_of(run, instance) if step.name == RELEASE.name else None
    take_over = step is PROVISION and bool(os.environ.get(TAKE_OVER))
    return open_stage(
        step,
        run,
        holder,
        instance,
        take_over=take_over,
        term=term,
        allow_local=allow_local,
        spec_hash=spec_hash or os.environ.get(SPEC_HASH, ""),
        tell=say,
    )


def term_of(run: str, instance: str) -> int | None:
    """The claim's term if this instance has the claim; 0 if another one has it, None if there is no claim.

    A person is the same holder in every terminal, so only the instance tells whether a release may act.
    """
    from ..runs.record.claim import read_claim
    from ..runs.record.run import open_run

    seen = read_claim(open_run(run).store)
    if seen is None:
        return None
    return seen.claim.term if seen.claim.instance == instance else _NOBODY


@contextmanager
def _signals() -> Iterator[None]:
    """Raise `Terminated` on the first SIGTERM; ignore later ones, and SIGINT."""

    def terminate(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, terminate),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
