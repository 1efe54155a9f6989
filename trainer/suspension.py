"""Whether training stands still because slices that it holds are away, and for how long. Pure: takes the time in.

Under Pathways a preempted slice may be suspended and resumed: the step blocks meanwhile, with no exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_LATE = 2.0  # steps (or heartbeats, if these are longer) without a new one, after which the slices are asked


def is_late(without_step: float, interval: float, step_seconds: float | None) -> bool:
    """Whether a step takes so long that its slices may be away.

    Args:
      without_step: seconds since the last step or change of phase.
      interval: seconds between two heartbeats.
      step_seconds: of a usual step, if it is known.
    """
    return without_step > _LATE * max(interval, step_seconds or 0.0)


@dataclass
class Suspension:
    """`away`: slices that training waits for, each with what is known of it; empty while there is none."""

    away: Mapping[int, str] = field(default_factory=dict)
    _since: float = 0.0
    _before: float = 0.0

    def note(self, away: Mapping[int, str], now: float) -> float | None:
        """Take in which slices are away at `now`; returns the seconds of a suspension that is over, else None."""
        was, self.away = bool(self.away), dict(away)
        if was and not away:
            took = now - self._since
            self._before += took
            return took
        if away and not was:
            self._since = now
        return None

    def lasts(self, now: float) -> float:
        """Seconds of the suspension that goes on, 0 if there is none."""
        return now - self._since if self.away else 0.0

    def total(self, now: float) -> float:
        """Seconds of all suspensions until `now`."""
        return self._before + self.lasts(now)

    @property
    def reason(self) -> str:
        """What is waited for, in words."""
        return "; ".join(f"slice {index} is away: {why}" for index, why in sorted(self.away.items()))
