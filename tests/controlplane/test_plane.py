"""The control plane that other tests stand on: it is a real one, it is fast, and it leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kubernetes
import psutil
import pytest
import urllib3
from elastic_tpu.tests.controlplane.plane import ControlPlane
from elastic_tpu.tests.controlplane.proxy import ApiFault, ApiProxy
from elastic_tpu.tests.support import lives, until
from kubernetes.client import ApiException

WORKER = "jobset.sigs.k8s.io/replicatedjob-name=pathways-worker"
LAUNCHER = "elastic-tpu-launcher"
JOBSETS = ("jobset.x-k8s.io", "v1alpha2", "jobsets")


def jobset(name: str, slices: int, hosts: int, accelerator: str = "tpu-v5-lite-podslice") -> dict[str, Any]:
    """A head and its slices, as small as they can be."""

    def replicated(role: str, replicas: int, pods: int, **pod: Any) -> dict[str, Any]:
        container = {"name": "main", "image": "none", **pod.pop("container", {})}
        template = {"spec": {"restartPolicy": "Never", "containers": [container], **pod}}
        job = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "template": template}
        return {"name": role, "replicas": replicas, "template": {"spec": job}}

    tolerations = [{"key": "google.com/tpu", "operator": "Exists"}]
    selector = {"cloud.google.com/gke-tpu-accelerator": accelerator}
    tpu = {"resources": {"limits": {"google.com/tpu": "4"}}}
    worker = replicated("pathways-worker", slices, hosts, container=tpu, nodeSelector=selector, tolerations=tolerations)
    one_pool_each = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    worker["template"]["metadata"] = {"annotations": one_pool_each}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "coordinator": {"replicatedJob": "pathways-head"},
            "replicatedJobs": [replicated("pathways-head", 1, 1), worker],
        },
    }


def objects(client: kubernetes.client.ApiClient) -> kubernetes.client.CustomObjectsApi:
    return kubernetes.client.CustomObjectsApi(client)


def ready(plane: ControlPlane, namespace: str, name: str) -> dict[str, int]:
    """How many Jobs are ready, by replicated Job."""
    group, version, plural = JOBSETS
    found = objects(plane.admin).get_namespaced_custom_object(group, version, namespace, plural, name)
    return {s["name"]: s["ready"] for s in found.get("status", {}).get("replicatedJobsStatus", [])}


# ---- life


def test_it_is_ready_within_half_a_minute_and_leaves_nothing(tmp_path: Path) -> None:
    begin = time.monotonic()
    with ControlPlane(tmp_path / "plane", kwok=False) as plane:
        took = time.monotonic() - begin
        processes = [psutil.Process(process.pid) for process in plane.processes.by_name.values()]
        assert len(processes) == 5
        assert all(map(lives, processes))
        version = kubernetes.client.VersionApi(plane.admin).get_code()
    assert took < 30  # 5 on an idle machine
    assert version.git_version.startswith("v1.")  # Kueue refuses an API server without a stamp
    assert [process for process in processes if lives(process)] == []
    assert [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])] == []
    assert not (plane.folder / "etcd").exists()
    assert (plane.logs / "kube-apiserver.log").stat().st_size > 0


def test_a_component_that_cannot_start_is_named_with_its_last_lines(tmp_path: Path) -> None:
    arguments = {"kube-apiserver": ["--no-such-flag"]}
    plane = ControlPlane(tmp_path / "plane", kwok=False, arguments=arguments)
    with pytest.raises(RuntimeError, match=r"(?s)kube-apiserver ended with 1 .*unknown flag: --no-such-flag"), plane:
        pass
    assert [name for name, process in plane.processes.by_name.items() if process.poll() is None] == []


def test_nothing_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from elastic_tpu.tests.controlplane.plane import ControlPlane\n"
        "with ControlPlane(pathlib.Path(sys.argv[1])) as plane:\n"
        "    print(*(process.pid for process in plane.processes.by_name.values()), flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "plane")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        children = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(children) == 6
        assert all(map(lives, children))
        owner.send_signal(signal.SIGKILL)
    until(lambda: not any(map(lives, children)), "the end of all processes")


def test_objects_outlive_the_api_server_and_the_jobset_controller(plane: ControlPlane, namespace: str) -> None:
    uid = kubernetes.client.CoreV1Api(plane.admin).read_namespace(namespace).metadata.uid
    plane.kill("kube-apiserver")
    with pytest.raises(urllib3.exceptions.MaxRetryError):
        kubernetes.client.CoreV1Api(plane.admin).read_namespace(namespace)
    plane.restart("kube-apiserver")
    assert kubernetes.client.CoreV1Api(plane.admin).read_namespace(namespace).metadata.uid == uid
    plane.kill("jobset")
    with pytest.raises(ApiException, match="connection refused"):  # the webhook's
        create(plane, namespace, jobset("early", 1, 1))
    plane.restart("jobset")
    create(plane, namespace, jobset("late", 1, 1))


# ---- it is a real one


def create(
    plane: ControlPlane, namespace: str, document: dict[str, Any], account: str = LAUNCHER, **options: str
) -> Any:
    group, version, plural = JOBSETS
    api = objects(plane.api_client(account, namespace))
    return api.create_namespaced_custom_object(group, version, namespace, plural, document, **options)


def test_a_service_account_may_do_what_its_role_says_and_no_more(plane: ControlPlane, namespace: str) -> None:
    create(plane, namespace, jobset("mine", 1, 1), dry_run="All")
    core = kubernetes.client.CoreV1Api(plane.api_client(LAUNCHER, namespace))
    core.list_namespaced_pod(namespace)
    with pytest.raises(ApiException) as refused:
        core.list_namespaced_secret(namespace)
    assert refused.value.status == 403
    who = f'User "system:serviceaccount:{namespace}:{LAUNCHER}"'
    assert f'{who} cannot list resource "secrets"' in json.loads(refused.value.body)["message"]
    with pytest.raises(ApiException) as elsewhere:
        core.list_namespaced_pod("default")
    assert elsewhere.value.status == 403


def test_the_webhook_refuses_a_name_that_makes_labels_too_long(plane: ControlPlane, namespace: str) -> None:
    create(plane, namespace, jobset("n" * 22, 1, 1), dry_run="All")
    with pytest.raises(ApiException) as refused:
        create(plane, namespace, jobset("n" * 23, 1, 1), dry_run="All")
    assert refused.value.status == 422
    assert "must be no more than 63 bytes" in refused.value.body


def test_a_jobset_gets_ready_on_played_nodes_and_its_children_go_with_it(plane: ControlPlane, namespace: str) -> None:
    core, batch = kubernetes.client.CoreV1Api(plane.admin), kubernetes.client.BatchV1Api(plane.admin)
    document = jobset("run", slices=2, hosts=2, accelerator=namespace)
    created = create(plane, namespace, document)
    plane.cpu_pool(f"{namespace}-head")
    first = plane.tpu_pool(f"{namespace}-0", namespace, "2x4", nodes=2, chips=4)
    until(lambda: ready(plane, namespace, "run") == {"pathways-head": 1, "pathways-worker": 1}, "the first slice")
    second = plane.tpu_pool(f"{namespace}-1", namespace, "2x4", nodes=2, chips=4)
    until(lambda: ready(plane, namespace, "run") == {"pathways-head": 1, "pathways-worker": 2}, "both slices")
    workers = core.list_namespaced_pod(namespace, label_selector=WORKER).items
    by_slice = [
        sorted(pod.spec.node_name for pod in workers if pod.metadata.labels["jobset.sigs.k8s.io/job-index"] == index)
        for index in ("0", "1")
    ]
    assert sorted(by_slice) == [first, second]
    group, version, plural = JOBSETS
    body = {"propagationPolicy": "Foreground", "preconditions": {"uid": created["metadata"]["uid"]}}
    as_launcher = objects(plane.api_client(LAUNCHER, namespace))
    as_launcher.delete_namespaced_custom_object(group, version, namespace, plural, "run", body=body)
    until(lambda: not batch.list_namespaced_job(namespace).items, "the end of the Jobs")
    until(lambda: not core.list_namespaced_pod(namespace).items, "the end of the pods")


# ---- faults on the way


class Caller:
    """Asks through the proxy, once: a client's own retries would hide what the proxy does."""

    def __init__(self, plane: ControlPlane, namespace: str, proxy: ApiProxy) -> None:
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"
        self.direct = kubernetes.client.CoreV1Api(plane.admin)
        self.namespace, self.url = namespace, proxy.url
        self.pool = urllib3.PoolManager(ca_certs=str(plane.certificate), retries=False)

    def __call__(self, method: str = "GET", name: str = "") -> urllib3.BaseHTTPResponse:
        headers = {"Authorization": "Bearer admin-token", "Content-Type": "application/json"}
        body = json.dumps({"metadata": {"name": name}}) if method == "POST" else None
        return self.pool.request(method, self.url + self.path, headers=headers, body=body, timeout=10)

    def names(self) -> set[str]:
        """What the API server has, asked past the proxy."""
        found = self.direct.list_namespaced_config_map(self.namespace).items
        return {item.metadata.name for item in found} - {"kube-root-ca.crt"}


