"""What is deleted when a node fell silent: what is stuck, and no more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from elastic_tpu.platforms.gke.status.stuck_pods import deletions

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


def test_a_slice_begins_anew_alone_with_the_job_that_replaced_the_lost_one() -> None:
    old = [pod("worker-1", uid="old", ended=LONG_AGO) for _ in range(2)]
    found = deletions([pod("head"), pod("worker-0"), *old, pod("worker-1", uid="new", ready=False)], NOW)
    assert found.jobs == (("r-worker-1", "new"), ("r-worker-1", "old"))
    assert found.pods == tuple(old)


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
