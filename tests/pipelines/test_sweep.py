"""The example of a sweep: many runs of one pipeline run, and one exit task that gives all their slices back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import yaml
from elastic_tpu.stages.allowed import ALLOW_LOCAL
from elastic_tpu.tests.support import Case

EXAMPLE = Path(__file__).parents[2] / "examples" / "kfp_sweep.py"
RUN = """
import json, runpy, sys
from kfp import local
specs, output, root = json.loads(sys.argv[2])
local.init(runner=local.SubprocessRunner(use_venv=False), raise_on_error=True, pipeline_root=root)
runpy.run_path(sys.argv[1])["sweep"](specs=specs, output=output)
"""


def test_it_compiles_with_a_release_in_the_outermost_scope(tmp_path: Path) -> None:
    subprocess.run([sys.executable, EXAMPLE, tmp_path / "sweep.yaml"], check=True)
    document = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    at_end = document["root"]["dag"]["tasks"]["release-slices"]
    assert at_end["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert at_end["inputs"]["parameters"]["run"] == {"componentInputParameter": "output"}


def test_one_branch_that_fails_in_training_leaves_no_slice_of_any(
    make_case: Callable[..., Case], tmp_path: Path
) -> None:
    output = tmp_path / "sweep"
    cases = [make_case(name="good"), make_case("--exit-at", "5:70", name="bad")]
    for case in cases:
        case.output = output
        case.write()
    given = json.dumps([[str(case.spec) for case in cases], str(output), str(tmp_path / "kfp")])
    done = subprocess.run(
        [sys.executable, "-c", RUN, EXAMPLE, given],
        env={**os.environ, ALLOW_LOCAL: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "release: 2 runs of" in done.stdout
    for case in cases:
        case.released()
        assert case.claim is not None
        assert case.claim.claim.state == "done"