@pytest.fixture
def ask(plane: ControlPlane, namespace: str, proxy: ApiProxy) -> Caller:
    return Caller(plane, namespace, proxy)


def test_without_faults_it_changes_nothing_and_counts(ask: Caller, proxy: ApiProxy) -> None:
    assert ask("POST", "a").status == 201
    assert ask().json()["kind"] == "ConfigMapList"
    assert ask.names() == {"a"}
    assert (proxy.asked("POST", "/configmaps"), proxy.asked("GET"), proxy.asked("DELETE")) == (1, 1, 0)


def test_the_launchers_own_client_works_through_it(plane: ControlPlane, namespace: str, proxy: ApiProxy) -> None:
    core = kubernetes.client.CoreV1Api(plane.api_client(LAUNCHER, namespace, proxy.url))
    assert core.list_namespaced_pod(namespace).items == []
    assert proxy.requests == [("GET", f"/api/v1/namespaces/{namespace}/pods")]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ],
)
def test_it_refuses_as_an_api_server_does_and_asks_nobody(
    status: int, reason: str, ask: Caller, proxy: ApiProxy
) -> None:
    proxy.faults = [ApiFault("refuse", "POST", "/configmaps", status=status, headers={"Retry-After": "7"})]
    assert ask().status == 200  # another method
    answer = ask("POST", "a")
    assert (answer.status, answer.json()["kind"], answer.json()["reason"]) == (status, "Status", reason)
    assert (answer.json()["code"], answer.headers["Retry-After"]) == (status, "7")
    assert ask.names() == set()
    assert ask("POST", "a").status == 201


