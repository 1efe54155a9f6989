"""A stand-in trainer: it speaks the run contract and trains nothing.

It plays the trainer where the platform, a stage, the claim or an adapter is under test, in a second instead of a
minute. Everything about the contract is the real thing (attempt, heartbeat and fence, events, proofs, result, exit
codes, slices lost and back); only the model is not: its state is a hash chained over the steps, so that a step left out
or done twice shows in the final checkpoint. Never used to show anything about MaxText, Orbax or JAX.

In a spec:   local: {trainer: [<python>, <this file>, --step-seconds, "0.02", ...]}
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import os
import sys
import threading
import time
from pathlib import Path

from elastic_tpu.platforms.gke.slices import GkeSlices
from elastic_tpu.platforms.local.slices import LocalSlices
from elastic_tpu.runs.errors import ElasticTPUError, ExitCode
from elastic_tpu.runs.record import paths, published
from elastic_tpu.runs.record.events import EventLog
from elastic_tpu.runs.record.result import proven_result
from elastic_tpu.runs.record.run import Run, local_folder, open_for_work
from elastic_tpu.runs.record.status import SliceCount
from elastic_tpu.runs.store import records
from elastic_tpu.trainer.job_progress import ProgressRecord
from elastic_tpu.trainer.session import AttemptLog, ProcessAttempt, TrainerSession, leave
from elastic_tpu.trainer.training.failure_policy import starts_without_progress
from elastic_tpu.trainer.training.finite import FiniteLosses
from elastic_tpu.trainer.training.hardware import SliceEvents, Slices
from elastic_tpu.trainer.training.loss_writer import LossWriter
from elastic_tpu.trainer.training.prover import Prover
from elastic_tpu.trainer.training.recovery import (
    Recovering,
    StepTimes,
    after_a_dead_process,
    tell_finished,
    tell_started,
)
from elastic_tpu.trainer.training.train import finish


class StandIn:
    """Steps, checkpoints and recoveries without a model."""

    early_stop = False

    def __init__(self, session: TrainerSession, args: argparse.Namespace) -> None:
        self.session, self.args, self.run = session, args, session.run
        self.beat = session.heartbeat
        self.there = threading.Event()
        self.slices = slices_of(session, self.there)
        self.prover = Prover(session, 0.1, FiniteLosses("continue"))  # there is no model that could diverge
        self.losses = LossWriter(self.run, session.attempt.number)
        self.times = StepTimes()
        self.recovering: Recovering | None = after_a_dead_process(session.before)

    def settle(self) -> int | None:
        return self.prover.settle()

    @property
    def trained_seconds(self) -> float:
        return self.times.total

    def train(self) -> None:
        time.sleep(self.args.start_seconds)
        self.beat.update(phase="waiting", slices=SliceCount(0, self.run.spec.slices.count))
        self.beat.wait_until_held()
        while not self._attempt():
            pass
        self.losses.close()
        self.prover.close()

    def _attempt(self) -> bool:
        wanted = self.run.spec.slices.minimum
        while not self.there.is_set() or len(self.slices.alive()) < wanted:
            time.sleep(0.02)
        held = self.slices.hold(self.slices.alive())
        if self.recovering:
            self.recovering.ready = time.monotonic()
        self.beat.update(phase="restoring", slices=SliceCount(len(held), self.run.spec.slices.count))
        proven = self.prover.settle()
        saved = self.run.read(f"{paths.checkpoint(proven)}/state.json") if proven is not None else None
        state = "" if saved is None else saved["state"]
        step = 0 if proven is None else proven + 1
        if self.recovering:
            self.recovering.training, self.recovering.restored = time.monotonic(), step - 1
        self.times = StepTimes()
        self.beat.update(phase="training", step=step - 1)
        self.prover.resume()
        return self._steps(step, state)

    def _steps(self, step: int, state: str) -> bool:
        steps = self.run.spec.train.steps
        first = True
        while step < steps:
            began = time.monotonic()
            time.sleep(self.args.step_seconds)
            while self._is_held(step):
                time.sleep(0.02)
            if lost := self.slices.lost():
                self._lost(sorted(lost))
                return False
            while self.args.hang_at == step:
                time.sleep(3600)  # as a library that blocks for hours: deaf to SIGTERM and to a stop
            state = hashlib.sha256(f"{state}{step}".encode()).hexdigest()
            self.times.add(step, time.monotonic() - began)
            self.beat.update(step=step, loss=5.0 / (step + 1), step_seconds=0.02, trained_seconds=self.times.total)
            self.losses.add(step, 5.0 / (step + 1))
            if first:
                first = False
                self._told_first_step(step)
            stop = self.beat.stop
            if step % self.run.spec.checkpoint.every == 0 or step == steps - 1 or stop:
                self._save(step, state)
            if (
                self.args.exit_at
                and step == self.args.exit_at[0]
                and self.session.attempt.number <= self.args.exit_times
            ):
                if self.args.exit_at[1] < 0:
                    os.kill(os.getpid(), -self.args.exit_at[1])
                why = self.args.reason.read_text() if self.args.reason else f"told to exit at step {step}"
                leave(self.session.end(self.args.exit_at[1], os.path.expandvars(why)))
            if stop:
                self.beat.update(phase="stopping")
                return True
            step += 1
        return True

    def _is_held(self, step: int) -> bool:
        held = self.args.hold_at is not None and step == self.args.hold_at[0] and not self.args.hold_at[1].exists()
        return held and not self.slices.lost() and not self.beat.stop

    def _told_first_step(self, step: int) -> None:
        if self.recovering:
            tell_finished(self.session, self.recovering, step, time.monotonic())
            self.recovering = None
        else:
            self.session.event("train.first_step", step=step)

    def _lost(self, lost: list[int]) -> None:
        now, reached = time.monotonic(), self.beat.status.step
        self.recovering = Recovering(f"slice {lost} lost", lost, reached, now, 0.0, self.times)
        tell_started(self.session, self.recovering, self.times.total)

    def _save(self, step: int, state: str) -> None:
        folder, body = paths.checkpoint(step), json.dumps({"state": state, "step": step}).encode()
        if self.run.store.list(f"{folder}/"):
            return
        self.beat.confirm()
        local = local_folder(self.run)
        # As Orbax saves: a folder gets its name when it is whole, a bucket its marker last.
        temporary = folder if local is None else f"{folder}.orbax-checkpoint-tmp"
        self.run.store.put(f"{temporary}/state.json", body)
        self.run.store.put(f"{temporary}/commit_success.txt", b"ok")
        if local is not None:
            Path(local, temporary).rename(Path(local, folder))
        self.prover.saved(step)


def slices_of(session: TrainerSession, there: threading.Event) -> Slices:
    """Workers of this machine, or the Jobs of the cluster around this pod: those of the real trainer, without JAX.

    `there` is set once they have all been up, which is when JAX would find devices.
    """
    run, count = session.run, session.run.spec.slices.count
    if run.spec.platform == "local":
        there.set()
        return LocalSlices(run.run_id, count)
    write = SliceEvents(session.event, count, simulated=True)

    def told(kind: str, index: int | None, why: str) -> None:
        write(kind, index, why)
        if kind == "ready":
            there.set()

    return GkeSlices(run.run_id, count, interval=0.2, on_change=told)


def train(run: Run, args: argparse.Namespace) -> int:
    session = TrainerSession(run)
    session.catch_sigterm()
    try:
        if proven_result(run)[0] is not None:
            return session.end(0, "already complete")
        allowed = run.spec.recovery_limits.attempts_without_progress
        if starts_without_progress(session.attempt.proven_at_start, session.proven_step) >= allowed:
            return session.end(ExitCode.LIMIT_SPENT, "recovery.attempts_without_progress is spent")
        training = StandIn(session, args)
        training.train()
        return finish(session, training)
    except ElasticTPUError as error:
        return session.end(error.code, str(error))


def cpu_job(run: Run, job: str, args: argparse.Namespace) -> int:
    attempt = ProcessAttempt(run, job, None)
    log = AttemptLog(run, f"{attempt.folder}/{attempt.number}/{job}.log")
    events = EventLog(run.store, job, attempt.number)
    progress = ProgressRecord(run, job, attempt.number, every=0.2)
    progress.doing("writing the weights")
    progress.counter("bytes")(2**30, 2**32)
    time.sleep(args.job_seconds)
    while args.job_until and not args.job_until.exists():
        time.sleep(0.02)
    progress.close()
    if args.fail_job == job:
        print(f"error: {job} was told to fail")  # noqa: T201 - as a job says it
        log.close()
        return int(ExitCode.BUG)
    result, why = proven_result(run)
    assert result is not None, why
    if job == "export":
        folder = paths.export(result.final_step)
        data = json.dumps({"model": result.final_step}).encode()
        run.store.put(f"{folder}/model.json", data)
        files = {"model.json": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
        manifest = {"step": result.final_step, "spec_hash": run.spec_hash, "proof_digest": result.proof_digest}
        digest = published.export_digest(files)
        run.store.put(f"{folder}/manifest.json", records.seal({**manifest, "files": files, "export_digest": digest}))
        events.write("export.published", step=result.final_step, export_digest=digest, files=1)
    else:
        manifest, why = published.export_of(run)
        assert manifest is not None, why
        heldout = {"loss": args.loss, "perplexity": math.exp(args.loss), "tokens": 10, "uniform_loss": 5.5}
        heldout |= {"bytes": 20, "bits_per_byte": args.loss * 10 / math.log(2) / 20}
        key = published.write_evaluation(run, manifest, "data", ["heldout"], {"heldout": heldout})
        events.write("evaluation.done", key=key)
    log.close()
    return 0


def step_and_code(text: str) -> tuple[int, int]:
    step, _, code = text.partition(":")
    return int(step), int(code)


def step_and_file(text: str) -> tuple[int, Path]:
    step, _, file = text.partition(":")
    return int(step), Path(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--start-seconds", type=float, default=0.0, help="what importing MaxText would take")
    parser.add_argument("--job-seconds", type=float, default=0.0)
    parser.add_argument("--job-until", type=Path, help="a job on CPU goes on until this file exists")
    parser.add_argument("--exit-at", type=step_and_code, help="STEP:CODE, a negative code is a signal")
    parser.add_argument("--reason", type=Path, help="file with the reason for --exit-at; variables are expanded")
    parser.add_argument("--exit-times", type=int, default=10**9, help="only in the first so many attempts")
    parser.add_argument("--hold-at", type=step_and_file, help="STEP:FILE, wait in this step until there is the file")
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--fail-job", default="")
    parser.add_argument("--loss", type=float, default=1.0)
    parser.add_argument("job", choices=["train", "export", "evaluate"])
    parser.add_argument("--run", required=True)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    try:
        run = open_for_work(args.run)
        leave(train(run, args) if args.job == "train" else cpu_job(run, args.job, args))
    except ElasticTPUError as error:  # as the real one
        print(f"error: {error}")  # noqa: T201
        leave(error.code)


if __name__ == "__main__":
    main()
