"""What the JobSet and Job controllers make of lost heads and slices: facts that our manifest and recovery stand on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import kubernetes
import pytest
from elastic_tpu.tests.controlplane.kubelet import Node, ProcessKubelet
from elastic_tpu.tests.controlplane.plane import ControlPlane
from elastic_tpu.tests.controlplane.pod import Pod
from elastic_tpu.tests.controlplane.small_jobset import SmallJobSet, order, programs
from elastic_tpu.tests.support import until

LOSSES: dict[str, Callable[[SmallJobSet, Pod], None]] = {
    "exits with 75": lambda jobset, head: order(head, 75),
    "exits with 143": lambda jobset, head: order(head, 143),
    "is killed": lambda jobset, head: head.container("trainer").signal(signal.SIGKILL),
    "is deleted": lambda jobset, head: jobset.delete_pod(head),
    "is deleted by force": lambda jobset, head: jobset.delete_pod(head, force=True),
}


@pytest.fixture
def jobset(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[SmallJobSet]:
    with ProcessKubelet(plane, tmp_path, programs) as kubelet:
        jobset = SmallJobSet(plane, kubelet, namespace)
        until(jobset.ready, "a small JobSet that is ready")
        yield jobset


def test_a_lost_head_restarts_the_jobset_with_nobody_watching(jobset: SmallJobSet) -> None:
    for count, (loss, lose) in enumerate(LOSSES.items(), start=1):
        head, workers = jobset.head(), jobset.uids("pathways-worker")
        lose(jobset, head)
        until(lambda head=head: jobset.replaced(head), f"everything after the head {loss}")
        assert jobset.restarts() == count, loss
        assert not workers & jobset.uids("pathways-worker"), f"{loss}: a restart makes all slices anew"


def test_an_end_for_good_fails_the_jobset_at_once(jobset: SmallJobSet) -> None:
    head = jobset.head()
    order(head, 70)
    until(jobset.failed, "a failed JobSet")
    assert jobset.failed() == "FailJobSetFailurePolicyAction"
    assert jobset.restarts() == 0
    until(lambda: not jobset.uids("pathways-worker"), "the slices' end")
    assert jobset.uids("pathways-head") == {head.uid}, "the head's pod stays, with its log"


def test_a_slice_whose_job_is_deleted_comes_back_and_the_head_does_not_notice(jobset: SmallJobSet) -> None:
    head = jobset.head()
    for policy in ("Background", "Foreground", "Background"):
        lost = jobset.worker(1)
        lost.container().signal(signal.SIGKILL)
        jobset.delete_job("pathways-worker-1", policy)
        until(lambda lost=lost: jobset.replaced(lost), f"slice 1 after {policy}")
    assert (jobset.head(), jobset.restarts()) == (head, 0)
    assert head.container("trainer").starts == 1


def test_a_head_on_a_silent_node_is_replaced_once_its_job_and_its_pod_are_deleted(
    plane: ControlPlane, jobset: SmallJobSet
) -> None:
    head, workers = jobset.head(), jobset.uids("pathways-worker")
    falls_silent(plane, head.node)
    # Foreground: the new Job is not made before the old pod is gone. The new pod's affinity to the old one (exclusive
    # topology) would else send it to the silent node, and it is not looked at again for minutes after that is gone.
    jobset.delete_job("pathways-head-0", "Foreground")
    jobset.delete_pod(head, force=True)
    until(lambda: jobset.replaced(head), "a new head")
    assert jobset.head().node is not head.node
    assert (jobset.uids("pathways-worker"), jobset.restarts()) == (workers, 0)

    assert head.container("trainer").running, "nobody could tell the old one"
    head.node.come_back()
    until(lambda: not head.alive, "the old head's end")


def test_a_head_on_a_silent_node_whose_pod_alone_is_deleted_is_not_replaced(
    plane: ControlPlane, jobset: SmallJobSet
) -> None:
    head = jobset.head()
    falls_silent(plane, head.node)
    jobset.delete_pod(head, force=True)
    until(lambda: jobset.terminating("pathways-head-0"), "the Job's notice")
    assert jobset.uids("pathways-head") == {head.uid}, "the Job has not seen it end, and keeps it"
    assert jobset.restarts() == 0


def test_a_slice_on_a_silent_node_comes_back_in_a_spare_pool(plane: ControlPlane, jobset: SmallJobSet) -> None:
    head, lost, spare = jobset.head(), jobset.worker(1), jobset.add_pool()
    falls_silent(plane, lost.node)
    jobset.delete_job("pathways-worker-1", "Foreground")
    jobset.delete_pod(lost, force=True)
    until(lambda: jobset.replaced(lost), "slice 1 in the spare pool")
    assert jobset.worker(1).node is spare
    assert (jobset.head(), jobset.restarts()) == (head, 0)


def falls_silent(plane: ControlPlane, node: Node) -> None:
    """With what the cluster does after 50 s of silence: nothing new is put there."""
    node.silence()
    kubernetes.client.CoreV1Api(plane.admin).patch_node(node.name, {"spec": {"unschedulable": True}})
