"""Whole runs by the real command on a real Kubernetes, the stand-in trainer in the head's pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_tpu.tests.support import Launcher, until

if TYPE_CHECKING:
    from elastic_tpu.tests.controlplane.cases import ClusterCase


def test_a_slice_is_lost_and_the_run_completes(case: ClusterCase) -> None:
    """In a namespace where deploy/admission.yaml holds."""
    from elastic_tpu.tests.controlplane.test_admission import guard

    guard(case.plane, case.namespace)
    case.trainer = ["--step-seconds", "0.05"]
    case.write(train={"steps": 120})
    with case.hardware(), Launcher(case) as launcher:
        case.wait_for_step(25)
        before = case.jobset
        head = case.pods("pathways-head")
        case.lose(1)
        until(lambda: case.events("recovery.finished"), "the recovery")
        assert [p["metadata"]["uid"] for p in case.pods("pathways-head")] == [p["metadata"]["uid"] for p in head]
        assert launcher.wait() == 0, launcher.output
        assert before is not None
        result = case.record("result.json")
        assert result is not None
        assert (result["final_step"], result["attempts"], result["recoveries"]) == (119, 1, 1)
        assert [e.data["slice"] for e in case.events("slice.lost")] == [1]
        assert [e.data["slice"] for e in case.events("slice.back")] == [1]
        assert len(case.events("slice.requested")) == len(case.events("slice.released")) == 2
        record = case.record("slices.json")
        assert record is not None
        assert record["state"] == "released"
        case.nothing_left()
