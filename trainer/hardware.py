"""The slices that training runs on: real ones under Pathways, or simulated ones; chosen by the run's platform."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..runs import plan
from ..runs.errors import BadInput, Problem
from ..runs.run import Run


class Slices(Protocol):
    """The state of one's own slices, and how to ask for a lost one back (`platforms/<p>/slices.py`)."""

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        """Take these slices for the coming attempt; returns those that could be had."""

    def lost(self) -> frozenset[int]:
        """Slices lost since they were taken."""

    def alive(self) -> frozenset[int]:
        """Slices that are up now."""

    def ask_back(self, indices: Iterable[int]) -> None:
        """Ask for lost slices to be started again at once."""

    def close(self) -> None:
        """Let go of all slices."""


@dataclass(frozen=True)
class Hardware:
    """Slices, and how often to look whether a lost one is back (seconds)."""

    slices: Slices
    poll_interval: float


def prepare(run: Run) -> Hardware:
    """Set the process up for the run's slices. Imports jax: what must be set before that is set here."""
    if run.spec.platform != "local":
        raise BadInput([Problem("platform", run.spec.platform, "the trainer knows `local` so far")])
    from ..platforms.local.slices import LocalSlices
    from . import local_pathways

    shape, count = plan.shape_of(run.spec), run.spec.slices.count
    local_pathways.configure(count, shape.devices)
    slices = LocalSlices(run.run_id, count)
    local_pathways.install(shape.devices, shape.devices // shape.vms, slices.alive)
    return Hardware(slices, poll_interval=0.1)
