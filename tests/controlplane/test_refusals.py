"""What a cluster refuses, and what never fails by itself: each is named to the user with who must act and how.

A head that must run is a process; where none is to, there is no hardware and nothing gets further than pending.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.gke.manifests import manifest
from elastic_tpu.runs.errors import BadInput, ElasticTPUError, EndedOnRequest, ExitCode, LimitSpent
from elastic_tpu.runs.record.driver import stop_by_person
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.stages.job_stage import JobStage
from elastic_tpu.tests.support import Launcher, command, expected_state, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_tpu.runs.judge.verdict import Verdict
    from elastic_tpu.stages.stage import Stage
    from elastic_tpu.tests.controlplane.cases import ClusterCase

SLOW, FAST = ["--step-seconds", "0.2"], ["--step-seconds", "0.01"]
LAUNCHER = "elastic-tpu-launcher"
VERBS = (
    *(f"{verb} jobsets.jobset.x-k8s.io" for verb in ("create", "get", "list", "delete")),
    *(f"{verb} jobs.batch" for verb in ("create", "get", "list", "delete")),
    *("list pods", "delete pods", "get pods/log", "list events", "get serviceaccounts"),
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right that is missing is not asked for again, and what is being deleted is looked at often."""
    from elastic_tpu.platforms.gke.api.cluster import Cluster

    monkeypatch.setitem(Cluster.__init__.__kwdefaults__, "pauses", ())
    monkeypatch.setattr("elastic_tpu.platforms.gke.deletion._LOOK", 0.1)


def phase_is(stage: Stage, phase: str) -> Verdict:
    """The first verdict with this phase."""

    def look() -> Verdict | None:
        verdict = stage.poll()
        assert verdict.phase == phase or not verdict.done, verdict
        return verdict if verdict.phase == phase else None

    return until(look, f"{stage.name} is {phase}")


def has_reached(case: ClusterCase, step: int) -> Callable[[], bool]:
    return lambda: (status := case.status) is not None and status.phase == "training" and status.step >= step


def refused(case: ClusterCase, name: str) -> str:
    """The words with which a stage is refused, when it is opened or submitted."""
    with pytest.raises(BadInput) as caught:
        case.stage(name).submit()
    assert caught.value.code == ExitCode.BAD_INPUT
    return str(caught.value)


# -- refused by the preflight -----------------------------------------------------------------------------------------


def test_a_namespace_that_is_not_there(case: ClusterCase) -> None:
    """The launcher cannot tell it from missing rights; who may do everything can."""
    case.write(gke={"namespace": "not-there"})
    words = refused(case, "provision")
    assert "gke.namespace: 'not-there'" in words
    assert "or there is no such namespace" in words
    case.kubeconfig, case.name = case.plane.kubeconfig(), "by-admin"
    case.write(gke={"namespace": "not-there"})
    assert "namespace not-there has no such service account, or does not exist" in refused(case, "provision")
    assert not case.started
    create_run(read_spec(str(case.spec)))  # the namespace was deleted after the run was started
    train = case.stage("train")
    assert isinstance(train, JobStage)
    with pytest.raises(BadInput, match=r"gke\.namespace: 'not-there', there is no such namespace; create it"):
        train.platform.launch(train.job)
    assert case.stage("release").submit() is None


def test_an_account_without_the_role(case: ClusterCase) -> None:
    """By the real command: one error, each verb, account and cure, and nothing in the cluster or the bucket."""
    case.plane.kubectl("delete", "rolebinding", LAUNCHER, "-n", case.namespace)
    ended = command("run", str(case.spec))
    assert ended.returncode == ExitCode.BAD_INPUT, ended
    said = ended.stdout + ended.stderr
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if "may not" in line]
    bound = f"--serviceaccount={case.namespace}:{LAUNCHER} -n {case.namespace}"
    for text in (*VERBS, "deploy/rbac.yaml", f"gke.namespace: '{case.namespace}'", bound):
        assert line.count(text) == 1, (text, line)
    assert not case.get("jobsets")
    assert not case.started


def test_the_trainers_account_is_missing(case: ClusterCase) -> None:
    case.plane.kubectl("delete", "serviceaccount", "elastic-tpu-trainer", "-n", case.namespace)
    words = refused(case, "provision")
    assert "gke.service_account: 'elastic-tpu-trainer'" in words
    assert "deploy/rbac.yaml" in words
    assert not case.started
    case.nothing_left()


# -- refused at creation ----------------------------------------------------------------------------------------------


