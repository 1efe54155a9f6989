"""A real Kubernetes control plane on loopback: etcd, API server, controller manager, scheduler, the JobSet controller
with its webhooks and, if wanted, kwok, which plays nodes and pods.

    with ControlPlane(folder) as plane:
        plane.namespace("team")
        plane.tpu_pool("pool-0", "tpu-v5-lite-podslice", "4x4", nodes=4, chips=4)
        cluster = plane.api_client("elastic-tpu-launcher", "team")

RBAC and all webhooks are on. Everything listens on free ports of 127.0.0.1 and lives in `folder`; processes are stopped
by pid, and die with the process that started them, even if that is killed. The binaries come from build.sh.
"""

from __future__ import annotations

import base64
import shutil
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import kubernetes
import yaml
from elastic_tpu.tests.controlplane.binaries import directory
from elastic_tpu.tests.controlplane.commands import PLAYED, Commands, Ports
from elastic_tpu.tests.controlplane.processes import Processes

RBAC = Path(__file__).parents[2] / "deploy" / "rbac.yaml"
# Users of the token file and their groups. The JobSet controller has its own ClusterRole only, as in a cluster.
USERS = {"admin": "system:masters", "controllers": "system:masters", "kwok": "system:masters", "jobset": ""}
TPU_TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}

Document = dict[str, Any]


