"""The adapter for Kubeflow Pipelines, Vertex AI Pipelines and kfp.local: ONE loop that drives a stage.

Every component is a shell around `run_step`, which runs in the component's container (kfp.local: in a process of its
own). It submits, looks until the stage is done, collects, and fills the artifacts that the component declares; what
is right is decided by the stage. A step that fails ends with the exit code of its error (contracts.md 8), one that is
told to end by SIGTERM writes a stop that a rescheduled one undoes, and exits with 143. SIGINT is ignored: a Ctrl-C
reaches every process of a kfp.local pipeline, and only whoever started it acts.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..runs.errors import ElasticTPUError, ExitCode, Infrastructure, Unreachable
from ..stages.open import open_stage
from ..stages.results import StageResult
from ..stages.retry import patiently
from ..stages.stage import Stage, Step
from ..stages.steps import PROVISION, RELEASE, STEPS, TRAIN
from .step_files import INSTANCE, TAKE_OVER, Note, NoteFile

if TYPE_CHECKING:
    from ..runs.record.run import Run

IMAGE = f"elastic-tpu:{__version__}"
"""The image of every component: this package of this very version, with its `kfp` extra."""

_GRACE = 300.0  # seconds in which a rescheduled step undoes the stop of a signal: a drained node is not a user's wish
_EVERY = 30.0  # seconds between lines of a log when nothing changes
_NOBODY = 0  # a term that no claim has
_RELEASES = 4  # tries of a release: an orchestrator's own retry does not cover every failure


class Terminated(BaseException):
    """SIGTERM came: whatever is under way ends, and there may be one second left."""


def run_step(name: str, run: str, holder: str, *, model: Any = None, metrics: Any = None, report: Any = None) -> None:
    """Drive a stage to its end, as the body of a component.

    Args:
      name: of the step: provision, train, release, export or evaluate.
      run, holder: the component's two parameters (contracts.md 2).
      model, metrics, report: its output artifacts (`dsl.Model`, `dsl.Metrics`, `dsl.HTML`), those that it has.

    Raises:
      SystemExit: the step failed; the code says who must act.
    """
    step = STEPS[name]
    with _signals():
        file = NoteFile(name)
        try:
            uri, result = _drive(step, run, holder)
            try:
                patiently(lambda: _describe(uri, result, model, metrics, report), say)
            except Unreachable as error:
                say(f"warning: the artifacts are not filled: {error}")  # the stage is complete even so
            note = Note(name, 0, "", result.summary, result.values)
        except Terminated:
            note = Note(name, int(ExitCode.EVICTED), "ended by SIGTERM")
        except ElasticTPUError as error:
            note = Note(name, int(error.code), str(error))
        except Exception as error:
            say(traceback.format_exc())
            note = Note(name, int(ExitCode.BUG), f"a bug of elastic-tpu: {type(error).__name__}: {error}")
        file.write(note)
    say(f"{name}: error: {note.reason}" if note.code else f"{name}: {note.summary}")
    if note.code:
        raise SystemExit(note.code)


def say(text: str) -> None:
    """A line of the step's log."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


def _drive(step: Step, run: str, holder: str) -> tuple[str | None, StageResult]:
    """The stage to its end; the run's URI and the result."""
    from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    def once() -> tuple[str | None, StageResult]:
        stage = patiently(lambda: _open(step, run, holder), say)
        return stage.uri, follow(stage, progress=lambda: _progress(stage))

    def tell(state: RetryCallState) -> None:
        say(f"{step.name}: {state.outcome.exception() if state.outcome else ''}; trying again")

    return Retrying(
        stop=stop_after_attempt(_RELEASES if step is RELEASE else 1),
        wait=wait_exponential(multiplier=2),
        retry=retry_if_exception_type(Infrastructure),
        before_sleep=tell,
        reraise=True,
    )(once)


