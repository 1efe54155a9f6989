"""The kubelet of processes does what a kubelet does: tests of a whole run on it would else show nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes
import psutil
import pytest
from elastic_tpu.tests.controlplane.identity import FOLDER
from elastic_tpu.tests.controlplane.kubelet import ProcessKubelet
from elastic_tpu.tests.controlplane.plane import ControlPlane
from elastic_tpu.tests.controlplane.pod import Pod
from elastic_tpu.tests.controlplane.small_jobset import OBEY, order
from elastic_tpu.tests.support import until

Json = dict[str, Any]


def run_as_written(pod: Json, container: Json, env: dict[str, str], argv: list[str]) -> Any:
    """A container with a command runs it, one without sleeps."""
    del pod, container, env
    return (argv, {"ADDED": "by the test"}) if argv else None


def shell(name: str, script: str, **more: Any) -> Json:
    return {"name": name, "image": "none", "command": ["sh", "-c", script], **more}


class Team:
    """A namespace with one node that this kubelet runs."""

    def __init__(self, plane: ControlPlane, namespace: str, kubelet: ProcessKubelet) -> None:
        self.plane, self.namespace, self.kubelet = plane, namespace, kubelet
        self.core = kubernetes.client.CoreV1Api(plane.admin)
        self.node = kubelet.node(f"{namespace}-node", {"team": namespace})

    def submit(self, *containers: Json, metadata: Json | None = None, **spec: Any) -> str:
        """Make a pod `p`, and return its name."""
        spec = {"nodeSelector": {"team": self.namespace}, "restartPolicy": "Never", **spec}
        body = {"metadata": {"name": "p", **(metadata or {})}, "spec": {**spec, "containers": list(containers)}}
        # Its service account is made a moment after its namespace, and needed before a pod.
        until(
            lambda: (
                self.core.list_namespaced_service_account(self.namespace, field_selector="metadata.name=default").items
            )
        )
        self.core.create_namespaced_pod(self.namespace, body)
        return "p"

    def runs(self, *containers: Json, **more: Any) -> Pod:
        """Make a pod, and wait until it runs."""
        self.submit(*containers, **more)
        return until(lambda: self.kubelet.running("p"), "a pod that runs")

    @property
    def status(self) -> Any:
        return self.core.read_namespaced_pod("p", self.namespace).status

    def ends(self) -> Any:
        """Wait until the pod is over; its status."""
        until(lambda: self.status.phase in ("Succeeded", "Failed"), "a pod that is over")
        return self.status

    def ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())

    def delete(self, **options: Any) -> None:
        self.core.delete_namespaced_pod("p", self.namespace, **options)

    def gone(self) -> bool:
        return not self.core.list_namespaced_pod(self.namespace).items

    def logs(self, *arguments: str) -> str:
        return self.plane.kubectl("logs", "-n", self.namespace, "p", *arguments).stdout


@pytest.fixture
def kubelet(plane: ControlPlane, tmp_path: Path) -> Iterator[ProcessKubelet]:
    with ProcessKubelet(plane, tmp_path / "kubelet", run_as_written, backoff=0.1) as kubelet:
        yield kubelet


@pytest.fixture
def team(plane: ControlPlane, namespace: str, kubelet: ProcessKubelet) -> Team:
    return Team(plane, namespace, kubelet)


def test_containers_get_the_environment_that_kubernetes_describes(team: Team) -> None:
    secret = {"metadata": {"name": "keys"}, "stringData": {"hub": "s3cret"}}
    team.core.create_namespaced_secret(team.namespace, secret)
    env = [
        {"name": "PLAIN", "value": "a"},
        {"name": "BUILT", "value": "$(PLAIN)-$(LATER)-$$(PLAIN)"},
        {"name": "LATER", "value": "b"},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['elastic-tpu.dev/slice']"}}},
        {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['note']"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "hub"}}},
        {"name": "ABSENT", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "no", "optional": True}}},
    ]
    code = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    command = {"command": [sys.executable, "-c", code], "args": ["$(BUILT)", "$(NOBODY)"]}
    about = {"labels": {"elastic-tpu.dev/slice": "3"}, "annotations": {"note": "x y"}}
    team.submit({"name": "c", "image": "none", "env": env, **command}, metadata=about)
    assert team.ends().phase == "Succeeded"
    seen, argv = json.loads(team.logs())
    expected = {"PLAIN": "a", "BUILT": "a-$(LATER)-$(PLAIN)", "LATER": "b", "LABEL": "3", "NOTE": "x y"}
    expected |= {"NODE": team.node.name, "TOKEN": "s3cret", "ADDED": "by the test", "HOSTNAME": "p"}
    assert {name: seen.get(name) for name in expected} == expected
    assert "ABSENT" not in seen
    assert argv == ["a-$(LATER)-$(PLAIN)", "$(NOBODY)"]


def test_a_pod_speaks_to_the_api_server_as_its_service_account(team: Team) -> None:
    code = f"""import os, ssl, urllib.request as r
