"""How a job's process ended, in words."""

from __future__ import annotations

import pytest
from elastic_tpu.platforms.local.job import last_line


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "2026-12-01 00:01:13,123 INFO elastic_tpu.trainer: exit code 77: limits.total is spent",
            "limits.total is spent",
        ),
        ("2026-12-01 00:01:13,123 exit code 76: stopped by me; step 5 is saved", "stopped by me; step 5 is saved"),
        ("2026-12-01 00:01:13,123 ERROR elastic_tpu.trainer: no export: a: b", "no export: a: b"),
        ("error: train.parquet: has no column text", "train.parquet: has no column text"),
        ("ValueError: a: b", "ValueError: a: b"),
        ("Killed", "Killed"),
    ],
)
def test_the_last_line_of_a_log_is_a_reason_without_its_prefix(line: str, reason: str) -> None:
    assert last_line(f"before\n  {line}\n\n") == reason
