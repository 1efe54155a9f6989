"""What each moment of a JobSet's or a Job's life comes to, on recorded objects, and what is said of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from elastic_tpu.platforms.base import SliceState
from elastic_tpu.platforms.gke import k8s_json
from elastic_tpu.platforms.gke.api.observer import trim
from elastic_tpu.platforms.gke.status.state import is_over, look, look_job, needs_detail
from elastic_tpu.platforms.gke.status.stuck_pods import stuck, stuck_head
from elastic_tpu.runs.judge.verdict import Observation, judge
from elastic_tpu.tests.platforms.gke.objects import Moment, ended, names, recorded

# Each recorded moment: state, exit code, whether JobSet starts it again, slices, whether pods and events are needed.
JOBSETS: dict[str, tuple[str, int | None, bool, tuple[str, int], bool]] = {
    "fresh": ("starting", None, False, ("requested", 0), True),
    "head_ready": ("starting", None, False, ("requested", 0), True),
    "running": ("running", None, False, ("ready", 2), False),
    "slice_lost": ("running", None, False, ("partly", 1), True),  # the startup conditions say "in progress" again
    "suspended_later": ("suspended", None, False, ("requested", 0), True),
    "resuming": ("running", None, False, ("partly", 0), True),  # its condition still says Suspended
    "resumed": ("running", None, False, ("ready", 2), False),
    "completed": ("over", 0, False, ("released", 0), True),
    "queued": ("queued", None, False, ("requested", 0), True),
    "no_account": ("starting", None, False, ("requested", 0), True),
    "no_priority": ("starting", None, False, ("requested", 0), True),
    "no_pool": ("starting", None, False, ("requested", 0), True),
    "no_head_node": ("starting", None, False, ("requested", 0), True),
    "quota": ("starting", None, False, ("requested", 0), True),
    "image": ("starting", None, False, ("requested", 0), True),
    "exit_70": ("over", 70, False, ("released", 0), True),
    "restarting": ("over", 75, True, ("partly", 0), True),
    "restarted": ("running", None, False, ("ready", 2), False),
    "restarts_spent_oom": ("over", 70, False, ("released", 0), True),
    "head_gone": ("over", None, False, ("released", 0), True),
    "worker_failed": ("running", None, False, ("ready", 2), False),  # a failed worker is no failure (faults D13)
    "budget": ("over", None, False, ("released", 0), True),
    "deleting": ("over", None, False, ("released", 0), True),
    "head_drained": ("running", None, False, ("ready", 2), True),
    "head_forced": ("running", None, False, ("ready", 2), True),
}

DETAILS = {
    "no_account": 'head: the pod is refused: error looking up service account training/nobody: serviceaccount "nobody" '
    "not found (create it, or set gke.service_account)",
    "no_priority": "0 of 2 slices ready; slices 0, 1: the pod is refused: no PriorityClass with name missing was found "
    "(create it, or change priorityClassName in gke.worker)",
    "no_pool": "0 of 2 slices ready; slices 0, 1: no node for the pod with "
    "cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice, cloud.google.com/gke-tpu-topology=8x8: "
    "0/14 nodes are available: 14 node(s) didn't match Pod's node affinity/selector",
    "no_head_node": "head: no node for the pod with cloud.google.com/gke-nodepool=none: 0/14 nodes are available: "
    "12 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node affinity/selector",
    # One refusal, though each try has a pod name of its own.
    "quota": "head: the pod is refused: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1 "
    "(raise that ResourceQuota, or free some of it)",
    "image": "head: container pathways-rm waits: ImagePullBackOff: Back-off pulling image "
    '"us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server:typo": ErrImagePull: not found '
    "(check the image's name and the nodes' right to pull it)",
    "head_ready": "0 of 2 slices ready",  # a refused follower waits for its leader: that is no trouble
    "running": "",
    "slice_lost": "1 of 2 slices ready (not ready: slice 1)",
    "restarting": "the head is being started again (restart 1 of 2); trainer exited 75",
    "exit_70": "trainer exited 70",
    "budget": "slice 1 failed more often than its Job allows (pathways-worker exited 1)",
    "restarts_spent_oom": "trainer ran out of memory and was killed; all 2 restarts are spent; raise the memory of "
    "container trainer in gke.head",
    "head_gone": "the head ended and its pod is gone: ReachedMaxRestarts: jobset failed due to reaching max number of "
    "restarts (first failed job: hgone-pathways-head-0)",
    "deleting": "JobSet del is being deleted",
    "head_drained": "the head is ending",
    "suspended_later": "JobSet run is suspended and in no queue; set its spec.suspend to false to resume it",
}


def test_every_recorded_moment_has_a_row() -> None:
    assert set(JOBSETS) == set(names("jobset"))
    assert set(JOBS) == set(names("job"))


@pytest.mark.parametrize("name", JOBSETS)
def test_a_jobset(name: str) -> None:
    moment = recorded(name)
    seen = moment.look()
    state, code, again, slices, detail = JOBSETS[name]
    observed = seen.observation
    assert (observed.state, observed.exit_code, observed.relaunching) == (state, code, again)
    assert (seen.slices.state, seen.slices.ready, seen.slices.wanted) == (*slices, 2)
    assert seen.slices.with_job is (slices[0] != "released")
    assert needs_detail(moment.object) is detail
    assert is_over(moment.object) is (state == "over" and not again and name != "deleting")


@pytest.mark.parametrize("name", DETAILS)
def test_what_is_said_of_a_jobset(name: str) -> None:
    assert recorded(name).look().observation.detail == DETAILS[name]


@pytest.mark.parametrize("name", JOBSETS)
def test_the_order_of_lists_means_nothing(name: str) -> None:
    moment, shuffled = recorded(name), recorded(name)
    chance = random.Random(name)
    status = shuffled.object.get("status", {})
    for one in (shuffled.pods, shuffled.events, status.get("conditions", []), status.get("replicatedJobsStatus", [])):
        chance.shuffle(one)
    assert shuffled.look() == moment.look()


@pytest.mark.parametrize("name", JOBSETS)
def test_what_an_observer_keeps_of_a_jobset_is_enough(name: str) -> None:
    moment, kept = recorded(name), recorded(name)
    kept.object = trim(kept.object)
    assert kept.look() == moment.look()


def test_the_list_alone_tells_a_healthy_jobset() -> None:
    moment = recorded("running")
    assert look(moment.object, [], [], moment.now) == moment.look()


def test_no_jobset() -> None:
    seen = look(None, [], [], recorded("running").now)
    assert seen.observation.state == "absent"
    assert seen.slices == SliceState("absent", 0, 0)
    assert not needs_detail(None)


# -- how long ------------------------------------------------------------------------------------------------------


def test_a_queue_is_waited_in_since_the_creation() -> None:
    assert recorded("queued").look(later=3600).observation.waited == 3602


def test_a_start_is_waited_for_since_the_jobset_left_the_queue() -> None:
    """Created suspended, let go an hour later: the Suspended condition stays until all slices are ready."""
    moment = recorded("no_pool")
    status = moment.object["status"]
    let_go = next(c for c in status["conditions"] if c["type"] == "StartupPolicyInProgress")["lastTransitionTime"]
    moment.object["metadata"]["creationTimestamp"] = "2026-11-29T19:36:27Z"
    status["conditions"].append({"type": "Suspended", "status": "True", "lastTransitionTime": "2026-11-29T19:36:27Z"})
    assert let_go == "2026-11-29T20:36:27Z"
    assert moment.look(later=60).observation.waited == 65


def test_a_suspension_is_waited_out_since_it_began() -> None:
    assert recorded("suspended_later").look(later=60).observation.waited == 63


@pytest.mark.parametrize(
    ("status", "at", "waited"),
    [
        (True, "2026-11-29T20:36:05Z", 63),
        (False, "2026-11-29T20:30:00Z", 0),  # it was put back this moment, and the condition comes late
    ],
)
def test_a_suspension_without_its_condition_has_just_begun(status: bool, at: str, waited: float) -> None:
    moment = recorded("suspended_later")
    moment.condition("Suspended").update(status=str(status), lastTransitionTime=at)
    assert moment.look(later=60).observation.waited == waited


def test_a_jobset_suspended_before_all_slices_were_back_has_just_begun_to_wait() -> None:
    moment = recorded("resuming")  # and trains for hours with some of them
    moment.object["spec"]["suspend"] = True
    assert moment.look(later=7200).observation.waited == 0


def head_is(moment: Moment, seconds: float | None) -> None:
    """Let the head be a new one without a node, made so many seconds after this moment, or none."""
    moment.pods = [p for p in moment.pods if "head" not in p["metadata"]["name"]]
    moment.status("pathways-head")["ready"] = 0
    if seconds is not None:
        pending = recorded("no_head_node").pod("head")
        pending["metadata"]["labels"].pop("jobset.sigs.k8s.io/jobset-uid")
        at = (moment.now + timedelta(seconds=seconds)).isoformat()
        pending["metadata"]["creationTimestamp"] = at
        for condition in pending["status"]["conditions"]:
            condition["lastTransitionTime"] = at
        moment.pods.append(pending)


def test_a_new_head_without_a_node_is_waited_for_since_it_was_made() -> None:
    """JobSet's condition may be of a restart before: it stays until all slices are ready."""
    moment = recorded("restarting")
    assert moment.look(later=60).observation.waited == 60
    head_is(moment, 7200)
    observed = moment.look(later=7230).observation
    assert (observed.state, observed.relaunching, observed.waited) == ("over", True, 30)


