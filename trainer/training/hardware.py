"""The slices that training runs on: real ones under Pathways, or simulated ones; chosen by the run's platform."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...runs.errors import BadInput, ElasticTPUError, Problem
from ...runs.record.run import Run
from ...runs.spec import plan, tpu

_log = logging.getLogger("elastic_tpu.trainer")
# "2x1": VMs x devices a VM that stand in for each slice of a run on GKE. Only test clusters set it.
SIMULATED = "ELASTIC_TPU_SIMULATED_SLICES"


class Slices(Protocol):
    """The state of one's own slices, and how to ask for a lost one back (`platforms/<p>/slices.py`)."""

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        """Take these slices for the coming attempt; returns those that could be had."""

    def lost(self, patience: float = 0.0) -> frozenset[int]:
        """Slices lost since they were taken; waits so many seconds for the first to show."""

    def alive(self) -> frozenset[int]:
        """Slices that are up now."""

    def ask_back(self, indices: Iterable[int]) -> None:
        """Ask for lost slices to be started again at once."""

    def close(self) -> None:
        """Let go of all slices."""


@dataclass(frozen=True)
class Hardware:
    """Slices, and what follows from their kind.

    `poll_interval`: seconds between two looks whether a lost slice is back. `simulated`: an array does not die with its
    slice, so training itself must stop when one is lost; under Pathways the runtime raises, or heals with no exception.
    `patience`: seconds after an error within which the loss that caused it shows.
    """

    slices: Slices
    poll_interval: float
    simulated: bool
    patience: float = 0.0


def prepare(run: Run, tell: Callable[..., None], environ: Mapping[str, str] = os.environ) -> Hardware:
    """Set the process up for the run's slices. Imports jax: what must be set before that is set here.

    Args:
      tell: records an event of the run (kind, **data). On the local platform whoever runs the workers does that.
    Raises:
      BadInput: this process cannot use such slices.
    """
    count = run.spec.slices.count
    if run.spec.platform == "local":
        from ...platforms.local.slices import LocalSlices

        local = LocalSlices(run.run_id, count)
        _simulate(count, plan.shape_of(run.spec), local)
        return Hardware(local, poll_interval=0.1, simulated=True)
    from ...platforms.gke.slices import GkeSlices

    told = SliceEvents(tell, count, simulated=SIMULATED in environ)
    if SIMULATED in environ:
        return _simulated_on_gke(run, environ[SIMULATED], told)
    from . import pathways

    pathways.connect(environ)
    watched = GkeSlices(run.run_id, count, on_change=told)
    return Hardware(watched, poll_interval=5.0, simulated=False, patience=10.0)


def _simulated_on_gke(run: Run, value: str, told: SliceEvents) -> Hardware:
    from ...platforms.gke.slices import GkeSlices
    from ...platforms.local.slices import LocalSlices

    try:
        shape = tpu.resolve_slice(f"{tpu.SIMULATED}-{value}")
    except BadInput as error:
        cure = "is <VMs>x<devices a VM>, e.g. 2x1; on real slices it is not set at all"
        raise BadInput([Problem(SIMULATED, value, cure)]) from error
    _log.warning("%s=%s: SIMULATED slices, CPU devices of this process; no figure of it is a TPU's", SIMULATED, value)
    count = run.spec.slices.count
    workers = LocalSlices(run.run_id, count, shape.vms)
    _simulate(count, shape, workers)
    watched = WatchedWorkers(workers, GkeSlices(run.run_id, count, on_change=told))
    return Hardware(watched, poll_interval=0.1, simulated=True)


def _simulate(count: int, shape: tpu.SliceShape, slices: Slices) -> None:
    from . import local_pathways

    local_pathways.configure(count, shape.devices)
    local_pathways.install(shape.devices, shape.devices // shape.vms, slices.alive)


class WatchedWorkers:
    """Simulated slices in a cluster: their workers say which are lost, their Jobs are brought back as on GKE."""

    def __init__(self, workers: Slices, jobs: Slices) -> None:
        self._workers, self._jobs = workers, jobs

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        """Take slices by their workers."""
        return self._workers.hold(indices)

    def lost(self, patience: float = 0.0) -> frozenset[int]:
        """Slices of which a worker died."""
        return self._workers.lost(patience)

    def alive(self) -> frozenset[int]:
        """Slices whose workers answer."""
        return self._workers.alive()

    def ask_back(self, indices: Iterable[int]) -> None:
        """Have the Jobs of these slices looked at."""
        self._jobs.ask_back(indices)

    def close(self) -> None:
        """Let go, and stop watching."""
        self._workers.close()
        self._jobs.close()


class SliceEvents:
    """Writes what happens to slices into the run directory: slice.ready, slice.lost, slice.back.

    From a thread of its own, since a storage that is away must not keep anybody from bringing a slice back.
    """

    def __init__(self, tell: Callable[..., None], count: int, *, simulated: bool) -> None:
        self._tell, self._count, self._more = tell, count, {"simulated": True} if simulated else {}
        self._waiting: queue.SimpleQueue[tuple[str, dict[str, object]]] = queue.SimpleQueue()
        threading.Thread(target=self._write, name="slice-events", daemon=True).start()

    def __call__(self, kind: str, index: int | None, why: str) -> None:
        """Something changed; see `GkeSlices`."""
        if index is None:
            self._waiting.put(("slice.ready", {"all": True, "slices": list(range(self._count)), **self._more}))
        else:
            self._waiting.put((f"slice.{kind}", {"slice": index, "how": why, **self._more}))

    def _write(self) -> None:
        while True:
            kind, data = self._waiting.get()
            try:
                self._tell(kind, **data)
            except ElasticTPUError as error:
                _log.warning("%s could not be recorded: %s", kind, error)
