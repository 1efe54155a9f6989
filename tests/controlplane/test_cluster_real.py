"""Our calls against a real API server, with the rights of deploy/rbac.yaml: what it answers, and what that becomes."""

from __future__ import annotations

import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import urllib3
import yaml
from elastic_tpu.platforms.gke.api import cluster as calls
from elastic_tpu.platforms.gke.api.cluster import Cluster
from elastic_tpu.platforms.gke.api.connection import PAUSES, RETRIES
from elastic_tpu.platforms.gke.api.credentials import connect, surroundings
from elastic_tpu.platforms.gke.api.errors import BeingDeleted
from elastic_tpu.platforms.gke.api.observer import Observer
from elastic_tpu.platforms.gke.api.preflight import LAUNCHER, TRAINER
from elastic_tpu.runs.errors import BadInput, Changed, Exists, Unreachable
from elastic_tpu.runs.spec.run_spec import Gke
from elastic_tpu.tests.controlplane.plane import RBAC, ControlPlane
from elastic_tpu.tests.controlplane.proxy import ApiFault, ApiProxy
from elastic_tpu.tests.support import until

ACCOUNT = "elastic-tpu-launcher"
RUN_ID = "elastic-tpu.dev/run-id"


def manifest(name: str, **metadata: Any) -> dict[str, Any]:
    """A suspended JobSet: it has a Job, and no pods."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "none"}]}
    job = {"parallelism": 1, "completions": 1, "template": {"spec": pod}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {RUN_ID: name}, **metadata},
        "spec": {
            "suspend": True,
            "replicatedJobs": [{"name": "pathways-head", "replicas": 1, "template": {"spec": job}}],
        },
    }


def job(name: str) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "none"}]}
    spec = {"suspend": True, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def cluster(plane: ControlPlane, namespace: str) -> Cluster:
    """As the launcher's service account."""
    return Cluster(plane.api_client(ACCOUNT, namespace), namespace)


@pytest.fixture
def admin(plane: ControlPlane, namespace: str) -> Cluster:
    return Cluster(plane.admin, namespace)


@pytest.fixture
def behind(plane: ControlPlane, namespace: str, proxy: ApiProxy) -> Cluster:
    """The launcher behind the proxy, which is not very patient."""
    client = plane.api_client(ACCOUNT, namespace, server=proxy.url)
    return Cluster(client, namespace, retries=RETRIES.new(backoff_factor=0.02, backoff_jitter=0.0))


# -- rights -------------------------------------------------------------------------------------------------------


def test_the_launchers_role_is_enough_for_every_call(cluster: Cluster) -> None:
    made = cluster.create_jobset(manifest("demo"))
    assert cluster.get_jobset("demo")["metadata"]["uid"] == made["metadata"]["uid"]  # type: ignore[index]
    assert [item["metadata"]["name"] for item in cluster.list_jobsets()] == ["demo"]
    cluster.create_job(job("demo-export"))
    found = cluster.get_job("demo-export")
    assert found
    assert cluster.delete_job("demo-export", found["metadata"]["uid"], foreground=False)
    until(lambda: cluster.get_job("demo-pathways-head-0"), "the Job of the JobSet")
    assert cluster.list_pods(f"{RUN_ID}=demo") == []
    assert not cluster.delete_pod("none")
    assert cluster.pod_log("none", "trainer", 10) == ""
    assert until(cluster.list_events, "an event")
    assert cluster.has_service_account("elastic-tpu-trainer") is True
    assert cluster.has_service_account("nobody") is False
    assert cluster.delete_jobset("demo", made["metadata"]["uid"])
    until(lambda: cluster.get_jobset("demo") is None, "the JobSet's end")
    assert cluster.get_job("demo-pathways-head-0") is None, "foreground: its Job goes first"


def test_the_servers_answers_tell_the_time_to_a_launcher_whose_clock_is_wrong(
    plane: ControlPlane, namespace: str
) -> None:
    cluster = Cluster(plane.api_client(ACCOUNT, namespace), namespace, clock=lambda: time.time() - 7200)
    assert time.time() - cluster.now().timestamp() > 7000
    cluster.list_jobsets()
    assert abs(cluster.now().timestamp() - time.time()) < 1.5