def test_a_head_that_may_not_be_made_is_waited_for_since_the_restart() -> None:
    moment = recorded("restarting")
    moment.pods = []
    assert moment.look(later=60).observation.waited == 60


def test_a_head_that_is_gone_this_moment_has_not_been_waited_for() -> None:
    """It is gone with its node, hours after a restart from which not all slices came back."""
    moment = recorded("restarting")
    head_is(moment, None)
    observed = moment.look(later=7200).observation
    assert (observed.state, observed.relaunching, observed.waited) == ("over", True, 0)
    for pod in moment.pods:  # and then the next restart begins
        pod["metadata"]["deletionTimestamp"] = (moment.now + timedelta(seconds=7190)).isoformat()
    assert moment.look(later=7200).observation.waited == 10


def test_a_head_that_ended_is_waited_for_since_its_end() -> None:
    moment = recorded("running")
    moment.status("pathways-head").update(ready=0, active=0, failed=1)
    head = moment.pod("head")
    head["status"].update(phase="Failed", containerStatuses=[])  # its node is lost, and so is how it ended
    head["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "lastTransitionTime": (moment.now + timedelta(hours=2)).isoformat()}
    ]
    assert moment.look(later=7205).observation.waited == 5


def test_a_resumed_run_waits_for_its_head_since_that_was_made() -> None:
    moment = recorded("resuming")
    head_is(moment, 3600)
    observed = moment.look(later=3610).observation
    assert (observed.state, observed.trainer_lives, observed.waited) == ("starting", False, 10)
    head_is(moment, None)
    assert moment.look(later=3610).observation.waited == 0