folder, e = os.environ["{FOLDER}"], os.environ
read = lambda name: open(folder + "/" + name).read()
url = f"https://{{e['KUBERNETES_SERVICE_HOST']}}:{{e['KUBERNETES_SERVICE_PORT']}}/apis/authentication.k8s.io/v1/selfsubjectreviews"
body = b'{{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}}'
head = {{"Authorization": "Bearer " + read("token"), "Content-Type": "application/json"}}
answer = r.urlopen(r.Request(url, body, head), context=ssl.create_default_context(cafile=folder + "/ca.crt"))
print(read("namespace"), answer.read().decode())"""
    team.submit({"name": "c", "image": "none", "command": [sys.executable, "-c", code]})
    assert team.ends().phase == "Succeeded", team.logs()
    assert team.logs().startswith(f"{team.namespace} ")
    assert f"system:serviceaccount:{team.namespace}:default" in team.logs()


def test_init_containers_come_first_and_sidecars_last_as_long_as_the_pod(team: Team) -> None:
    sidecar = "trap 'echo sidecar over >> story; exit 0' TERM; echo sidecar up >> story; while :; do sleep 0.05; done"
    main = "until grep -q sidecar story; do sleep 0.02; done; echo main over >> story"
    inits = [shell("init", "echo init >> story"), shell("side", sidecar, restartPolicy="Always")]
    team.submit(shell("main", main), initContainers=inits)
    status = team.ends()
    (pod,) = team.kubelet.pods("p")
    assert (pod.folder / "story").read_text().splitlines() == ["init", "sidecar up", "main over", "sidecar over"]
    assert (status.phase, team.kubelet.left()) == ("Succeeded", [])


def test_sidecars_of_a_deleted_pod_outlive_its_main_container(team: Team) -> None:
    sidecar = "trap 'echo sidecar over >> story; exit 0' TERM; echo up >> story; while :; do sleep 0.05; done"
    main = "trap 'sleep 0.3; echo main over >> story; exit 0' TERM; echo up >> story; while :; do sleep 0.05; done"
    pod = team.runs(shell("main", main), initContainers=[shell("side", sidecar, restartPolicy="Always")])
    story = pod.folder / "story"
    until(lambda: story.exists() and story.read_text() == "up\nup\n")
    team.delete()
    until(lambda: not pod.alive, "its end")
    assert story.read_text().splitlines()[2:] == ["main over", "sidecar over"]


def test_a_sidecar_that_dies_is_started_again_beside_the_main_container(team: Team) -> None:
    pod = team.runs(
        {"name": "main", "image": "none"}, initContainers=[shell("side", "exec sleep 99", restartPolicy="Always")]
    )
    pod.container("side").signal(signal.SIGKILL)
    until(lambda: team.ready() and team.status.init_container_statuses[0].restart_count == 1, "the sidecar's return")
    assert team.status.init_container_statuses[0].last_state.terminated.exit_code == 137
    assert team.status.container_statuses[0].restart_count == 0


def test_a_failed_init_container_fails_a_pod_that_is_never_restarted(team: Team) -> None:
    team.submit(shell("main", "exit 0"), initContainers=[shell("init", "exit 4")])
    status = team.ends()
    assert status.phase == "Failed"
    assert status.init_container_statuses[0].state.terminated.exit_code == 4
    assert status.container_statuses[0].state.waiting.reason == "PodInitializing"


def test_on_failure_restarts_in_place_until_it_ends_well(team: Team) -> None:
    script = "echo start >> starts; n=$(wc -l < starts); echo this is $n; [ $n = 3 ] || exit $n"
    team.submit(shell("main", script), restartPolicy="OnFailure")
    assert team.ends().phase == "Succeeded"
    (container,) = team.status.container_statuses
    assert (container.restart_count, container.last_state.terminated.exit_code) == (2, 2)
    assert (team.logs(), team.logs("--previous")) == ("this is 3\n", "this is 2\n")


def test_a_death_by_signal_is_128_and_its_number(team: Team) -> None:
    pod = team.runs(shell("main", "exec sleep 99"))
    pod.container().signal(signal.SIGKILL)
    status = team.ends()
    assert (status.phase, status.container_statuses[0].state.terminated.exit_code) == ("Failed", 137)


def test_what_a_container_leaves_in_its_session_ends_with_it(team: Team) -> None:
    pod = team.runs(shell("main", f"sleep 99 & echo $!; {OBEY[2]}"))
    child = psutil.Process(int(until(lambda: pod.log())))
    order(pod, 0)
    team.ends()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child's end")


@pytest.mark.parametrize(
    ("script", "grace", "code"),
    [
        ("trap 'sleep 1.2; exit 7' TERM; echo up; while :; do sleep 0.05; done", 60, 7),
        ("trap '' TERM; echo up; while :; do sleep 0.05; done", 1, 137),
    ],
    ids=["obeys SIGTERM", "ignores SIGTERM"],
)
def test_a_deleted_pod_ends_in_its_grace_and_reports_how_before_it_goes(
    team: Team, script: str, grace: int, code: int
) -> None:
    pod = team.runs(shell("main", script), terminationGracePeriodSeconds=grace)
    until(lambda: pod.log() == "up\n")
    seen = states(team, team.delete)
    assert seen[-1] == ("DELETED", "Failed", code)
    assert ("MODIFIED", "Failed", code) in seen
    until(lambda: not pod.alive)


def test_a_pod_deleted_by_force_is_killed_at_once(team: Team) -> None:
    script = "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"
    pod = team.runs(shell("main", script), terminationGracePeriodSeconds=60)
    until(lambda: pod.log() == "up\n")
    team.delete(grace_period_seconds=0)
    assert team.gone()
    until(lambda: not pod.alive, "its end")
    assert pod.container().code == 137


def test_a_pod_that_somebody_waits_for_reports_its_end_even_if_deleted_by_force(team: Team) -> None:
    """A finalizer keeps its object, as a Job's does: the Job counts it once it has ended."""
    keep = {"finalizers": ["elastic-tpu.dev/test"]}
    pod = team.runs(shell("main", "exec sleep 99"), metadata=keep)
    team.delete(grace_period_seconds=0)
    status = team.ends()
    assert (status.phase, status.container_statuses[0].state.terminated.exit_code) == ("Failed", 137)
    team.core.patch_namespaced_pod("p", team.namespace, {"metadata": {"finalizers": None}})
    until(team.gone, "the object's end")
    until(lambda: not pod.alive)


