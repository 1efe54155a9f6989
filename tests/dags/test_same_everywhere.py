"""One spec by the command line, by kfp.local and by Airflow: the run directories tell the same story.

Where the stages asked who called, this would show it. Times, pids, nonces and holders differ, and nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from elastic_tpu.tests.dags.airflow_home import DagRun
from elastic_tpu.tests.support import Case, Launcher

pytestmark = pytest.mark.airflow

SPEC: dict[str, Any] = {
    "export": {},
    "evaluate": {"gate": ["heldout.loss <= 1.5"]},
    "data": {"eval": "valid.parquet"},
    "train": {"steps": 200},
    "checkpoint": {"every": 20},
    "local": {"faults": [{"slice": 1, "after_step": 25, "down": "200ms"}]},
}
# What a slice loss leaves depends on the step that it came at; these must agree whatever that was.
RESULT = ("final_step", "attempts", "recoveries", "early_stop")


def files(case: Case) -> set[str]:
    """Names of everything in the run directory; what carries a time, a step of the loss or a digest is made alike."""
    root = case.output / case.name
    names = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    names = {name for name in names if not name.startswith(("events/", "checkpoints/", "proofs/"))}
    return {re.sub(r"[0-9a-f]{16}", "<key>", name) for name in names}


def story(case: Case) -> Counter[tuple[str, str]]:
    """Events by kind and writer; the claim is taken once more by whoever takes it again for training."""
    return Counter(
        (event.kind, event.writer)
        for event in case.events()
        if not event.kind.startswith(("claim.", "checkpoint.", "train.restored"))
    )


@pytest.mark.full
def test_the_run_directory_is_the_same_whoever_drives(
    make_case: Callable[..., Case], run_dag: Callable[..., DagRun]
) -> None:
    by_cli, by_kfp, by_airflow = (make_case(**SPEC) for _ in range(3))
    for case, via in ((by_cli, "cli"), (by_kfp, "kfp-local")):
        with Launcher(case, "run", str(case.spec), "--via", via) as launcher:
            assert launcher.wait(180) == 0, launcher.output
    assert run_dag(by_airflow).state == "success"
    cases = {"cli": by_cli, "kfp-local": by_kfp, "airflow": by_airflow}
    results = {via: case.json("result.json") or {} for via, case in cases.items()}
    for via in ("kfp-local", "airflow"):
        assert files(cases[via]) == files(by_cli), via
        assert story(cases[via]) == story(by_cli), via
        assert {k: results[via][k] for k in RESULT} == {k: results["cli"][k] for k in RESULT}, via
        assert cases[via].final_state() == by_cli.final_state(), via
    for case in cases.values():
        case.released()
        seen = case.claim
        assert seen is not None
        assert seen.claim.state == "done"
