"""How long nobody has driven a run, as its supervisor counts: while it was awake itself."""

from __future__ import annotations


class Unclaimed:
    """Seconds since the claim was last written, without the time that this process or its machine slept.

    The launcher on a machine that wakes up is given as long to renew the claim as if nothing had happened.

    Args:
      now: monotonic seconds.
      longest: seconds between two looks that count; more than these is sleep.
    """

    def __init__(self, now: float, longest: float) -> None:
        self._looked, self._longest = now, longest
        self._generation: str | None = None
        self._seconds = 0.0

    def look(self, generation: str | None, now: float) -> float:
        """Count, and return the seconds so far; `generation` of claim.json, None while there is no claim."""
        if generation != self._generation:
            self._generation, self._seconds = generation, 0.0
        else:
            self._seconds += min(now - self._looked, self._longest)
        self._looked = now
        return self._seconds