def test_each_account_has_its_own_rights_and_the_preflight_sees_them(plane: ControlPlane, namespace: str) -> None:
    def account(name: str) -> Cluster:
        return Cluster(plane.api_client(name, namespace), namespace, pauses=())

    assert account(ACCOUNT).denied(LAUNCHER) == []
    trainer = account("elastic-tpu-trainer")
    assert trainer.denied(TRAINER) == []
    assert trainer.denied(LAUNCHER) == [str(rule) for rule in LAUNCHER if rule not in TRAINER]
    assert trainer.has_service_account("elastic-tpu-trainer") is None
    until(lambda: account_is_there(plane, namespace), "the default account")
    assert account("default").denied(LAUNCHER) == list(map(str, LAUNCHER))


def account_is_there(plane: ControlPlane, namespace: str) -> bool:
    return bool(Cluster(plane.admin, namespace).has_service_account("default"))


def test_a_right_that_is_missing_is_named_with_the_cure(plane: ControlPlane, namespace: str) -> None:
    trainer = Cluster(plane.api_client("elastic-tpu-trainer", namespace), namespace, pauses=())
    with pytest.raises(BadInput) as caught:
        trainer.create_jobset(manifest("demo"))
    for text in (
        f"gke.namespace: '{namespace}'",
        f"system:serviceaccount:{namespace}:elastic-tpu-trainer may not create jobsets.jobset.x-k8s.io",
        "deploy/rbac.yaml",
    ):
        assert text in str(caught.value)
    with pytest.raises(BadInput, match="may not list events"):
        trainer.list_events()


def test_the_command_in_the_file_sets_up_another_namespace(plane: ControlPlane, namespace: str) -> None:
    other = f"{namespace}-b"
    plane.kubectl("create", "namespace", other)
    try:
        (line,) = (line for line in RBAC.read_text().splitlines() if "sed '" in line)
        command = line.removeprefix("#").partition("  # ")[0].strip()
        command = command.replace("NAME", other).replace("deploy/rbac.yaml", str(RBAC))
        kubectl = f"{plane.binaries / 'kubectl'} --kubeconfig={plane.kubeconfig()}"
        subprocess.run(command.replace("kubectl", kubectl), shell=True, check=True, capture_output=True)
        assert Cluster(plane.api_client(ACCOUNT, other), other).denied(LAUNCHER) == []
    finally:
        plane.kubectl("delete", "namespace", other, "--wait=false")


# -- refusals -----------------------------------------------------------------------------------------------------


def test_an_unknown_field_is_refused_by_name(cluster: Cluster) -> None:
    wrong = manifest("demo")
    wrong["spec"]["replicatedJobs"][0]["replica"] = 3
    with pytest.raises(BadInput, match=r"unknown field.*replica"):
        cluster.create_jobset(wrong)
    assert cluster.get_jobset("demo") is None