def test_since_when_all_slices_are_ready_is_forgotten_when_one_is_lost() -> None:
    assert recorded("running").look().observation.running_since == datetime(2026, 11, 29, 20, 35, 53, tzinfo=UTC)
    assert recorded("slice_lost").look().observation.running_since is None


# -- suspension ----------------------------------------------------------------------------------------------------


def test_a_jobset_in_a_queue_says_what_the_queue_says() -> None:
    moment = recorded("queued")
    moment.object["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "tpu-queue"
    assert moment.look().observation.detail == "waits in queue tpu-queue"
    moment.says("JobSet", "sus", "CreatedWorkload", "Created Workload: training/jobset-sus-1a2b3", 9)
    moment.says("Workload", "jobset-sus-1a2b3", "Pending", "insufficient quota for google.com/tpu, 4 more needed", 1)
    moment.says("Workload", "jobset-sus-1a2b3", "Pending", "insufficient quota for google.com/tpu, 8 more needed", 2)
    told = "waits in queue tpu-queue: Pending: insufficient quota for google.com/tpu, 8 more needed"
    assert moment.look().observation.detail == told


def test_a_jobset_resumed_and_suspended_before_its_slices_were_ready_is_queued() -> None:
    moment = recorded("no_pool")
    moment.object["spec"]["suspend"] = True
    assert moment.look().observation.state == "queued"


def test_a_suspended_run_is_not_over() -> None:
    verdict = judge("train", recorded("suspended_later").look().observation, None, proven=False)
    assert (verdict.phase, verdict.done) == ("suspended", False)


# -- starting, and losses ------------------------------------------------------------------------------------------


def test_some_slices_that_were_never_all_ready_are_a_start() -> None:
    moment = recorded("head_ready")
    moment.status("pathways-worker")["ready"] = 1
    seen = moment.look()
    assert (seen.observation.state, seen.slices.state) == ("starting", "partly")


def test_the_loss_of_every_slice_is_no_start() -> None:
    moment = recorded("slice_lost")
    moment.status("pathways-worker").update(ready=0, active=0)
    moment.pods = [p for p in moment.pods if "head" in p["metadata"]["name"]]
    seen = moment.look()
    assert (seen.observation.state, seen.slices.state, seen.slices.ready) == ("running", "partly", 0)


def test_a_lost_slice_that_gets_no_node_is_named_with_the_reason() -> None:
    moment, unscheduled = recorded("slice_lost"), recorded("no_pool").pod("worker-1-0")
    moment.pods = [p for p in moment.pods if "worker-1" not in p["metadata"]["name"]]
    unscheduled["metadata"]["labels"].pop("jobset.sigs.k8s.io/jobset-uid")
    moment.pods.append(unscheduled)
    moment.says("Pod", "x", "FailedScaleUp", "GCE out of resources", uid=unscheduled["metadata"]["uid"])
    detail = moment.look().observation.detail
    assert detail.startswith("1 of 2 slices ready (not ready: slice 1); slice 1: no node for the pod with ")
    assert detail.endswith("; autoscaler: GCE out of resources")


def test_a_refusal_counts_until_the_pod_is_made_after_all() -> None:
    refused, made = recorded("no_priority"), recorded("no_priority")
    worker = recorded("no_pool").pod("worker-0-0")
    worker["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "nopr-pathways-worker-0"}
    worker["metadata"]["creationTimestamp"] = made.now.isoformat()
    worker["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    worker["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] = "pathways-worker"
    made.pods.append(worker)
    assert "slices 0, 1: the pod is refused" in refused.look().observation.detail
    assert "slice 1: the pod is refused" in made.look().observation.detail


def test_what_was_said_of_a_predecessor_of_the_same_name_is_not_said_again() -> None:
    moment = recorded("fresh")
    moment.says("Job", "run-pathways-head-0", "FailedCreate", "Error creating: exceeded quota: q", -3600)
    moment.pods = [dict(p) for p in recorded("no_pool").pods]  # of another JobSet
    assert moment.look().observation.detail == "the head is starting"


def test_a_secret_that_is_missing_is_named() -> None:
    moment = recorded("image")
    moment.container("head", "pathways-rm")["state"] = {"running": {}}
    waits = {"reason": "CreateContainerConfigError", "message": 'secret "hf-token" not found'}
    moment.container("head", "trainer")["state"] = {"waiting": waits}
    assert moment.look().observation.detail == (
        'head: container trainer waits: CreateContainerConfigError: secret "hf-token" not found '
        "(create it in this namespace, or change `secrets`)"
    )


def test_a_worker_that_crashes_over_and_over_says_how() -> None:
    moment = recorded("head_ready")
    worker = moment.container("worker-1-0", "pathways-worker")
    worker["state"] = {
        "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
    }
    worker["lastState"] = ended(1, message="libtpu.so\nno TPU devices found\n")
    assert moment.look().observation.detail == (
        "0 of 2 slices ready; slice 1: container pathways-worker waits: CrashLoopBackOff: pathways-worker exited 1: "
        "libtpu.so; no TPU devices found"
    )


# -- the head's end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "seen", "act"),
    [
        (64, "Error", 64, "user"),
        (70, "Error", 70, "user"),
        (75, "Error", 75, "relaunch"),
        (76, "Error", 76, "none"),
        (77, "Error", 77, "user"),
        (143, "Error", 143, "relaunch"),
        (137, "OOMKilled", 70, "user"),
        (137, "Error", -9, "relaunch"),
        (139, "Error", -11, "relaunch"),
        (134, "Error", -6, "relaunch"),
        (1, "Error", 1, "user"),
        (255, "Error", 255, "user"),
    ],
)
def test_the_exit_of_a_head(code: int, reason: str, seen: int, act: str) -> None:
    moment = recorded("exit_70")
    moment.container("head", "trainer")["state"] = ended(code, reason)
    look = moment.look()
    observed, failed = look.observation, look.failed
    assert observed.exit_code == seen
    assert failed is not None
    assert (failed.pod, failed.container) == (moment.pod("head")["metadata"]["name"], "trainer")
    assert judge("train", observed, None, proven=False).act == act


def test_the_last_words_of_a_head_are_in_its_reason() -> None:
    moment = recorded("exit_70")
    words = "Traceback (most recent call last):\n  File x\n\nValueError: bad data\n"
    moment.container("head", "trainer")["state"] = ended(70, message=words)
    told = "trainer exited 70: Traceback (most recent call last):; File x; ValueError: bad data"
    assert moment.look().observation.detail == told


def test_what_failed_before_the_trainer_is_named_with_it() -> None:
    moment = recorded("exit_70")
    moment.container("head", "trainer")["state"] = ended(75, message="the proxy is gone", at="2026-11-29T20:36:57Z")
    status = moment.pod("head")["status"]
    dead, later = ended(139, at="2026-11-29T20:36:50Z"), ended(143, at="2026-11-29T20:36:59Z")
    status["initContainerStatuses"] = [
        {"name": "pathways-proxy", "state": {"running": {}}, "lastState": dead},
        {"name": "pathways-rm", "state": later},  # ended because the trainer had
    ]
    told = "trainer exited 75: the proxy is gone; pathways-proxy was killed by signal 11 before it"
    assert moment.look().observation.detail == told


def test_a_sidecar_that_ended_in_the_same_second_was_ended_by_the_trainers_end() -> None:
    moment = recorded("exit_70")
    moment.container("head", "trainer")["state"] = ended(75)
    moment.pod("head")["status"]["initContainerStatuses"] = [{"name": "pathways-rm", "state": ended(143)}]
    assert moment.look().observation.detail == "trainer exited 75"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reason": "Evicted", "message": "The node was low on resource: memory."}, "(Evicted: The node was low"),
        (
            {
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "gone"}
                ]
            },
            "(DeletionByPodGC: gone)",
        ),
    ],
)
def test_a_head_that_the_cluster_ended_is_said_to_be(change: dict[str, Any], words: str) -> None:
    moment = recorded("exit_70")
    status = moment.pod("head")["status"]
    status.update(change)
    status["containerStatuses"] = []
    observed = moment.look().observation
    assert observed.exit_code is None
    assert words in observed.detail
    assert judge("train", observed, None, proven=False).act == "relaunch"