@pytest.mark.parametrize(("kind", "done"), [("reset", False), ("lose", True)])
def test_a_connection_ends_before_or_after_the_server_was_asked(
    kind: Any, done: bool, ask: Caller, proxy: ApiProxy
) -> None:
    proxy.faults = [ApiFault(kind, "POST")]
    with pytest.raises(urllib3.exceptions.ProtocolError):
        ask("POST", "a")
    assert ask.names() == ({"a"} if done else set())


def test_an_answer_is_cut_short(ask: Caller, proxy: ApiProxy) -> None:
    proxy.faults = [ApiFault("cut")]
    with pytest.raises(urllib3.exceptions.ProtocolError):
        ask()


def test_a_fault_is_for_the_requests_that_it_names(ask: Caller, proxy: ApiProxy) -> None:
    proxy.faults = [ApiFault("refuse", "GET|POST", r"/configmaps$", status=503, skip=1, times=2)]
    assert [ask().status for _ in range(4)] == [200, 503, 503, 200]
    proxy.faults = [ApiFault("refuse", status=503, times=0)]
    assert [ask().status for _ in range(4)] == [503] * 4
    proxy.faults = [ApiFault("refuse", status=503), ApiFault("refuse", status=429)]
    assert [ask().status for _ in range(3)] == [503, 429, 200]


def test_somebody_acts_before_and_after_the_server_is_asked(ask: Caller, proxy: ApiProxy) -> None:
    seen: list[set[str]] = []
    look = lambda: seen.append(ask.names())  # noqa: E731
    proxy.faults = [ApiFault("pass", "POST", before=look, after=look)]
    assert ask("POST", "a").status == 201
    assert seen == [set(), {"a"}]


def test_an_answer_is_slow(ask: Caller, proxy: ApiProxy) -> None:
    proxy.faults = [ApiFault("pass", delay=0.5)]
    begin = time.monotonic()
    assert ask().status == 200
    assert time.monotonic() - begin >= 0.5


def test_it_is_away_and_comes_back_at_the_same_address(ask: Caller, proxy: ApiProxy) -> None:
    assert ask().status == 200
    with proxy.away():
        for _ in range(2):  # the connection that was open, and a new one
            with pytest.raises((urllib3.exceptions.NewConnectionError, urllib3.exceptions.ProtocolError)):
                ask()
    assert ask().status == 200