def test_a_webhook_refuses_the_jobset(case: ClusterCase, monkeypatch: pytest.MonkeyPatch) -> None:
    made = manifest.jobset

    def wrong(*args: Any) -> Any:
        body = made(*args)
        body["spec"]["successPolicy"]["targetReplicatedJobs"] = ["nobody"]
        return body

    monkeypatch.setattr(manifest, "jobset", wrong)
    case.do("provision")
    words = refused(case, "train")
    assert words.startswith("gke: the cluster refuses to create jobsets.jobset.x-k8s.io")
    assert "invalid replicatedJob name 'nobody'" in words
    assert len(words) < 900
    case.released()


def test_a_field_that_nobody_knows_is_refused_and_not_dropped(case: ClusterCase) -> None:
    """By the real command, with a patch that a user wrote."""
    case.write(gke={"worker": {"spec": {"prioritiClassName": "high"}}})
    ended = command("run", str(case.spec))
    assert ended.returncode == ExitCode.BAD_INPUT, ended
    said = ended.stdout + ended.stderr
    assert "Traceback" not in said
    assert said.count("prioritiClassName") == 1, said
    case.nothing_left()


# -- what never fails by itself ---------------------------------------------------------------------------------------


def spends(
    case: ClusterCase,
    limit: str,
    words: tuple[str, ...],
    phase: str = "starting",
    but: Callable[[ClusterCase], bool] = lambda case: True,
) -> None:
    """Once it is `but` so, the verdict names what is waited for, the limit ends it, and a release leaves nothing."""
    train = case.launch()
    until(lambda: but(case), "what comes first")
    seen = until(lambda: (verdict := train.poll()).done or (words[0] in verdict.reason and verdict), "the reason")
    assert seen is not True, "the limit was spent before the reason was known"
    assert (seen.phase, seen.outcome) == (phase, "none")
    verdict = case.watch(train)
    assert (verdict.outcome, verdict.act, verdict.code) == ("failed", "user", ExitCode.LIMIT_SPENT), verdict
    for text in (f"{limit} (", *words):
        assert text in verdict.reason, verdict.reason
    with pytest.raises(LimitSpent, match=limit.replace(".", r"\.")):
        train.collect()
    until(lambda: case.jobset is None, "nothing begins later, with nobody who waits for it")
    case.released()


def test_a_priority_class_is_missing(case: ClusterCase) -> None:
    case.write(limits={"start": "5s"}, gke={"priority_class": "none-such"})
    spends(case, "limits.start", ("no PriorityClass with name none-such", "(create it"))


def test_no_pool_is_free(case: ClusterCase) -> None:
    case.write(limits={"start": "5s"})
    spends(case, "limits.start", ("no node for the pod with cloud.google.com/gke-nodepool=" + case.pool, "head: "))


def test_no_pool_for_the_slices_is_free(case: ClusterCase) -> None:
    """The head is up and its trainer waits: why it does is only known of the pods that have no node."""
    case.write(limits={"start": "10s"})
    words = "slices 0, 1: no node for the pod with cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice"
    with case.hardware(slices=0):
        spends(case, "limits.start", (words, "0 of 2 slices ready"), but=trainer_waits)


def trainer_waits(case: ClusterCase) -> bool:
    status = case.status
    return status is not None and status.phase == "waiting"


# -- somebody else's, and another spec's ------------------------------------------------------------------------------


def test_a_jobset_of_that_name_by_somebody_else(case: ClusterCase) -> None:
    """Neither adopted nor deleted, whether it was there before or comes between."""
    case.do("provision")
    theirs = {"annotations": {names.RUN_URI: "gs://theirs/runs/r"}}
    spec = {
        "suspend": True,
        "replicatedJobs": [{"name": "a", "template": {"spec": {"template": {"spec": pod()}}}}],
    }
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    metadata = {"name": case.run_id, "namespace": case.namespace, **theirs}
    case.plane.apply({**kind, "metadata": metadata, "spec": spec})
    there = case.jobset
    for name in ("train", "provision"):
        words = refused(case, name)
        assert f"JobSet {case.run_id} in namespace {case.namespace} belongs to gs://theirs/runs/r" in words
        assert "choose another run.name" in words
    train = case.stage("train")
    assert isinstance(train, JobStage)
    with pytest.raises(BadInput, match="belongs to gs://theirs/runs/r"):
        train.platform.kill_slice(0)
    assert train.cancel(0.0, now=True)
    release, verdict = case.do("release")
    assert verdict.outcome == "complete"
    assert release.collect().values["deleted"] == ()
    assert there is not None
    assert case.jobset is not None
    assert case.jobset["metadata"]["uid"] == there["metadata"]["uid"]


def pod() -> dict[str, Any]:
    return {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}


