"""What every platform offers: take slices, run jobs on them, look, end jobs, give the slices back.

A platform only acts and looks; what a look means is decided in `runs/judge/verdict.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ..runs.judge.verdict import Observation


@dataclass(frozen=True)
class Job:
    """Something to run in the trainer image.

    Attributes:
      name: train, export or evaluate; a run has one job of each name at a time.
      argv: arguments of `python -m elastic_tpu.trainer`.
      slices: whether it runs on the run's slices, or on CPU only.
    """

    name: str
    argv: tuple[str, ...]
    slices: bool


@dataclass(frozen=True)
class SliceState:
    """One look at the slices of a run.

    Attributes:
      state: absent = none were taken; requested = none is ready yet; partly = some are ready; failed = they cannot be
        had any more.
      ready: slices that are ready now.
      wanted: slices that the spec asks for.
      detail: what the platform says about the state, for people.
      with_job: they come with the run's training job, which is there; the train stage decides how long it may wait.
    """

    state: Literal["absent", "requested", "ready", "partly", "released", "failed"]
    ready: int
    wanted: int
    detail: str = ""
    with_job: bool = False


@dataclass(frozen=True)
class ReleaseReport:
    """What a release found and did, by name (`slice 0`, `JobSet demo-1`).

    Attributes:
      existed: what was there before.
      deleted: what is gone now.
      left: what is still there, though it was deleted: the release did not succeed.
    """

    existed: tuple[str, ...]
    deleted: tuple[str, ...]
    left: tuple[str, ...]


class Platform(Protocol):
    """Where the slices of one run come from and its jobs run.

    Every method promises:
      1. It is safe to repeat, also after a call that broke off or whose answer was lost, and from another process;
         `kill_slice` kills once more.
      2. It touches objects of this run only. A name that something else has is refused, never taken or deleted.
      3. It keeps nothing in memory that another process would need: what was asked for is in slices.json.

    `check`, `slices` and `observe` change nothing, so anybody may call them. The others are for the driver of the run,
    who has renewed its claim just before, and for a person who was told who drives.

    Every method may raise:
      Unreachable: the platform did not answer; what was asked may have been done. Nothing is lost: call again.
      BadInput: the platform refuses this process (rights, login, namespace); the message names the cure.
      Infrastructure: the platform failed; calling again may succeed.
    """

    def check(self) -> None:
        """Refuse a process that could not act on the run. Called before a take of the claim, which ends another driver.

        Raises:
          BadInput: something stands in the way that waiting does not cure; every problem is named.
          Infrastructure: only a process on another machine can act.
        """

    def acquire(self) -> None:
        """Ask for the slices, after `check`, and record that before; adopt what is there. Does not wait for them."""

    def slices(self) -> SliceState:
        """Look at the slices."""

    def release(self, jobs: bool = True, waiting: Callable[[str], None] = ...) -> ReleaseReport:
        """Give the slices back, end the job on them, wait until all of it is gone, and record that.

        What does not go in time is in the report's `left`, and no error. If nothing is there, the report is empty.

        Args:
          jobs: end the jobs on CPU as well.
          waiting: called with what is waited for, about once a second or more often; what it raises ends the wait.
        """

    def launch(self, job: Job, waiting: Callable[[str], None] = lambda text: None) -> None:
        """Start a job, or adopt the living one. What is left of an ended one is removed first.

        Args:
          waiting: as in `release`, while something is being removed.

        Raises:
          BadInput: the living job is of another spec or another run, or the platform refuses this one.
          Infrastructure: what is left of the ended one does not go, or the slices that the job needs are not there.
        """

    def observe(self, job: Job) -> Observation:
        """Look at a job. One that is not there is `absent`, and no error."""

    def free_stuck_pods(self, job: Job) -> None:
        """Remove the job's pods on nodes that no longer answer, so that new ones can be made (`Observation.stuck`).

        A pod is stuck when it is still there long after its grace. What has to start again with it is ended too: with a
        pod of a slice that slice, with the trainer's pod all slices. Nothing happens on a platform without nodes.
        """

    def cancel(self, job: Job, now: bool = False) -> None:
        """End a job; does not wait for its end. Slices that come with the job go with it. One that is over stays.

        Args:
          now: give it no time to save.
        """

    def kill_slice(self, index: int, whole: bool = False) -> str:
        """Kill a worker of a slice without notice, to rehearse the loss of the slice.

        Args:
          index: of the slice, from 0.
          whole: kill all workers of the slice.

        Returns:
          What was killed, for people.

        Raises:
          BadInput: there is no such slice, or it has no worker now.
        """