def test_the_webhooks_words_reach_the_user_cut_to_what_matters(cluster: Cluster) -> None:
    wrong = manifest("demo")
    wrong["spec"]["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["no-such-job"]}
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"] = {"annotations": {"x": "y" * 9000}}
    with pytest.raises(BadInput, match="no-such-job") as caught:
        cluster.create_jobset(wrong)
    assert len(str(caught.value)) < 1000


def test_a_name_that_is_taken(cluster: Cluster) -> None:
    cluster.create_jobset(manifest("demo"))
    with pytest.raises(Exists) as caught:
        cluster.create_jobset(manifest("demo"))
    assert not isinstance(caught.value, BeingDeleted)


def test_a_name_that_is_being_freed_is_not_to_be_adopted(plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    made = cluster.create_jobset(manifest("demo", finalizers=["elastic-tpu.dev/hold"]))
    assert cluster.delete_jobset("demo", made["metadata"]["uid"])
    try:
        with pytest.raises(BeingDeleted):
            cluster.create_jobset(manifest("demo"))
    finally:
        objects = kubernetes.client.CustomObjectsApi(plane.admin)
        free = {"metadata": {"finalizers": None}}
        objects.patch_namespaced_custom_object("jobset.x-k8s.io", "v1alpha2", namespace, "jobsets", "demo", free)
    until(lambda: cluster.get_jobset("demo") is None, "the JobSet's end")
    cluster.create_jobset(manifest("demo"))


def test_a_successor_is_never_deleted(cluster: Cluster) -> None:
    cluster.create_jobset(manifest("demo"))
    with pytest.raises(Changed):
        cluster.delete_jobset("demo", "00000000-0000-0000-0000-000000000000")
    assert cluster.get_jobset("demo")
    assert not cluster.delete_jobset("another", "00000000-0000-0000-0000-000000000000")


def test_a_namespace_that_is_missing_is_named(plane: ControlPlane, namespace: str) -> None:
    with pytest.raises(BadInput, match=r"gke\.namespace: 'nowhere', there is no such namespace"):
        Cluster(plane.admin, "nowhere").create_jobset(manifest("demo"))
    with pytest.raises(BadInput, match=r"gke\.namespace: 'nowhere', .* may not create jobsets"):
        Cluster(plane.api_client(ACCOUNT, namespace), "nowhere", pauses=()).create_jobset(manifest("demo"))


def test_a_namespace_that_is_going_is_named(plane: ControlPlane, namespace: str) -> None:
    other = f"{namespace}-c"
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    hold = {"apiVersion": "v1", "kind": "ConfigMap"}
    plane.apply({**hold, "metadata": {"name": "hold", "namespace": other, "finalizers": ["elastic-tpu.dev/hold"]}})
    plane.kubectl("delete", "namespace", other, "--wait=false")
    try:
        with pytest.raises(BadInput, match=rf"gke\.namespace: '{other}', .*being terminated"):
            Cluster(plane.admin, other).create_jobset(manifest("demo"))
    finally:
        plane.kubectl(
            "patch", "configmap", "-n", other, "hold", "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
        )


# -- listings -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pages_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_PAGE", 2)


@pytest.mark.usefixtures("pages_of_two")
def test_a_listing_that_the_server_forgets_half_way_begins_again(
    plane: ControlPlane, admin: Cluster, behind: Cluster, proxy: ApiProxy
) -> None:
    names = [f"demo-{i}" for i in range(5)]
    for name in names:
        behind.create_jobset(manifest(name))

    def forget() -> None:
        """Etcd drops all old revisions, as it does every few minutes, and the API server what it remembers of them."""
        revision = admin.create_jobset(manifest("late"))["metadata"]["resourceVersion"]
        url = f"http://127.0.0.1:{plane.commands.ports.etcd}/v3/kv/compaction"
        urllib.request.urlopen(url, f'{{"revision": "{revision}", "physical": true}}'.encode(), timeout=10).close()
        plane.kill("kube-apiserver")
        plane.restart("kube-apiserver")

    proxy.faults = [ApiFault("pass", "GET", "continue=", before=forget)]
    found = [item["metadata"]["name"] for item in behind.list_jobsets()]
    assert sorted(found) == sorted([*names, "late"])
    assert len(found) == len(set(found))
    first_pages = [path for method, path in proxy.requests if "limit=2" in path and "continue=" not in path]
    assert len(first_pages) == 2, "the server did answer 410"


def test_a_list_by_run_ids_brings_these_only(cluster: Cluster) -> None:
    for name in ("a", "b", "c", "d"):
        cluster.create_jobset(manifest(name))
    observer = Observer(cluster, interval=0.0)
    for _ in range(2):
        assert all(observer.jobset(name) for name in ("a", "b", "c"))
    assert [item["metadata"]["name"] for item in cluster.list_jobsets(selector=f"{RUN_ID} in (a,c,x)")] == ["a", "c"]


# -- no answer, or a bad one --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        ApiFault("refuse", "GET", status=429),
        ApiFault("refuse", "GET", status=500),
        ApiFault("refuse", "GET", status=503),
        ApiFault("refuse", "GET", status=504),
        ApiFault("reset", "GET"),
        ApiFault("lose", "GET"),
        ApiFault("cut", "GET"),
    ],
)
def test_a_look_survives_what_happens_on_the_way(behind: Cluster, proxy: ApiProxy, fault: ApiFault) -> None:
    behind.create_jobset(manifest("demo"))
    proxy.faults = [fault, fault]
    assert behind.get_jobset("demo")
    assert not proxy.faults
    assert proxy.asked("GET", "/jobsets/demo") == 3


def test_throttling_is_obeyed_also_by_a_create(behind: Cluster, proxy: ApiProxy) -> None:
    proxy.faults = [ApiFault("refuse", "POST", status=429, headers={"Retry-After": "1"})]
    behind.create_jobset(manifest("demo"))
    assert proxy.asked("POST", "/jobsets") == 2


