"""What a person follows, line by line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from elastic_tpu.cli.story import line
from elastic_tpu.runs.record.events import Event


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("slice.lost", {"slice": 1, "pid": 7, "how": "signal 9"}, "slice 1 lost: worker pid 7 died (signal 9)"),
        ("slice.lost", {"slice": 1, "how": "3 of 4 pods ready"}, "slice 1 lost: 3 of 4 pods ready"),
        ("slice.back", {"slice": 1, "pid": 8}, "slice 1 is back (worker pid 8)"),
        ("slice.back", {"slice": 1, "how": "4 of 4 pods ready"}, "slice 1 is back"),
    ],
)
def test_slices_of_both_platforms(kind: str, data: dict[str, Any], said: str) -> None:
    assert line(Event(datetime.now(UTC), "trainer", kind, 1, None, data)) == said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {
                "reached": 25,
                "restored": 20,
                "steps_lost": 5,
                "seconds": {"detect": 0.5, "wait": 60},
                "in_process": False,
            },
            "recovered (new process): reached 25, restored 20, 5 lost; "
            "detect 0.5 s, wait 1 min, rebuild 0.0 s, first step 0.0 s",
        ),
        (
            {"seconds": None},  # a damaged event does not end the following
            "recovered (same process): reached -1, restored None, 0 lost; "
            "detect 0.0 s, wait 0.0 s, rebuild 0.0 s, first step 0.0 s",
        ),
    ],
)
def test_a_finished_recovery_is_a_line(data: dict[str, Any], said: str) -> None:
    assert line(Event(datetime.now(UTC), "trainer", "recovery.finished", 1, 21, data)) == said
