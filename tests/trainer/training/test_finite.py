"""Which steps may be proven, from the losses as they become known."""

from __future__ import annotations

import pytest
from elastic_tpu.trainer.training.finite import FiniteLosses


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_what_was_saved_from_the_first_bad_loss_on_may_not_be_proven(loss: float) -> None:
    losses = FiniteLosses("restore")
    losses.begin(restored=4)
    assert (losses.allows(4), losses.allows(5)) == (True, None)
    assert not losses.note(5, 2.0)
    assert losses.note(6, loss)
    assert not losses.note(7, loss), "told once"
    assert losses.note(8, 2.0) is False
    assert [losses.allows(step) for step in (4, 5, 6, 7, 8, 9)] == [True, True, False, False, False, False]
    losses.begin(restored=5)
    assert (losses.allows(5), losses.allows(6)) == (True, None)


def test_each_row_of_bad_losses_is_told_where_training_goes_on() -> None:
    losses = FiniteLosses("continue")
    told = [losses.note(step, loss) for step, loss in enumerate([1.0, float("nan"), float("inf"), 1.0, float("nan")])]
    assert told == [False, True, False, False, True]
    assert losses.allows(99)
