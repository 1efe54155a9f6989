"""Slices lost at random moments, over and over, with real MaxText: by hand (`make soak`).

The number of losses is in ELASTIC_TPU_LOSSES (default 100), the seed in ELASTIC_TPU_SEED; both are printed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from elastic_tpu.runs.record.result import proven_result

from .conftest import EVERY, Scenario, differing, wait_for

pytestmark = [pytest.mark.maxtext, pytest.mark.soak]


def test_losses_at_any_moment_change_nothing_in_the_result(scenario: Callable[..., Scenario]) -> None:
    losses = int(os.environ.get("ELASTIC_TPU_LOSSES", "100"))
    seed = int(os.environ.get("ELASTIC_TPU_SEED", str(time.time_ns())))
    print(f"{losses} losses, seed {seed}")  # noqa: T201 - the figures of a run by hand
    moments = random.Random(seed)
    steps = 3 * EVERY * losses
    train = {"steps": steps, "maxtext": {"num_epoch": 1000}}
    quiet, shaken = scenario("quiet", train=train), scenario("shaken", train=train)
    assert quiet.train() == 0
    quiet.platform.release()
    wait = shaken.start()
    shaken.wait_for_step(0)
    done = 0
    for number in range(losses):
        time.sleep(moments.uniform(0.0, 3.0))  # any moment: in a step, a save, a restore, a compilation
        status = shaken.status()
        if status is None or status.phase == "ended" or status.step > steps - 2 * EVERY:
            break
        shaken.kill(*moments.sample(range(3), moments.choice([1, 1, 1, 2, 3])))
        done = number + 1
        wait_for(lambda: bool(shaken.platform.slices().state == "ready"))
    assert wait() == 0
    assert differing(shaken.checkpoint(steps - 1), quiet.checkpoint(steps - 1)) == []
    result, why = proven_result(shaken.run)
    assert result is not None, why
    print(f"{done} losses, {result.recoveries} recoveries, {result.steps_lost} steps done again")  # noqa: T201
    assert len(shaken.events("attempt.started")) == 1