def test_a_jobset_of_this_run_with_another_spec(case: ClusterCase) -> None:
    """As after a run directory was deleted and made anew: not adopted, and only a release deletes it."""
    case.launch()
    change = json.dumps({"metadata": {"annotations": {names.SPEC_HASH: "0" * 64}}})
    case.plane.kubectl("patch", "jobset", case.run_id, "-n", case.namespace, "--type=merge", "-p", change)
    time.sleep(0.35)  # what was seen before is good for an interval
    words = refused(case, "provision")
    assert f"{case.run_id} was created from another spec (hash {'0' * 64}" in words
    assert "delete it first (`elastic-tpu release " in words
    assert case.jobset is not None
    case.released()
    assert case.do("provision")[1].outcome == "complete"


# -- deleted ----------------------------------------------------------------------------------------------------------


def test_a_jobset_that_is_deleted_by_hand(case: ClusterCase) -> None:
    """The launcher says so, and a new submit makes another one, which goes on from the newest proven checkpoint."""
    case.trainer = SLOW
    with case.hardware():
        train = case.launch()
        until(has_reached(case, 12), "training")
        first = case.jobset
        case.plane.kubectl("delete", "jobset", case.run_id, "-n", case.namespace, "--wait=false")
        verdict = case.watch(train)
        assert (verdict.outcome, verdict.act, verdict.code) == ("failed", "relaunch", ExitCode.INFRASTRUCTURE), verdict
        assert f"JobSet {case.run_id}" in verdict.reason
        assert "deleted" in verdict.reason
        case.trainer = FAST
        again = case.stage("train")
        again.submit()
        assert case.jobset is not None
        assert first is not None
        assert case.jobset["metadata"]["uid"] != first["metadata"]["uid"]
        assert case.watch(again).outcome == "complete"
        result = again.collect().values
        assert (result["attempts"], result["final_step"]) == (2, 59)
        assert case.final_state() == expected_state(60)
        case.released()


@pytest.mark.parametrize("what", ["a finalizer", "a pod that is deaf"])
def test_a_name_that_is_still_being_deleted_is_waited_for(case: ClusterCase, what: str) -> None:
    """The old object goes while the launch waits, and only then is the new one made."""
    where = ["-n", case.namespace]
    hold = '{"metadata":{"finalizers":["tests/hold"]}}'
    with case.hardware():
        case.trainer = ["--hang-at", "5"] if what == "a pod that is deaf" else SLOW
        train = case.launch()
        until(has_reached(case, 4), "training")
        first = case.jobset
        assert first is not None
        if what == "a finalizer":
            case.plane.kubectl("patch", "jobset", case.run_id, *where, "--type=merge", "-p", hold)
        case.plane.kubectl("delete", "jobset", case.run_id, *where, "--wait=false", "--cascade=foreground")
        assert case.watch(train).act == "relaunch"
        case.trainer = FAST
        freed: list[str] = []

        def free() -> None:
            assert case.jobset is not None
            freed.append(case.jobset["metadata"]["uid"])
            if what == "a finalizer":
                case.plane.kubectl(
                    "patch", "jobset", case.run_id, *where, "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
                )
            else:
                (head,) = [p for p in case.get("pods") if p["metadata"]["labels"][names.REPLICATED_JOB] == names.HEAD]
                case.plane.kubectl("delete", "pod", *where, "--force", "--grace-period=0", head["metadata"]["name"])

        again = case.stage("train", instance="2")
        timer = threading.Timer(2.0, free)
        timer.start()
        again.submit()
        timer.join()
        told = [line for line in case.told if not line.startswith("note: ")]
        assert told == [
            "there are no slices now: taking them again",
            f"waiting until JobSet {case.run_id} and its pods are gone; a trainer may be saving",
        ]
        assert freed == [first["metadata"]["uid"]], "it was still there"
        assert case.jobset is not None
        assert case.jobset["metadata"]["uid"] != first["metadata"]["uid"]
        assert case.watch(again).outcome == "complete"
        case.released()


def test_a_cancel_while_a_launch_waits_for_a_name_begins_nothing(case: ClusterCase) -> None:
    where = ["jobset", case.run_id, "-n", case.namespace]
    case.launch()
    change = ["--type=merge", "-p"]
    case.plane.kubectl("patch", *where, *change, '{"metadata":{"finalizers":["tests/hold"]}}')
    case.plane.kubectl("delete", *where, "--wait=false", "--cascade=foreground")
    train = case.stage("train", instance="2")
    timer = threading.Timer(1.0, stop_by_person, [open_store(case.uri), "somebody"])
    timer.start()
    with pytest.raises(EndedOnRequest, match="stop asked for by somebody; nothing more is started"):
        train.submit()
    timer.join()
    case.plane.kubectl("patch", *where, *change, '{"metadata":{"finalizers":null}}')
    until(lambda: case.jobset is None, "the JobSet's end")
    case.released()