def test_logs_are_served_while_they_are_written_and_afterwards(team: Team) -> None:
    script = f"echo one; echo two; {OBEY[2].replace('exit', 'echo three; exit')}"
    pod = team.runs(shell("main", script))
    until(lambda: pod.log() == "one\ntwo\n")
    assert team.logs("--tail=1") == "two\n"
    config = f"--kubeconfig={team.plane.kubeconfig()}"
    kubectl = [str(team.plane.binaries / "kubectl"), config, "logs", "-n", team.namespace, "-f", "p"]
    with subprocess.Popen(kubectl, stdout=subprocess.PIPE, text=True) as follow:
        assert follow.stdout is not None
        assert follow.stdout.readline() == "one\n"
        order(pod, 0)
        assert follow.stdout.read() == "two\nthree\n"
    team.ends()
    assert team.logs() == "one\ntwo\nthree\n"


def test_a_container_waits_for_a_secret_that_is_missing(team: Team) -> None:
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "hub"}}}]
    team.submit(shell("main", "echo $TOKEN", env=env))

    def waiting() -> Any:
        return [c.state.waiting for c in team.status.container_statuses or () if c.state.waiting]

    until(lambda: waiting() and waiting()[0].reason == "CreateContainerConfigError", "the reason")
    assert "hub" in waiting()[0].message
    secret = {"metadata": {"name": "keys"}, "stringData": {"hub": "s3cret"}}
    team.core.create_namespaced_secret(team.namespace, secret)
    team.ends()
    assert team.logs() == "s3cret\n"


