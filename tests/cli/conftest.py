"""The fixture that makes runs and ends what they started."""

import pytest
from elastic_tpu.tests.support import make_case

__all__ = ["make_case"]


@pytest.fixture(autouse=True)
def no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine outside of Google's cloud, which does not look for credentials there."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")
