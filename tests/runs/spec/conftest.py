"""A machine on which every spec of these tests fits."""

import pytest
from elastic_tpu.runs.spec import input_files


@pytest.fixture(autouse=True)
def much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "machine_gib", lambda: 1e6)
