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