# -- queued and suspended ---------------------------------------------------------------------------------------------


@pytest.fixture
def queued(case: ClusterCase, monkeypatch: pytest.MonkeyPatch) -> ClusterCase:
    """As Kueue's webhook does it: a JobSet with a queue's label is suspended as it is made."""
    made = manifest.jobset

    def suspended(*args: Any) -> Any:
        body = made(*args)
        body["spec"]["suspend"] = body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "tpus"
        return body

    monkeypatch.setattr(manifest, "jobset", suspended)
    case.write(slices={"queue": "tpus"})
    return case


@pytest.mark.parametrize("by", ["the stage", "another process"])
def test_a_run_that_is_cancelled_while_it_is_queued(queued: ClusterCase, by: str) -> None:
    train = queued.launch()
    verdict = phase_is(train, "queued")
    assert verdict.reason == "waits in queue tpus"
    if by == "the stage":
        assert train.cancel(0.0, by="tests")
    else:
        assert command("cancel", queued.uri).returncode == 0
    verdict = queued.watch(train)
    assert (verdict.outcome, verdict.act, verdict.code) == ("cancelled", "none", ExitCode.ENDED_ON_REQUEST), verdict
    assert "stop asked for by" in verdict.reason
    until(lambda: queued.jobset is None, "the JobSet's end")
    with pytest.raises(ElasticTPUError) as caught:
        train.collect()
    assert caught.value.code == ExitCode.ENDED_ON_REQUEST
    queued.nothing_left()
    queued.released()


def test_a_run_that_is_queued_for_too_long(queued: ClusterCase) -> None:
    queued.write(slices={"queue": "tpus"}, limits={"queue": "3s", "start": "1s"})
    spends(queued, "limits.queue", ("waits in queue tpus",), phase="queued")


def test_a_launcher_that_follows_one_that_was_lost_waits_on_in_the_queue(queued: ClusterCase) -> None:
    queued.write(slices={"queue": "tpus"}, limits={"start": "1s"})
    queued.launch()
    first = queued.jobset
    until(lambda: [e for e in queued.events("slice.requested") if time.time() - e.time.timestamp() > 1.5], "the limit")
    provision, verdict = queued.do("provision")
    assert verdict.outcome == "complete", verdict
    assert provision.collect().summary == "waits in queue tpus"
    train = queued.stage("train")
    train.submit()
    assert phase_is(train, "queued").reason == "waits in queue tpus"
    assert first is not None
    assert queued.jobset is not None
    assert queued.jobset["metadata"]["uid"] == first["metadata"]["uid"]
    queued.released()


def test_a_run_that_is_let_out_of_its_queue_put_back_and_let_go_on(queued: ClusterCase) -> None:
    queued.trainer = SLOW
    queued.write(slices={"queue": "tpus"}, limits={"queue": "1m", "start": "1m"})
    with queued.hardware():
        train = queued.launch()
        phase_is(train, "queued")
        queued.suspend(False)
        phase_is(train, "running")
        until(has_reached(queued, 12), "training")
        queued.suspend(True)
        assert "waits in queue tpus" in phase_is(train, "suspended").reason
        until(lambda: not queued.get("pods"), "the pods' end")
        assert train.poll().phase == "suspended"
        queued.trainer = FAST
        queued.suspend(False)
        assert queued.watch(train).outcome == "complete"
        result = train.collect().values
        assert (result["attempts"], result["final_step"]) == (2, 59)
        assert queued.final_state() == expected_state(60)
        queued.released()


def test_a_run_that_is_cancelled_while_it_is_suspended(queued: ClusterCase) -> None:
    queued.trainer = SLOW
    with queued.hardware():
        train = queued.launch()
        queued.suspend(False)
        until(has_reached(queued, 12), "training")
        queued.suspend(True)
        phase_is(train, "suspended")
        assert train.cancel(0.0, by="tests")
        verdict = queued.watch(train)
        assert (verdict.outcome, verdict.code) == ("cancelled", ExitCode.ENDED_ON_REQUEST), verdict
        queued.released()


# -- by the real command ----------------------------------------------------------------------------------------------


def test_a_cancel_while_nothing_has_started_ends_the_command(case: ClusterCase) -> None:
    """No node for the head: nobody is there that could read the stop, and the one who drives carries it out."""
    with Launcher(case) as launcher:
        until(lambda: case.jobset, "the JobSet")
        launcher.says("no node for the pod")
        assert command("cancel", case.uri).returncode == 0
        assert launcher.wait() == ExitCode.ENDED_ON_REQUEST, launcher.output
        assert "Traceback" not in launcher.output
        assert "stop asked for by" in launcher.output
        case.nothing_left()