def test_a_silent_node_says_nothing_and_makes_up_for_it_when_it_is_back(team: Team) -> None:
    pod = team.runs(shell("main", "exec sleep 99"))
    until(team.ready)
    team.node.silence()
    unready = {"type": "Ready", "status": "False"}  # what the node's controller says after 50 s
    team.core.patch_namespaced_pod_status("p", team.namespace, {"status": {"conditions": [unready]}})
    assert not team.ready()
    team.node.come_back()
    until(team.ready, "the kubelet's word that it is ready")
    assert pod.container().starts == 1

    team.node.silence()
    team.delete(grace_period_seconds=1)
    pod.container().signal(signal.SIGTERM)
    until(lambda: pod.container().code is not None)
    assert team.status.phase == "Running", "nobody could tell"
    team.node.come_back()
    until(team.gone, "the end of what was deleted meanwhile")


@pytest.mark.parametrize(("how", "object_stays"), [("lose_power", True), ("vanish", False)])
def test_a_dead_node_takes_its_processes_along_and_nobody_reports_it(team: Team, how: str, object_stays: bool) -> None:
    pod = team.runs(shell("main", "exec sleep 99"))
    until(team.ready)
    getattr(team.node, how)()
    assert (pod.container().code, team.kubelet.left()) == (137, [])
    assert team.status.phase == "Running"
    nodes = [node.metadata.name for node in team.core.list_node().items]
    assert (team.node.name in nodes) == object_stays


def test_closing_leaves_no_process_and_no_node(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    with ProcessKubelet(plane, tmp_path, run_as_written) as kubelet:
        team = Team(plane, namespace, kubelet)
        pod = team.runs(shell("main", "trap '' TERM; sleep 99 & sleep 99; wait"))
        until(lambda: len(kubelet.left()) >= 2, "both of them")
        pid = pod.container().pid
        assert pid is not None
    assert kubelet.left() == []
    assert not psutil.pid_exists(pid)
    assert team.node.name not in [node.metadata.name for node in team.core.list_node().items]


def test_a_mistake_in_a_tests_own_programs_is_not_swallowed(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    def mistaken(*_: object) -> Any:
        raise KeyError("no program for this")

    def use() -> None:
        with ProcessKubelet(plane, tmp_path, mistaken) as kubelet:
            Team(plane, namespace, kubelet).submit({"name": "main", "image": "none"})
            until(lambda: kubelet.problems, "the mistake")

    with pytest.raises(RuntimeError, match="no program for this"):
        use()


def states(team: Team, act: Callable[[], None]) -> list[tuple[str, str, int | None]]:
    """What a watcher sees of the pod from the act on to its end: event, phase, exit code."""
    version = team.core.list_namespaced_pod(team.namespace).metadata.resource_version
    act()
    seen = []
    watch = kubernetes.watch.Watch()
    for event in watch.stream(
        team.core.list_namespaced_pod, team.namespace, resource_version=version, timeout_seconds=30
    ):
        (container,) = event["object"].status.container_statuses
        ended = container.state.terminated
        seen.append((event["type"], event["object"].status.phase, ended.exit_code if ended else None))
        if event["type"] == "DELETED":
            watch.stop()
    return seen