def follow(
    stage: Stage,
    *,
    progress: Callable[[], str] = lambda: "",
    tell: Callable[[str], None] = say,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StageResult:
    """Submit, look until done with a line on each change and every 30 s, collect.

    Args:
      progress: more about where a running stage is, for the log.

    Raises:
      Terminated: after the stop was written.
      ElasticTPUError: of the stage.
    """
    try:
        patiently(stage.submit, tell, clock, sleep)
        last, said = "", float("-inf")
        while True:
            verdict = patiently(stage.poll, tell, clock, sleep)
            if verdict.done:
                return patiently(stage.collect, tell, clock, sleep)
            text = f"{stage.name}: {verdict.phase}" + (f", {verdict.reason}" if verdict.reason else "")
            if text != last or clock() - said >= _EVERY:
                more = ""
                with suppress(Unreachable):  # only a word more for the log
                    more = progress()
                tell(text + (f", {more}" if more else ""))
                last, said = text, clock()
            sleep(stage.interval)
    except Terminated:
        try:
            if stage.cancel(_GRACE, by="SIGTERM"):
                tell(f"{stage.name}: SIGTERM: stop written; the same run undoes it within {_GRACE:.0f} s")
            else:
                tell(f"{stage.name}: SIGTERM: nothing is stopped; the same run goes on with it")
        except ElasticTPUError as error:
            tell(f"{stage.name}: SIGTERM: no stop was written: {error}")
        raise


def _open(step: Step, run: str, holder: str) -> Stage:
    instance = os.environ.get(INSTANCE)
    if instance is None:
        from ..runs.record.claim import this_instance

        # A container that is started again has the name of the pod as before, so the process counts as well.
        return open_stage(step, run, holder, f"{socket.gethostname()}:{this_instance()}", tell=say)
    term = term_of(run, instance) if step is RELEASE else None
    take_over = step is PROVISION and bool(os.environ.get(TAKE_OVER))
    return open_stage(step, run, holder, instance, take_over=take_over, term=term, tell=say)


def term_of(run: str, instance: str) -> int | None:
    """The term in which this instance drives the run; 0 when another does, None when nobody has.

    A person is the same holder in every terminal: what one of them may release is known by the instance alone.
    """
    from ..runs.record.claim import read_claim
    from ..runs.record.run import open_run

    seen = read_claim(open_run(run).store)
    if seen is None:
        return None
    return seen.claim.term if seen.claim.instance == instance else _NOBODY


def _progress(stage: Stage) -> str:
    """Where training is; empty for other steps."""
    from ..runs.record import paths
    from ..runs.record.run import open_run
    from ..runs.record.status import load_status

    if stage.name != TRAIN.name or stage.uri is None:
        return ""
    status = load_status(open_run(stage.uri).read(paths.STATUS))
    if status is None:
        return ""
    loss = "" if status.loss is None else f", loss {status.loss:.3f}"
    return (
        f"step {max(status.step, 0)} of {status.steps}{loss}, {status.slices.active} of {status.slices.wanted} slices"
    )


# -- artifacts ----------------------------------------------------------------------------------------------------


def _describe(uri: str | None, result: StageResult, model: Any, metrics: Any, report: Any) -> None:
    """Fill the artifacts of a step; what a stage that is switched off would have made stays empty."""
    from ..runs.record.run import open_run

    artifacts = [artifact for artifact in (model, metrics, report) if artifact is not None]
    if uri is None or not artifacts:
        return
    opened = open_run(uri)
    for artifact in artifacts:
        artifact.metadata.update(_identity(opened, result))
    if model is not None and "model" in result.values:
        # Not model.uri: the launcher fails a step whose artifact lies outside the pipeline root, and the run does.
        model.metadata["model"] = result.values["model"]
    if metrics is not None:
        for name, value in _numbers(result).items():
            metrics.log_metric(name, value)
    if report is not None:
        _copy_report(opened, report)


def _identity(run: Run, result: StageResult) -> dict[str, Any]:
    """What an artifact is of: the run, its spec, the step, and the digests of checkpoint and export."""
    from ..runs.record.published import export_of

    found: dict[str, Any] = {"run": run.uri, "spec_hash": run.spec_hash, "summary": result.summary}
    if result.stage == "train":
        found |= {"step": result.values["final_step"], "proof_digest": result.values["proof_digest"]}
        return found | {"checkpoint": result.values["checkpoint"]}
    manifest = export_of(run)[0] if result.values else None
    return found | {key: manifest[key] for key in ("step", "proof_digest", "export_digest") if manifest}


def _numbers(result: StageResult) -> dict[str, float]:
    """The numbers of a result by dotted name: ``heldout.loss``, ``goodput``, ``seconds_by_kind.recovery``."""
    found: dict[str, float] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else str(key), inner)
        elif isinstance(value, (int, float)):
            found[name] = value

    walk("", result.values.get("metrics", result.values))
    return found


def _copy_report(run: Run, report: Any) -> None:
    """The page as it is now; it is one file with all that it needs."""
    from ..runs.errors import NotFound

    try:
        Path(report.path).write_bytes(run.store.read("report.html").data)
    except NotFound:
        say("there is no report.html yet")


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM interrupts what is under way, once; SIGINT does nothing."""

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