def test_only_the_newest_head_counts() -> None:
    moment = recorded("exit_70")
    old = recorded("exit_70").pod("head")
    old["metadata"] |= {"name": "old", "creationTimestamp": "2026-11-29T20:30:00Z"}
    old["status"]["containerStatuses"][0]["state"] = ended(75)
    moment.pods = [moment.pod("head"), old]
    assert moment.look().observation.exit_code == 70
    moment.pods.reverse()
    assert moment.look().observation.exit_code == 70


def test_a_head_that_died_a_moment_ago_is_not_over_before_jobset_says_so() -> None:
    moment = recorded("running")
    moment.status("pathways-head").update(ready=0, active=0, failed=1)
    moment.container("head", "trainer")["state"] = ended(75)
    moment.pod("head")["status"]["phase"] = "Failed"
    observed = moment.look().observation
    assert (observed.state, observed.relaunching, observed.exit_code) == ("over", True, 75)
    assert not judge("train", observed, None, proven=False).done


def test_a_head_that_succeeded_a_moment_ago_is_not_over_before_jobset_says_so() -> None:
    moment = recorded("running")
    moment.status("pathways-head").update(ready=0, active=0, succeeded=1)
    moment.pod("head")["status"]["phase"] = "Succeeded"
    assert moment.look().observation.state == "running"