class ControlPlane:
    """Started and stopped as a context manager; `url`, `certificate` and `logs` are there once it is up.

    Args:
      folder: for its certificates, kubeconfigs, logs and etcd's data; the data is deleted at the end.
      kwok: whether kwok plays the nodes that `node`, `tpu_pool` and `cpu_pool` make.
      arguments: more command line arguments by component.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kwok: bool = True,
        arguments: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.logs = self.folder / "logs"
        self.binaries = directory()
        self.nodes: list[str] = []
        self._kwok, self._arguments = kwok, arguments or {}
        self._kubeconfigs = 0

    # -- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for name in ("logs", "tls", "etcd", "kubeconfig"):
            (self.folder / name).mkdir(parents=True)
        self.commands = Commands(self.folder, Ports.free())
        self.url, self.certificate, self.key = self.commands.url, self.commands.certificate, self.commands.key
        self.processes = Processes(self.folder)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process; idempotent."""
        self.processes.stop()
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def kill(self, component: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """End one component: `server` (etcd), `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `jobset`
        or `kwok`."""
        self.processes.kill(component, sig)

    def restart(self, component: str) -> None:
        """Start a component that was killed, and wait until it is ready."""
        self.processes.restart(component)
        self._until_ready(component)

    def _start(self) -> None:
        self._make_credentials()
        self._write_jobset_config()
        self._launch("server", "kube-apiserver")
        self._until_ready("kube-apiserver")
        self.admin = self.api_client()
        # Before the garbage collector starts: it looks for new kinds every 30 s, and deletes no children of one that
        # it does not know.
        self._install(self._config("crd/bases/jobset.x-k8s.io_jobsets.yaml"))
        self._install(self._jobset_role())
        self.processes.until(self._kinds_are_served, "the JobSet kind")
        self._launch("kube-controller-manager", "kube-scheduler", "jobset", *(["kwok"] if self._kwok else []))
        for component in self.processes.by_name:
            self._until_ready(component)
        self._install(self._webhooks())
        core = kubernetes.client.CoreV1Api(self.admin)
        account = lambda: core.read_namespaced_service_account("default", "default")  # noqa: E731
        self.processes.until(account, "the default service account")

    def _launch(self, *components: str) -> None:
        for component in components:
            more = self._arguments.get(component, ())
            program = str(self.binaries / component)
            self.processes.start(component, [program, *self.commands.arguments(component), *more])

    def _until_ready(self, component: str) -> None:
        url = self.commands.readiness(component)
        self.processes.until(lambda: _answers(url), component)
        if component == "jobset":
            # It says that it is ready before its webhooks are served: a JobSet created then is refused with a 404.
            urls = [hook["clientConfig"]["url"] for document in self._webhooks() for hook in document["webhooks"]]
            self.processes.until(lambda: all(map(_is_served, urls)), "JobSet's webhooks")

    def _make_credentials(self) -> None:
        make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=controlplane"
        hosts = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        files = ["-addext", hosts, "-keyout", str(self.key), "-out", str(self.certificate)]
        subprocess.run([*make.split(), *files], check=True, capture_output=True)
        tokens = "".join(f'{user}-token,{user},{user},"{group}"\n' for user, group in USERS.items())
        (self.folder / "tokens.csv").write_text(tokens)
        for user in USERS:
            self._write_kubeconfig(self.commands.kubeconfig(user), user, f"{user}-token")

    def _write_jobset_config(self) -> None:
        ports = self.commands.ports
        config = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{ports.health}"},
            "webhook": {"host": "127.0.0.1", "port": ports.webhook, "certDir": str(self.certificate.parent)},
        }
        (self.folder / "jobset.yaml").write_text(yaml.safe_dump(config))

    def _jobset_role(self) -> list[Document]:
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "jobset-manager"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "manager-role"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jobset"}],
        }
        return [*self._config("rbac/role.yaml"), binding]

    def _webhooks(self) -> Iterator[Document]:
        """JobSet's own manifests with what its release patches in: the address, and pods of JobSets only."""
        bundle = base64.b64encode(self.certificate.read_bytes()).decode()
        of_jobset = [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]
        for document in self._config("webhook/manifests.yaml"):
            for hook in document["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                url = f"https://127.0.0.1:{self.commands.ports.webhook}{path}"
                hook["clientConfig"] = {"url": url, "caBundle": bundle}
                if path.endswith("-pod"):
                    hook["objectSelector"] = {"matchExpressions": of_jobset}
            yield document

    def _kinds_are_served(self) -> bool:
        kinds = kubernetes.client.ApiextensionsV1Api(self.admin).list_custom_resource_definition().items
        return all(
            any(c.type == "Established" and c.status == "True" for c in kind.status.conditions or ()) for kind in kinds
        )

    def _config(self, name: str) -> list[Document]:
        return _documents(self.binaries / "jobset-config" / name)

    def _install(self, documents: Iterable[Document]) -> None:
        for document in documents:
            self.apply(document)

    # -- access -------------------------------------------------------------------------------------------------

    def kubeconfig(self, account: str = "admin", namespace: str = "default", server: str = "") -> Path:
        """A new kubeconfig of `admin`, or of a service account of the namespace with a token of an hour.

        `server`: another address than the API server's own, such as a proxy's.
        """
        token = "admin-token" if account == "admin" else self.token(account, namespace)
        self._kubeconfigs += 1
        path = self.folder / "kubeconfig" / f"{account}-{self._kubeconfigs}.yaml"
        self._write_kubeconfig(path, account, token, namespace, server)
        return path

    def token(self, account: str, namespace: str) -> str:
        """A token of a service account, as its pods have."""
        request = {"spec": {"expirationSeconds": 3600}}
        core = kubernetes.client.CoreV1Api(self.admin)
        answer = core.create_namespaced_service_account_token(account, namespace, request)
        return str(answer.status.token)

    def api_client(
        self, account: str = "admin", namespace: str = "default", server: str = ""
    ) -> kubernetes.client.ApiClient:
        """A client with such a kubeconfig."""
        return kubernetes.config.new_client_from_config(str(self.kubeconfig(account, namespace, server)))

    def kubectl(self, *arguments: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run kubectl as admin to its end."""
        command = [str(self.binaries / "kubectl"), f"--kubeconfig={self.commands.kubeconfig('admin')}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=timeout)

    def apply(self, document: Document) -> Document:
        """Server-side apply of one object."""
        group, _, version = document["apiVersion"].rpartition("/")
        kind, metadata = document["kind"].lower(), document["metadata"]
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        if "namespace" in metadata:
            path += f"/namespaces/{metadata['namespace']}"
        path += f"/{kind}{'es' if kind.endswith('s') else 's'}/{metadata['name']}"
        answer: Document = self.admin.call_api(
            path,
            "PATCH",
            body=document,
            response_type="object",
            auth_settings=["BearerToken"],
            header_params={"Content-Type": "application/apply-patch+yaml"},
            query_params=[("fieldManager", "tests"), ("force", "true")],
        )[0]
        return answer

    def namespace(self, name: str) -> str:
        """Make a namespace with the service accounts and Roles of deploy/rbac.yaml, and nothing else."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for document in _documents(RBAC):
            document["metadata"]["namespace"] = name
            for subject in document.get("subjects", ()):
                subject["namespace"] = name
            self.apply(document)
        return name

    def _write_kubeconfig(
        self, path: Path, user: str, token: str, namespace: str = "default", server: str = ""
    ) -> None:
        cluster = {"server": server or self.url, "certificate-authority": str(self.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "plane", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": user, "namespace": namespace}}],
            "current-context": "plane",
        }
        path.write_text(yaml.safe_dump(config))

    # -- hardware -----------------------------------------------------------------------------------------------

    def node(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] | None = None,
        *,
        played: bool = True,
        taints: Sequence[Document] = (),
    ) -> str:
        """Make a node; kwok plays it, unless somebody else is to (`played`)."""
        amounts = {"cpu": "208", "memory": "400Gi", "pods": "110", **(capacity or {})}
        system = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        body = {
            "metadata": {"name": name, "labels": {**system, **(PLAYED if played else {}), **(labels or {})}},
            "spec": {"taints": list(taints)},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        kubernetes.client.CoreV1Api(self.admin).create_node(body)
        self.nodes.append(name)
        return name

    def tpu_pool(self, name: str, accelerator: str, topology: str, nodes: int, chips: int, **labels: str) -> list[str]:
        """One slice as GKE has it, a node pool with a node a VM; the nodes' names."""
        of_pool = {
            "cloud.google.com/gke-nodepool": name,
            "cloud.google.com/gke-tpu-accelerator": accelerator,
            "cloud.google.com/gke-tpu-topology": topology,
            **labels,
        }
        amounts = {"google.com/tpu": str(chips)}
        return [self.node(f"{name}-{i}", of_pool, amounts, taints=[TPU_TAINT]) for i in range(nodes)]

    def cpu_pool(self, name: str, nodes: int = 1) -> list[str]:
        """A node pool without accelerators, for heads and plain Jobs; the nodes' names."""
        of_pool = {"cloud.google.com/gke-nodepool": name}
        return [self.node(f"{name}-{i}", of_pool, {"cpu": "64", "memory": "256Gi"}) for i in range(nodes)]

    def silence(self, node: str) -> None:
        """Let a node that kwok plays stop answering, as a dead VM does; its pods stay as they are."""
        change = {"metadata": {"labels": dict.fromkeys(PLAYED)}}
        kubernetes.client.CoreV1Api(self.admin).patch_node(node, change)

    def remove(self, node: str) -> None:
        """Delete the node's object, if it is there."""
        with suppress(kubernetes.client.ApiException):
            kubernetes.client.CoreV1Api(self.admin).delete_node(node)
        if node in self.nodes:
            self.nodes.remove(node)


def _documents(path: Path) -> list[Document]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # JobSet's CRD is 1 MB
    return [document for document in yaml.load_all(path.read_text(), loader) if document]


def _answers(url: str) -> bool:
    context = ssl._create_unverified_context() if url.startswith("https") else None
    with urllib.request.urlopen(url, context=context, timeout=2) as answer:
        return bool(answer.status == 200)


def _is_served(url: str) -> bool:
    """Whether a webhook is there; an empty review is refused in the answer's body, an unknown path with 404."""
    request = urllib.request.Request(url, data=b"{}", headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=2) as answer:
        return bool(answer.status == 200)
