"""The slices that training runs on: real ones under Pathways, or simulated ones, as the run's platform has them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...runs.errors import BadInput, Problem
from ...runs.record.run import Run
from ...runs.spec import plan, tpu
from ..event_queue import EventQueue

_log = logging.getLogger("elastic_tpu.trainer")
# "2x1": VMs x devices a VM that stand in for each slice of a run on GKE. Only test clusters set it.
SIMULATED = "ELASTIC_TPU_SIMULATED_SLICES"


class Slices(Protocol):
    """The run's slices as its trainer sees them (`platforms/<p>/slices.py`)."""

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        """Take these slices for the next attempt; returns those that could be taken."""

    def lost(self, timeout: float = 0.0) -> frozenset[int]:
        """Slices lost since they were taken with `hold`; waits up to `timeout` seconds for the first to show."""

    def alive(self) -> frozenset[int]:
        """Slices that are up now."""

    def away(self) -> Mapping[int, str]:
        """Slices that are held and not up now, each with what is known of it. Any thread may ask."""

    def ask_back(self, indices: Iterable[int]) -> None:
        """Ask for lost slices to be started again at once."""

    def close(self) -> None:
        """Let go of all slices."""


@dataclass(frozen=True)
class Hardware:
    """Slices, and what follows from their kind.

    `poll_interval`: seconds between two looks whether a lost slice is back. `simulated`: arrays outlive their slice, so
    training must check for losses itself; under Pathways the runtime raises, or recovers with no exception.
    `loss_timeout`: seconds after an error within which `slices` shows the loss that caused it.
    """

    slices: Slices
    poll_interval: float
    simulated: bool
    loss_timeout: float = 0.0


def prepare(run: Run, tell: Callable[..., None], environ: Mapping[str, str] = os.environ) -> Hardware:
    """Set the process up for the run's slices. Imports jax: what must be set before that is set here.

    Args:
      tell: records an event of the run (kind, **data). Not used on the local platform: its supervisor records slices.
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

    events = SliceEvents(tell, count, simulated=SIMULATED in environ)
    if SIMULATED in environ:
        return _simulated_on_gke(run, environ[SIMULATED], events)
    from . import pathways

    pathways.connect(environ)
    watched = GkeSlices(run.run_id, count, on_change=events)
    return Hardware(watched, poll_interval=5.0, simulated=False, loss_timeout=10.0)


def _simulated_on_gke(run: Run, value: str, events: SliceEvents) -> Hardware:
    from ...platforms.gke.slices import GkeSlices
    from ...platforms.local.slices import LocalSlices

    try:
        shape = tpu.resolve_slice(f"{tpu.SIMULATED}-{value}")
    except BadInput as error:
        cure = "must be <VMs>x<devices a VM>, e.g. 2x1; do not set it on real slices"
        raise BadInput([Problem(SIMULATED, value, cure)]) from error
    _log.warning("%s=%s: SIMULATED slices, CPU devices of this process; no figures of TPUs", SIMULATED, value)
    count = run.spec.slices.count
    workers = LocalSlices(run.run_id, count, shape.vms)
    _simulate(count, shape, workers)
    watched = WatchedWorkers(workers, GkeSlices(run.run_id, count, on_change=events))
    return Hardware(watched, poll_interval=0.1, simulated=True)


def _simulate(count: int, shape: tpu.SliceShape, slices: Slices) -> None:
    from . import local_pathways

    local_pathways.configure(count, shape.devices)
    local_pathways.install(shape.devices, shape.devices_per_vm, slices.alive)


class WatchedWorkers:
    """Simulated slices in a cluster: lost when a worker dies, and their Jobs brought back as on GKE."""

    def __init__(self, workers: Slices, jobs: Slices) -> None:
        self._workers, self._jobs = workers, jobs

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        """Connect to the workers of these slices."""
        return self._workers.hold(indices)

    def lost(self, timeout: float = 0.0) -> frozenset[int]:
        """Slices of which a worker died."""
        return self._workers.lost(timeout)

    def alive(self) -> frozenset[int]:
        """Slices whose workers answer."""
        return self._workers.alive()

    def away(self) -> Mapping[int, str]:
        """Held slices of which a worker does not answer."""
        return self._workers.away()

    def ask_back(self, indices: Iterable[int]) -> None:
        """Look at the Jobs of these slices at once."""
        self._jobs.ask_back(indices)

    def close(self) -> None:
        """Close the connections, and stop watching the Jobs."""
        self._workers.close()
        self._jobs.close()


class SliceEvents:
    """Writes what happens to slices into the run directory: slice.ready, slice.lost, slice.back.

    By a queue, so that a storage that is away does not delay bringing a slice back.
    """

    def __init__(self, tell: Callable[..., None], count: int, *, simulated: bool) -> None:
        self._queue, self._count, self._more = EventQueue(tell), count, {"simulated": True} if simulated else {}

    def __call__(self, kind: str, index: int | None, why: str) -> None:
        """Queue the event of a change; arguments as of `on_change` of `GkeSlices`."""
        if index is None:
            self._queue.put("slice.ready", all=True, slices=list(range(self._count)), **self._more)
        else:
            self._queue.put(f"slice.{kind}", slice=index, how=why, **self._more)
