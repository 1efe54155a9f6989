"""What people, controllers and webhooks do to a run behind its back: no false verdict, and nothing is left."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from elastic_tpu.platforms.gke import names, platform
from elastic_tpu.platforms.gke.status import stuck_pods
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.tests.controlplane.proxy import ApiFault
from elastic_tpu.tests.controlplane.test_losses import fail
from elastic_tpu.tests.support import Launcher, until

if TYPE_CHECKING:
    from elastic_tpu.tests.controlplane.cases import ClusterCase
    from elastic_tpu.tests.controlplane.proxy import ApiProxy

Json = dict[str, Any]


def test_what_a_jobset_left_behind_is_released_too(case: ClusterCase) -> None:
    """`kubectl delete --cascade=orphan`: the Jobs and their pods train on, and make their pods again."""
    case.hold_at(15)
    with case.hardware():
        case.launch()
        case.wait_for_step(14)
        case.plane.kubectl("delete", "jobset", case.run_id, "-n", case.namespace, "--cascade=orphan")
        until(lambda: case.jobset is None, "the JobSet gone")
        assert len(case.get("jobs")) == 3
        case.released()


def test_a_new_jobset_does_not_stumble_over_the_jobs_of_the_one_before(case: ClusterCase) -> None:
    case.hold_at(15)
    with case.hardware():
        case.launch()
        case.wait_for_step(14)
        case.plane.kubectl("delete", "jobset", case.run_id, "-n", case.namespace, "--cascade=orphan")
        until(lambda: case.jobset is None, "the JobSet gone")
        case.go_on()
        _, verdict = case.do("train")
        assert verdict.outcome == "complete", verdict
        case.released()


def test_a_jobset_whose_annotation_somebody_removed_is_still_the_runs(case: ClusterCase) -> None:
    case.hold_at(15)
    with case.hardware():
        train = case.launch()
        case.wait_for_step(14)
        where = ["jobset", case.run_id, "-n", case.namespace]
        case.plane.kubectl("annotate", *where, f"{names.RUN_URI}-", f"{names.SPEC_HASH}-")
        until(lambda: names.RUN_URI not in ((case.jobset or {})["metadata"].get("annotations") or {}), "it gone")
        assert not train.poll().done
        again = case.stage("train")
        again.submit()  # adopts
        case.go_on()
        assert case.watch(again).outcome == "complete"
        case.released()


@pytest.mark.parametrize("code", [64, 70, 77])
def test_an_end_that_nobody_saw_keeps_its_code_when_the_jobset_is_gone(case: ClusterCase, code: int) -> None:
    """As after gke.ttl: what the trainer said last is what counts, not that its JobSet is missing."""
    case.trainer += ["--exit-at", f"10:{code}"]
    with case.hardware():
        train = case.launch()
        until(lambda: case.status and case.status.phase == "ended", "the end")
        case.plane.kubectl("delete", "jobset", case.run_id, "-n", case.namespace)
        until(lambda: case.jobset is None, "the JobSet gone")
        verdict = case.watch(train)
        assert (verdict.outcome, verdict.code) == ("failed", code), verdict


def test_a_jobset_that_was_on_its_way_when_the_launcher_was_stopped_is_released(
    case: ClusterCase, proxy: ApiProxy
) -> None:
    """Ctrl-C while the create is under way: it arrives later, and must not train unwatched."""
    case.through(proxy)
    asked, go = threading.Event(), threading.Event()

    def held() -> None:
        asked.set()
        go.wait(30)

    proxy.faults = [ApiFault("pass", "POST", "/jobsets", before=held)]
    with case.hardware(), Launcher(case) as launcher:
        assert asked.wait(30)
        launcher.interrupt()
        launcher.says("which was being created")
        go.set()
        assert launcher.wait() == ExitCode.INTERRUPTED, launcher.output
        case.nothing_left()


def inject(case: ClusterCase) -> Json:
    """A patch of the head as a webhook makes one: a container that never ends."""
    injected = {"name": "injected", "image": "none", "command": ["sleep", "infinity"]}
    return {"spec": {**case.here["patch"]["spec"], "containers": [injected]}}


@pytest.mark.parametrize(("options", "outcome", "code"), [([], "complete", 0), (["--exit-at", "10:70"], "failed", 70)])
def test_a_container_that_a_webhook_added_does_not_hide_the_end_of_the_trainer(
    case: ClusterCase, options: list[str], outcome: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_pods, "_LAST_WORDS", timedelta(seconds=1))
    injected = inject(case)
    made = platform.manifest.jobset

    def webhook(*args: Any) -> Json:
        body = made(*args)
        pod = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        pod["containers"] += injected["spec"]["containers"]
        pod["terminationGracePeriodSeconds"] = 1
        return body

    monkeypatch.setattr(platform.manifest, "jobset", webhook)
    case.trainer += options
    with case.hardware():
        _, verdict = case.do("train") if case.do("provision") else (None, None)
        assert verdict is not None
        assert (verdict.outcome, verdict.code) == (outcome, code), verdict
        case.released()


def test_a_pod_that_a_finalizer_keeps_takes_no_second_slice_with_it(
    case: ClusterCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's pod stays for ever under somebody's finalizer; later losses of its slice heal as any other."""
    monkeypatch.setattr(stuck_pods, "_SILENT", timedelta(seconds=1))
    case.write(gke={"worker": {"spec": {"terminationGracePeriodSeconds": 1}}})
    case.hold_at(15)
    with case.hardware():
        train = case.launch()
        case.wait_for_step(14)
        mine = [p for p in case.pods(names.WORKER) if p["metadata"]["labels"][names.JOB_INDEX] == "1"]
        kept = mine[0]["metadata"]["name"]
        finalizers = {"metadata": {"finalizers": ["team.example/backup"]}}
        where = ["pod", kept, "-n", case.namespace]
        case.plane.kubectl("patch", *where, "--type=merge", "-p", json.dumps(finalizers))
        fail(case, mine[0])  # its containers have ended, as a kubelet says
        case.plane.kubectl("delete", *where, "--wait=false", "--grace-period=1")
        until(lambda: not train.poll().done and len(case.events("slice.back")) == 1, "the slice back", 60)
        case.lose(1)
        until(lambda: not train.poll().done and len(case.events("slice.back")) == 2, "the slice back again", 60)
        assert len(case.events("slice.lost")) == 2
        case.go_on()
        verdict = case.watch(train)
        assert verdict.outcome == "complete", verdict
        release = case.stage("release")
        told = threading.Thread(target=release.submit)
        told.start()
        until(lambda: any(f"pod {kept} was deleted and is kept by" in line for line in case.told), "the words")
        free = {"metadata": {"finalizers": None}}
        case.plane.kubectl("patch", *where, "--type=merge", "-p", json.dumps(free))
        told.join(60)
        case.nothing_left()
