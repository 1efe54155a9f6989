"""Which steps have a loss that is a number: a checkpoint that was saved after one that is not may not be proven.

The weights that a step leaves are saved before its loss is known on the host: MaxText reads it one step later.
"""

from __future__ import annotations

import math
from typing import Literal

OnNan = Literal["stop", "continue", "restore"]


class LossNotFinite(Exception):
    """The loss of a step is NaN or infinite, and the spec does not say to go on."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"the loss of step {step} is {loss}")
        self.step, self.loss = step, loss


class FiniteLosses:
    """The losses of one attempt, as far as they are known; the prover reads it from its own thread.

    Attributes:
      known: newest step whose loss, and that of all steps before it, is finite; -1 before the first.
      bad: first step whose loss is not.
    """

    def __init__(self, on_nan: OnNan) -> None:
        self.on_nan = on_nan
        self.known = -1
        self.bad: int | None = None
        self._was_finite = True

    def begin(self, restored: int | None) -> None:
        """A new attempt goes on from this step, which is proven."""
        self.known, self.bad, self._was_finite = -1 if restored is None else restored, None, True

    def note(self, step: int, loss: float) -> bool:
        """Take the loss of a step; True for the first that is not finite after one that is."""
        finite = math.isfinite(loss)
        first = self._was_finite and not finite
        self._was_finite = finite
        if finite and self.bad is None:
            self.known = step
        elif self.bad is None:
            self.bad = step
        return first

    def allows(self, step: int) -> bool | None:
        """Whether what was saved after this step may be proven; None while its loss is not known."""
        if self.on_nan == "continue" or step <= self.known:
            return True
        return None if self.bad is None or step < self.bad else False
