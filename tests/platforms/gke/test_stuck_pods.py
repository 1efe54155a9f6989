"""What is deleted when a node fell silent: what is stuck, and no more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from elastic_tpu.platforms.gke.status.stuck_pods import deletions, kept, lacking, lingering

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG_AGO, JUST_NOW = NOW - timedelta(minutes=1), NOW - timedelta(seconds=5)


def pod(job: str, uid: str = "", ended: datetime | None = None, ready: bool = True, jobset: str = "1") -> Json:
    """`job`: head, worker-<slice> or export."""
    part, _, index = job.partition("-")
    labels = {
        "jobset.sigs.k8s.io/replicatedjob-name": f"pathways-{part}",
        "jobset.sigs.k8s.io/jobset-uid": jobset,
        "jobset.sigs.k8s.io/job-index": index or "0",
    }
    if part == "export":
        labels = {"elastic-tpu.dev/role": part}
    owners = [{"kind": "Job", "name": f"r-{job}", "uid": uid or job}]
    deleted = {"deletionTimestamp": ended.isoformat()} if ended else {}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"metadata": {"labels": labels, "ownerReferences": owners, **deleted}, "status": {"conditions": conditions}}


def test_nothing_is_stuck_while_all_nodes_answer() -> None:
    pods = [pod("head"), pod("worker-0"), pod("worker-1", ended=JUST_NOW), pod("worker-1", ready=False)]
    assert deletions(pods, NOW).jobs == deletions(pods, NOW).pods == ()


def test_a_head_takes_the_slices_of_its_jobset_along_and_goes_last() -> None:
    head = pod("head", ended=LONG_AGO)
    others = [pod("worker-1"), pod("worker-0"), pod("worker-1"), pod("worker-2", jobset="before"), pod("export")]
    found = deletions([head, *others], NOW)
    assert found.jobs == (("r-worker-0", "worker-0"), ("r-worker-1", "worker-1"), ("r-head", "head"))
    assert found.pods == (head,)


def test_a_slice_begins_anew_alone_and_the_job_that_replaced_the_lost_one_may_start() -> None:
    old = [pod("worker-1", uid="old", ended=LONG_AGO) for _ in range(2)]
    found = deletions([pod("head"), pod("worker-0"), *old, pod("worker-1", uid="new", ready=False)], NOW)
    assert found.jobs == (("r-worker-1", "old"),)
    assert found.pods == tuple(old)


def test_a_pod_that_another_finalizer_keeps_is_named_and_costs_no_job() -> None:
    """It stays whatever is deleted, and a Job deleted for it would wait for it for ever."""
    old = pod("worker-1", uid="old", ended=LONG_AGO)
    old["metadata"] |= {"name": "w-1", "finalizers": ["batch.kubernetes.io/job-tracking", "team.example/backup"]}
    pods = [pod("head"), old, pod("worker-1", uid="new", ready=False)]
    assert not deletions(pods, NOW)
    assert kept(pods, NOW) == [
        "pod w-1 was deleted and is kept by the finalizer team.example/backup, which is not ours"
    ]


def test_what_a_restarted_head_made_is_kept_while_the_old_head_is_stuck() -> None:
    head = pod("head", ended=LONG_AGO)
    head["metadata"]["deletionGracePeriodSeconds"] = 300
    deleted = LONG_AGO - timedelta(seconds=300)
    before, after = pod("worker-0", uid="before"), pod("worker-0", uid="after", ready=False)
    before["metadata"]["creationTimestamp"] = (deleted - timedelta(hours=1)).isoformat()
    after["metadata"]["creationTimestamp"] = (deleted + timedelta(seconds=5)).isoformat()
    assert {uid for _, uid in deletions([head, before, after], NOW).jobs} == {"head", "before"}


# ---- a pool that lacks a node


def test_a_node_pool_that_has_too_few_nodes_for_a_slice_is_named() -> None:
    placed, waits = pod("worker-1"), pod("worker-1", ready=False)
    placed["status"]["phase"] = "Running"
    waits["spec"] = {"nodeSelector": {"cloud.google.com/gke-nodepool": "tpus-3"}}
    waits["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
    words = "slice 1: node pool tpus-3 lacks a node for 1 of 4 pods"
    assert lacking([pod("head"), pod("worker-0"), placed, placed, placed, waits]) == [words]
    assert lacking([pod("head"), pod("worker-0"), waits, waits]) == []  # no pool is chosen yet
    assert lacking([pod("head"), placed, placed]) == []


# ---- a pod that does not end


def ended(code: int, at: datetime, others: str = "running") -> Json:
    """A head whose trainer has ended, beside a container that a webhook added."""
    found = pod("head", ready=False)
    found["metadata"]["name"] = "h"
    found["spec"] = {"containers": [{"name": "trainer"}, {"name": "injected"}]}
    over = {"terminated": {"exitCode": code, "finishedAt": at.isoformat()}}
    found["status"] |= {
        "phase": "Running",
        "containerStatuses": [{"name": "trainer", "state": over}, {"name": "injected", "state": {others: {}}}],
        "initContainerStatuses": [{"name": "pathways-rm", "state": {"running": {}}}],
    }
    return found


@pytest.mark.parametrize(
    ("code", "again"), [(0, False), (64, False), (70, False), (77, False), (75, True), (137, True)]
)
def test_a_trainer_that_ended_is_over_whatever_else_goes_on_in_its_pod(code: int, again: bool) -> None:
    pods = [ended(code, LONG_AGO), pod("worker-0")]
    found = lingering(pods[:1], NOW)
    assert found is not None
    assert found[1].code == code
    assert [p["metadata"]["name"] for p in deletions(pods, NOW).lingering] == (["h"] if again else [])


def test_the_pods_own_sidecars_are_given_the_time_to_end() -> None:
    for pods in ([ended(70, JUST_NOW)], [ended(70, LONG_AGO, others="terminated")]):
        assert lingering(pods, NOW) is None


def test_a_slice_that_is_back_elsewhere_only_loses_its_old_pods() -> None:
    old = pod("worker-1", uid="old", ended=LONG_AGO)
    found = deletions([pod("head"), old, pod("worker-1", uid="new"), pod("worker-1", uid="new")], NOW)
    assert (found.jobs, found.pods) == ((), (old,))


def test_a_head_of_a_jobset_before_takes_nothing_of_this_one_along() -> None:
    left = [pod("head", uid="before", ended=LONG_AGO, jobset="before"), pod("worker-1", uid="old", ended=LONG_AGO)]
    found = deletions([*left, pod("head"), pod("worker-0"), pod("worker-1", uid="new")], NOW)
    assert (found.jobs, found.pods) == ((("r-head", "before"),), tuple(left))


def test_a_head_takes_a_slice_along_that_is_back_elsewhere() -> None:
    pods = [pod("head", ended=LONG_AGO), pod("worker-1", uid="old", ended=LONG_AGO), pod("worker-1", uid="new")]
    assert {uid for _, uid in deletions(pods, NOW).jobs} == {"head", "old", "new"}


def test_a_plain_job_goes_with_its_pod() -> None:
    old = pod("export", ended=LONG_AGO)
    assert deletions([old, pod("head")], NOW).jobs == (("r-export", "export"),)
