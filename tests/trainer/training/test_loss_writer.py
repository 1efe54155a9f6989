"""The losses that the trainer keeps: all of a short run, bounded for a long one, steps done again twice."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import BadInput, Unreachable
from elastic_tpu.runs.record.loss_log import file_name, load, read_losses
from elastic_tpu.tests.fakes.store import MemoryStore
from elastic_tpu.tests.support import until
from elastic_tpu.tests.tools import small
from elastic_tpu.trainer.training.loss_writer import LossWriter


def steps_kept(steps: list[int], limit: int = 2000) -> list[int]:
    store = MemoryStore()
    curve = LossWriter(small.run_in(store), 1, interval=3600, limit=limit)
    for step in steps:
        curve.add(step, 1.0)
    curve.close()
    return [point.step for point in read_losses(store)]


def test_every_loss_of_a_short_run_in_the_order_of_measurement() -> None:
    assert steps_kept([0, 1, 2, 3, 2, 3, 4]) == [0, 1, 2, 3, 2, 3, 4]


@pytest.mark.parametrize("steps", [list(range(10_007)), [*range(5000), *range(4000, 9000)], [0] * 500, [7, 6] * 300])
def test_a_long_run_keeps_a_bounded_number_and_always_the_newest(steps: list[int]) -> None:
    kept = steps_kept(steps, limit=100)
    assert 0 < len(kept) <= 101
    assert kept[-1] == steps[-1]


def test_a_long_run_is_thinned_evenly() -> None:
    kept = steps_kept(list(range(1000)), limit=100)
    assert {b - a for a, b in pairwise(kept[:-1])} == {16}


def test_losses_are_written_while_training_goes_on(store_uri: str) -> None:
    run = small.run_at(store_uri)
    curve = LossWriter(run, 3, interval=0.01)
    curve.add(0, 5.0)
    until(lambda: read_losses(run.store), "the first loss in the run directory")
    curve.add(1, math.nan)
    curve.close()
    assert [(p.step, p.loss) for p in read_losses(run.store)] == [(0, 5.0), (1, None)]


def test_attempts_follow_one_another_by_number() -> None:
    store = MemoryStore()
    for attempt in (10, 2):
        curve = LossWriter(small.run_in(store), attempt, interval=3600)
        curve.add(attempt, 1.0)
        curve.close()
    store.put("metrics/metrics.txt", b"MaxText's own")
    assert [p.step for p in read_losses(store)] == [2, 10]


def test_a_storage_that_is_away_costs_no_loss() -> None:
    class Flaky(MemoryStore):
        away = True

        def put(self, name: str, data: bytes) -> str:
            if self.away:
                self.away = False
                raise Unreachable("no answer")
            return super().put(name, data)

    store = Flaky()
    curve = LossWriter(small.run_in(store), 1, interval=0.01)
    curve.add(0, 1.0)
    until(lambda: read_losses(store), "the loss, at the second write")
    curve.close()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"losses": [1]}', b'{"losses": [[1, "x", 2]]}', b'{"schema": 9}']
)
def test_a_damaged_file_is_refused_by_name_and_left_out(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"losses-1\.json"):
        load(data, file_name(1))
    run = small.run_at(tmp_path)
    run.store.put(file_name(1), data)
    assert read_losses(run.store) == ()
