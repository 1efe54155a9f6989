"""A head that dies: JobSet starts it again with nobody watching, unless its exit code says that this would not help."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.gke.status import stuck_pods
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.tests.support import expected_state, until

if TYPE_CHECKING:
    from elastic_tpu.stages.stage import Stage
    from elastic_tpu.tests.controlplane.cases import ClusterCase


def restarts(case: ClusterCase) -> int:
    """How often JobSet has begun anew."""
    jobset = case.jobset
    assert jobset is not None
    return int(jobset["status"].get("restarts", 0))


def completes(case: ClusterCase, train: Stage, deaths: int = 1) -> list[int]:
    """The run is complete after so many restarts, each from what was proven by then; the steps restored."""
    until(lambda: case.record("result.json"), "the result")
    verdict = case.watch(train)
    assert (verdict.outcome, verdict.code) == ("complete", 0), verdict
    result = case.record("result.json")
    assert result is not None
    assert (result["final_step"], result["attempts"]) == (59, deaths + 1)
    assert case.final_state() == expected_state(60)
    proven = [e.data["proven_step"] for e in case.events("attempt.started")][1:]
    restored = [int(e.data["restored"]) for e in case.events("recovery.finished")]
    assert restored == proven
    assert restarts(case) == deaths
    return restored


def test_one_that_a_restart_can_cure_goes_on_with_nobody_watching(case: ClusterCase) -> None:
    case.starts = [["--exit-at", "15:75"], ["--exit-at", "35:143"], ["--exit-at", "55:-9"]]
    with case.hardware():
        train = case.launch()
        restored = completes(case, train, deaths=3)  # looks at the run directory only until the result is there
        assert restored == sorted(set(restored))
        case.released()


def test_one_that_says_that_it_would_not_help_is_not_restarted(case: ClusterCase) -> None:
    expected = {64: ("failed", "user"), 70: ("failed", "user"), 77: ("failed", "user"), 76: ("cancelled", "none")}
    with case.hardware():
        case.do("provision")
        for attempt, (code, (outcome, act)) in enumerate(expected.items(), start=1):
            case.starts = [["--exit-at", f"{10 * attempt + 5}:{code}"]]
            _, verdict = case.do("train")  # in the place of the JobSet that has failed
            assert (verdict.outcome, verdict.act, verdict.code) == (outcome, act, code), verdict
            assert restarts(case) == 0
            assert len(case.events("attempt.started")) == attempt
            assert f"told to exit at step {10 * attempt + 5}" in verdict.reason
            assert f"trainer exited {code}" in verdict.reason
            assert verdict.evidence["container"] == names.TRAINER
            assert f"exit code {code}" in verdict.evidence["tail"]


def test_when_all_restarts_are_spent_a_relaunch_is_asked_for(case: ClusterCase) -> None:
    case.starts = [["--exit-at", "15:75"]] * 2
    case.write(recovery={"head_restarts": 1})
    with case.hardware():
        train = case.launch()
        verdict = case.watch(train)
        assert (verdict.outcome, verdict.act, verdict.code) == ("failed", "relaunch", 75), verdict
        assert "all 1 restarts are spent" in verdict.reason
        assert len(case.events("attempt.started")) == 2
        # And a relaunch is what it says: a new JobSet that goes on.
        uid = case.jobset["metadata"]["uid"]  # type: ignore[index]
        train, verdict = case.do("train")
        assert verdict.outcome == "complete", verdict
        assert case.jobset["metadata"]["uid"] != uid  # type: ignore[index]
        assert case.final_state() == expected_state(60)


def test_one_whose_node_is_drained_saves_and_goes_on(case: ClusterCase) -> None:
    case.trainer = ["--step-seconds", "0.1"]
    case.write(checkpoint={"every": 50})
    with case.hardware():
        train = case.launch()
        case.wait_for_step(15)
        (head,) = case.pods(names.HEAD)
        case.plane.kubectl("delete", "pod", "-n", case.namespace, "--wait=false", head["metadata"]["name"])
        (ended,) = until(lambda: case.events("attempt.ended"), "the end")
        assert ended.data["code"] == ExitCode.EVICTED
        case.trainer = ["--step-seconds", "0.01"]
        saved = case.status.proven_step  # type: ignore[union-attr]
        assert completes(case, train) == [saved]
        assert 15 <= saved < 50  # none of the regular checkpoints


@pytest.mark.parametrize(("how", "code"), [("silence", ExitCode.ENDED_ON_REQUEST), ("lose_power", 137)])
def test_one_on_a_silent_node_is_freed_by_whoever_watches(
    case: ClusterCase, how: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_pods, "_SILENT", timedelta(seconds=1))
    case.trainer = ["--step-seconds", "1"]
    case.write(checkpoint={"every": 1})
    with case.hardware(heads=2) as kubelet:
        train = case.launch()
        case.wait_for_step(1)
        (head,) = case.pods(names.HEAD)
        trainer = kubelet.pod(head["metadata"]["name"]).container(names.TRAINER)
        (node,) = (n for n in case.heads if n.name == head["spec"]["nodeName"])
        case.trainer = ["--step-seconds", "0.01"]
        getattr(node, how)()
        # What the cluster does after some minutes of silence: nothing new is put there, and what is there is to go.
        case.plane.kubectl("cordon", node.name)
        options = ["-n", case.namespace, "--wait=false", "--grace-period=1"]
        case.plane.kubectl("delete", "pod", *options, head["metadata"]["name"])
        verdict = case.watch(train)
        assert verdict.outcome == "complete", verdict
        result = case.record("result.json")
        assert result is not None
        assert result["attempts"] == 2
        assert case.final_state() == expected_state(60)
        # A trainer that nobody could reach has noticed by itself that the run is another's now.
        until(lambda: trainer.code is not None, "the end of the first trainer")
        assert trainer.code == code
