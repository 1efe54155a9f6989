"""Slices are lost in every way there is: the right one is named and comes back; training goes on, or says why not."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.gke.api.choice import KUBECONFIG
from elastic_tpu.platforms.gke.manifests import worker
from elastic_tpu.platforms.gke.status import stuck_pods
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.tests.support import expected_state, until

if TYPE_CHECKING:
    from elastic_tpu.tests.controlplane.cases import ClusterCase

Json = dict[str, Any]


def workers(case: ClusterCase, slice_: int) -> list[Json]:
    """Living pods of a slice, by the number of their VM."""
    mine = [p for p in case.pods(names.WORKER) if p["metadata"]["labels"][names.JOB_INDEX] == str(slice_)]
    return sorted(mine, key=lambda p: int(p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))


def fail(case: ClusterCase, pod: Json, code: int = 1) -> None:
    """As a kubelet reports a pod whose container has ended for good."""
    ended = {"terminated": {"exitCode": code, "reason": "Error"}}
    container = {"name": names.WORKER, "ready": False, "restartCount": 0, "image": "", "imageID": "", "state": ended}
    unready = [{"type": kind, "status": "False"} for kind in ("Ready", "ContainersReady")]
    status = {"phase": "Failed", "containerStatuses": [container], "conditions": unready}
    patch = ["--subresource=status", "--type=strategic", "-p", json.dumps({"status": status})]
    case.plane.kubectl("patch", "pod", "-n", case.namespace, pod["metadata"]["name"], *patch)


def recovered(case: ClusterCase, times: int, seconds: float = 60.0) -> None:
    until(lambda: len(case.events("recovery.finished")) == times, f"recovery {times}", seconds)


def complete(case: ClusterCase, recoveries: int) -> None:
    """No step was left out or done twice, by one process."""
    result = case.record("result.json")
    assert result is not None
    assert (result["attempts"], result["recoveries"]) == (1, recoveries)
    assert case.final_state() == expected_state(result["final_step"] + 1)


def may_only_look(case: ClusterCase) -> None:
    """Take the trainer's right to delete the Job of a lost slice."""
    rules = [{"op": "replace", "path": "/rules/0/verbs", "value": ["get"]}]
    arguments = ["-n", case.namespace, "--type=json", "-p", json.dumps(rules)]
    case.plane.kubectl("patch", "role", "elastic-tpu-trainer", *arguments)


def test_each_loss_heals_with_nobody_watching(case: ClusterCase) -> None:
    case.hold_at(15)
    with case.hardware():
        train = case.launch()
        case.wait_for_step(14)
        head, before = case.pods(names.HEAD)[0], case.jobset
        case.lose(1)  # one VM, and with it the slice
        recovered(case, 1)
        fail(case, workers(case, 0)[2])
        recovered(case, 2)
        case.lose(1, 4)
        recovered(case, 3)
        case.plane.kubectl(  # both slices at once
            *["delete", "pod", "-n", case.namespace, "--force", "--grace-period=0"],
            *["-l", f"{names.REPLICATED_JOB}={names.WORKER}"],
        )
        recovered(case, 4)
        case.go_on()
        until(lambda: case.record("result.json"), "the result")  # until here nobody has polled
        verdict = case.watch(train)
        assert verdict.outcome == "complete", verdict
        complete(case, recoveries=4)
        lost = [e.data["slice"] for e in case.events("slice.lost")]
        assert lost[:3] == [1, 0, 1]
        assert sorted(lost[3:]) == [0, 1]
        assert sorted(lost) == sorted(e.data["slice"] for e in case.events("slice.back"))
        after = case.jobset
        assert before is not None
        assert after is not None
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"].get("restarts", 0) == 0
        (pod,) = (p for p in case.get("pods") if p["metadata"]["labels"][names.REPLICATED_JOB] == names.HEAD)
        assert pod["metadata"]["uid"] == head["metadata"]["uid"]


