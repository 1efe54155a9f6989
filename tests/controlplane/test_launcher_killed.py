"""A launcher is killed at each effect between intent and verdict; the next one adopts what is there, nothing leaks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from elastic_tpu.tests.controlplane.cases import ClusterCase
    from elastic_tpu.tests.controlplane.killing import Effect
    from elastic_tpu.tests.controlplane.plane import ControlPlane
    from elastic_tpu.tests.controlplane.proxy import ApiProxy

# What a launcher does, in this order.
EFFECTS: dict[str, Effect] = {
    "claim taken": ("bucket", "POST", "/o", b"claim.json", False),
    "slices checked": ("bucket", "POST", "/o", b'"checked"', False),
    "slices intended": ("bucket", "POST", "/o", b'"requested"', False),
    "JobSet created": ("cluster", "POST", "/jobsets", b"", False),
    "JobSet recorded": ("bucket", "POST", "/o", b'"created"', False),
    "first look": ("cluster", "GET", "/jobsets", b"", True),
    "JobSet deleted": ("cluster", "DELETE", "/jobsets/", b"", False),
    "release recorded": ("bucket", "POST", "/o", b'"released"', False),
}
# Each is two commands and a run: all but one are part of `make test-full`.
MATRIX = [pytest.param(name, marks=() if name == "JobSet created" else pytest.mark.full) for name in EFFECTS]


@pytest.mark.parametrize("carried_out", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("effect", MATRIX)
def test_the_next_launcher_adopts(
    case: ClusterCase, proxy: ApiProxy, gcs_server: str, effect: str, carried_out: bool
) -> None:
    from elastic_tpu.tests.controlplane.killing import adopted, two_launchers

    with case.hardware():
        two_launchers(case, proxy, gcs_server, EFFECTS[effect], carried_out)
        adopted(case, proxy, steps=60)


@pytest.mark.maxtext
@pytest.mark.soak
@pytest.mark.parametrize("effect", ["JobSet created", "first look", "JobSet deleted"])
def test_the_next_launcher_adopts_the_real_trainer(
    plane: ControlPlane, namespace: str, gcs_bucket: str, gcs_server: str, tmp_path: Path, proxy: ApiProxy, effect: str
) -> None:
    from elastic_tpu.tests.controlplane.killing import adopted, two_launchers
    from elastic_tpu.tests.controlplane.seed import SeedCase

    make_data = Path(__file__).parents[2] / "examples" / "make_data.py"
    subprocess.run([sys.executable, make_data, tmp_path / "data"], check=True)
    case = SeedCase(plane, namespace, gcs_bucket, tmp_path / "case", tmp_path / "data", steps=60)
    with case.simulated_slices():
        two_launchers(case, proxy, gcs_server, EFFECTS[effect], carried_out=True, seconds=300.0)
        adopted(case, proxy, steps=60)