def test_a_new_head_that_gets_no_node_says_so_while_it_is_awaited() -> None:
    moment, pending = recorded("restarting"), recorded("no_head_node").pod("head")
    pending["metadata"]["labels"].pop("jobset.sigs.k8s.io/jobset-uid")
    moment.pods = [pending]
    observed = moment.look().observation
    assert (observed.state, observed.relaunching, observed.exit_code) == ("over", True, None)
    assert observed.detail.startswith("the head is being started again (restart 1 of 2); head: no node for the pod")


def test_a_success_needs_proof_whatever_the_pods_say() -> None:
    """Faults D13, D14: the head succeeded, workers failed, or no pod is left at all."""
    moment = recorded("completed")
    moment.pods = recorded("budget").pods
    for pods in (moment.pods, []):
        moment.pods = pods
        observed = moment.look().observation
        assert judge("train", observed, None, proven=False).outcome == "failed"
        assert judge("train", observed, None, proven=True).outcome == "complete"


# -- stuck pods ----------------------------------------------------------------------------------------------------


def test_a_head_on_a_silent_node_is_found_half_a_minute_after_its_grace() -> None:
    moment = recorded("head_drained")
    pod = moment.pod("head")
    # The server writes the end of the grace, not its beginning: deleted 3 s ago, with 30 s.
    assert pod["metadata"]["deletionTimestamp"] == "2026-11-29T20:46:41Z"
    assert moment.now.isoformat() == "2026-11-29T20:46:14+00:00"
    assert stuck_head(moment.pods, moment.now + timedelta(seconds=27 + 29)) is None
    assert stuck_head(moment.pods, moment.now + timedelta(seconds=27 + 31)) is pod
    assert moment.look(later=58).observation.detail == "the head's pod does not end: node mute does not answer"