def test_without_the_right_to_delete_the_back_off_heals_it_and_meanwhile_it_is_named(case: ClusterCase) -> None:
    case.hold_at(15)
    may_only_look(case)
    with case.hardware():
        train = case.launch()
        case.wait_for_step(14)
        lost = workers(case, 1)[3]
        fail(case, lost)

        def told() -> Any:
            verdict = train.poll()
            return verdict if verdict.phase == "recovering" and verdict.evidence.get("lost") else None

        verdict = until(told, "a verdict that names the slice")
        assert verdict.evidence["lost"] == [1]
        assert verdict.evidence["slices"] == [1, 2]
        assert "slice" in verdict.reason
        recovered(case, 1)
        case.go_on()
        kept = {p["metadata"]["uid"] for p in workers(case, 1)}
        assert len(kept) == 4
        assert lost["metadata"]["uid"] not in kept
        verdict = case.watch(train)
        assert verdict.outcome == "complete", verdict
        complete(case, recoveries=1)


def test_a_slice_that_fails_too_often_restarts_all_and_then_ends_the_run(
    case: ClusterCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LOST_PODS", 0)  # its Job fails with the first lost pod
    may_only_look(case)  # or the trainer makes the Job anew before
    case.hold_at(15)
    case.write(recovery={"head_restarts": 1})
    with case.hardware():
        train = case.launch()
        case.wait_for_step(14)
        fail(case, workers(case, 1)[0], code=9)
        until(lambda: len(case.events("attempt.started")) == 2, "a new head")
        (ended,) = case.events("attempt.ended")
        assert ended.data["code"] == ExitCode.EVICTED
        until(lambda: case.events("recovery.finished"), "training again")
        assert case.events("recovery.finished")[0].data["restored"] >= 10
        fail(case, workers(case, 0)[0], code=9)
        verdict = case.watch(train)
        assert (verdict.outcome, verdict.act, verdict.code) == ("failed", "relaunch", 75), verdict
        assert "slice 0 failed more often than its Job allows" in verdict.reason
        assert "pathways-worker exited 9" in verdict.reason
        assert "all 1 restarts are spent" in verdict.reason
        case.released()


@pytest.mark.full
@pytest.mark.controlplane
@pytest.mark.parametrize("how", ["silent", "deleted"])
def test_a_slice_whose_nodes_go_comes_back_on_others(
    gcs_bucket: str, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a control plane that waits for seconds, not for minutes, before it gives a node up."""
    from elastic_tpu.tests.controlplane.cases import ClusterCase
    from elastic_tpu.tests.controlplane.plane import ControlPlane

    monkeypatch.setattr(stuck_pods, "_SILENT", timedelta(seconds=2))
    monkeypatch.setenv(KUBECONFIG, "")  # `ClusterCase.write` sets it
    patience = {
        "kube-controller-manager": ["--node-monitor-grace-period=25s", "--node-monitor-period=1s"],
        "kube-apiserver": ["--default-not-ready-toleration-seconds=2", "--default-unreachable-toleration-seconds=2"],
    }
    with ControlPlane(tmp_path / "control", arguments=patience) as plane:
        case = ClusterCase(plane, plane.namespace("team"), gcs_bucket, tmp_path / "case")
        case.write(gke={"worker": {"spec": {"terminationGracePeriodSeconds": 2}}})
        case.hold_at(15)
        with case.hardware(slices=3):  # one to spare
            train = case.launch()
            case.wait_for_step(14)
            before = {pod["spec"]["nodeName"] for pod in workers(case, 1)}
            for node in before:
                plane.silence(node) if how == "silent" else plane.remove(node)
            until(lambda: train.poll() and case.events("recovery.finished"), "the recovery", 150)
            assert not before & {pod["spec"]["nodeName"] for pod in workers(case, 1)}
            case.go_on()
            verdict = case.watch(train)
            assert verdict.outcome == "complete", verdict
            complete(case, recoveries=1)
            assert {e.data["slice"] for e in case.events("slice.lost")} == {1}
            case.released()
