"""Slices of a trainer that are up or lost as its test says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...trainer.training.hardware import Slices


@dataclass
class FakeSlices:
    """The trainer's `Slices` protocol.

    Attributes:
      up: slices that are up now.
      gone: slices that were held and are lost.
      missing: slices that are held and not up, each with the reason.
      asked: slices that were asked back, in the order of the calls.
    """

    up: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    missing: Mapping[int, str] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        return self.up.intersection(indices)

    def lost(self, timeout: float = 0.0) -> frozenset[int]:
        return self.gone

    def alive(self) -> frozenset[int]:
        return self.up

    def away(self) -> Mapping[int, str]:
        return self.missing

    def ask_back(self, indices: Iterable[int]) -> None:
        self.asked.extend(indices)

    def close(self) -> None: ...


_: type[Slices] = FakeSlices