def test_a_stuck_worker_is_no_head() -> None:
    moment = recorded("slice_lost")
    later = moment.now + timedelta(minutes=5)
    assert {p["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"] for p in stuck(moment.pods, later)} == {"1"}
    assert stuck_head(moment.pods, later) is None


# -- plain Jobs ----------------------------------------------------------------------------------------------------

JOBS: dict[str, tuple[str, int | None, bool, str]] = {
    "job_fresh": ("starting", None, False, ""),
    "job_running": ("running", None, False, ""),
    "job_complete": ("over", 0, False, ""),
    "job_retry": ("over", 64, True, "trainer exited 64; the Job starts another pod"),
    "job_failed": ("over", 70, False, "trainer exited 70"),
    "job_deadline": ("over", 77, False, "the Job's activeDeadlineSeconds (2) is spent"),
    "job_suspended": (
        "queued",
        None,
        False,
        "Job jsus is suspended and in no queue; set its spec.suspend to false to resume it",
    ),
    "job_pending": (
        "starting",
        None,
        False,
        "jpend-8z7b2: no node for the pod with cloud.google.com/gke-nodepool=none: 0/15 nodes are available: "
        "13 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node affinity/selector",
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job(name: str) -> None:
    observed = recorded(name).look_job()
    assert (observed.state, observed.exit_code, observed.relaunching, observed.detail) == JOBS[name]


def test_no_job() -> None:
    assert look_job(None, [], [], recorded("job_fresh").now).observation == Observation("absent")


def test_a_pod_that_replaces_another_after_hours_begins_anew() -> None:
    moment = recorded("job_pending")
    moment.object["metadata"]["creationTimestamp"] = "2026-11-29T12:00:00Z"
    since = (moment.now - timedelta(seconds=5)).isoformat()
    moment.pod()["metadata"]["creationTimestamp"] = since
    assert moment.look_job(later=60).waited == 65


@pytest.mark.parametrize(
    ("status", "waited"), [({"failed": 1}, 0), ({"uncountedTerminatedPods": {"failed": ["x"]}}, 0), ({}, 60)]
)
def test_a_pod_that_is_gone_before_the_next_is_made_was_no_wait(status: dict[str, Any], waited: float) -> None:
    moment = recorded("job_pending")
    moment.object["metadata"]["creationTimestamp"] = moment.now.isoformat()
    moment.pods = []
    moment.object["status"].update(status)
    assert moment.look_job(later=60).waited == waited


def test_a_job_that_ran_and_is_put_back_is_suspended() -> None:
    moment = recorded("job_running")
    moment.object["spec"]["suspend"] = True
    assert moment.look_job().state == "suspended"


def test_a_job_that_is_being_deleted_is_over() -> None:
    moment = recorded("job_running")
    moment.object["metadata"]["deletionTimestamp"] = moment.now.isoformat()
    observed = moment.look_job()
    assert (observed.state, observed.exit_code, observed.detail) == ("over", None, "Job export is being deleted")


def test_a_job_out_of_memory_says_so() -> None:
    moment = recorded("job_failed")
    moment.object["metadata"]["labels"] = {"elastic-tpu.dev/role": "export"}
    for pod in moment.pods:
        pod["status"]["containerStatuses"][0]["state"] = ended(137, "OOMKilled")
    observed = moment.look_job()
    assert (observed.exit_code, observed.detail) == (
        70,
        "trainer ran out of memory and was killed; raise gke.jobs.export.memory",
    )


def test_the_last_pod_of_a_job_counts() -> None:
    moment = recorded("job_failed")
    assert len(moment.pods) == 2  # the first one exited 64
    moment.pods.reverse()
    assert moment.look_job().exit_code == 70


def test_a_time_that_is_none_is_no_time_and_no_error() -> None:
    assert k8s_json.parse_time("yesterday") is None
    assert k8s_json.parse_time("2026-01-31T12:00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