@pytest.mark.parametrize("kind", ["lose", "lose-503"])
def test_a_create_whose_answer_is_lost_is_found_by_the_next_one(behind: Cluster, proxy: ApiProxy, kind: Any) -> None:
    proxy.faults = [ApiFault(kind, "POST", "/jobsets")]
    with pytest.raises(Unreachable):
        behind.create_jobset(manifest("demo"))
    assert proxy.asked("POST", "/jobsets") == 1
    with pytest.raises(Exists):
        behind.create_jobset(manifest("demo"))
    assert len(behind.list_jobsets()) == 1


def test_a_delete_whose_answer_is_lost_is_repeated(behind: Cluster, proxy: ApiProxy) -> None:
    made = behind.create_jobset(manifest("demo"))
    proxy.faults = [ApiFault("lose", "DELETE")]
    behind.delete_jobset("demo", made["metadata"]["uid"])
    until(lambda: behind.get_jobset("demo") is None, "the JobSet's end")


def test_a_server_that_is_too_slow_is_unknown(plane: ControlPlane, namespace: str, proxy: ApiProxy) -> None:
    client = plane.api_client(ACCOUNT, namespace, server=proxy.url)
    timeout = urllib3.Timeout(connect=5, read=0.2)
    cluster = Cluster(client, namespace, retries=RETRIES.new(backoff_factor=0, read=1), timeout=timeout)
    proxy.faults = [ApiFault("pass", "GET", delay=1.0, times=2)]
    with pytest.raises(Unreachable, match="timed out"):
        cluster.get_jobset("demo")
    assert cluster.get_jobset("demo") is None


def test_an_api_server_that_is_killed_and_comes_back_is_never_taken_for_a_lost_run(
    plane: ControlPlane, namespace: str
) -> None:
    client = plane.api_client(ACCOUNT, namespace)
    retries = urllib3.Retry(0, raise_on_status=False)
    cluster = Cluster(client, namespace, retries=retries)
    cluster.create_jobset(manifest("demo"))
    seen: list[object] = []
    over, failed, back = threading.Event(), threading.Event(), threading.Event()

    def poll(made_anew: bool) -> None:
        while not over.is_set():
            asking = Cluster(client, namespace, retries=retries, pauses=PAUSES) if made_anew else cluster
            try:
                seen.append(asking.get_jobset("demo"))
                seen.append(asking.list_jobsets()[0])
            except Exception as error:  # which kinds is what the test is about
                seen.append(error)
                failed.set()
            else:
                if failed.is_set():
                    back.set()

    pollers = [threading.Thread(target=poll, args=[made_anew]) for made_anew in (True, True, False)]
    for poller in pollers:
        poller.start()
    try:
        plane.kill("kube-apiserver")
        assert failed.wait(30)
        plane.restart("kube-apiserver")
        assert back.wait(60)
    finally:
        over.set()
        for poller in pollers:
            poller.join()
    wrong = [what for what in seen if not isinstance(what, (dict, Unreachable))]
    assert wrong == []


# -- logins -------------------------------------------------------------------------------------------------------


@pytest.fixture
def login(plane: ControlPlane, namespace: str) -> Iterator[Path]:
    """A kubeconfig of the launcher whose token has been revoked."""
    path = plane.kubeconfig(ACCOUNT, namespace)
    config = yaml.safe_load(path.read_text())
    config["users"][0]["user"]["token"] += "x"
    path.write_text(yaml.safe_dump(config))
    return path


def test_an_invalid_login_is_unknown_and_a_new_one_is_taken_up(
    plane: ControlPlane, namespace: str, login: Path
) -> None:
    cluster = Cluster(connect(Gke(kubeconfig=str(login)), surroundings()), namespace)
    with pytest.raises(Unreachable, match="does not accept these credentials"):
        cluster.get_jobset("demo")
    login.write_bytes(plane.kubeconfig(ACCOUNT, namespace).read_bytes())
    assert cluster.get_jobset("demo") is None
    cluster.create_jobset(manifest("demo"))


def test_nobody_is_asked_to_log_in(plane: ControlPlane, namespace: str, login: Path) -> None:
    config = yaml.safe_load(login.read_text())
    config["users"][0]["user"] = {}
    login.write_text(yaml.safe_dump(config))
    cluster = Cluster(connect(Gke(kubeconfig=str(login)), surroundings()), namespace)
    with pytest.raises(Unreachable, match="does not accept these credentials"):
        cluster.list_jobsets()
