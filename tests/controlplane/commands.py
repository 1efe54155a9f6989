"""How each component of the control plane is started and where it says that it is ready."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastic_tpu.tests.tools.ports import free_ports

HERE = Path(__file__).parent
# What Jobs, their pods, nodes and namespaces need, and nothing else.
CONTROLLERS = (
    "job-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "pod-garbage-collector-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
    "endpointslice-controller",
    "root-ca-certificate-publisher-controller",
)
PLAYED = {"kwok.x-k8s.io/node": "fake"}  # kwok plays the nodes with this label; one that loses it falls silent


@dataclass(frozen=True)
class Ports:
    """Where the components listen on 127.0.0.1."""

    etcd: int
    peer: int
    api: int
    manager: int
    scheduler: int
    webhook: int
    health: int
    kwok: int

    @classmethod
    def free(cls) -> Ports:
        return cls(*free_ports(8))


@dataclass(frozen=True)
class Commands:
    """The command lines of a control plane in `folder`; kubeconfigs are at `kubeconfig(user)`."""

    folder: Path
    ports: Ports

    @property
    def certificate(self) -> Path:
        """One self-signed certificate for all: authority, every server, service account tokens."""
        return self.folder / "tls" / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls" / "tls.key"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.ports.api}"

    def kubeconfig(self, user: str) -> Path:
        return self.folder / "kubeconfig" / f"{user}.yaml"

    def arguments(self, component: str) -> list[str]:
        """Its command line without the program."""
        return {
            "server": self._etcd,
            "kube-apiserver": self._api_server,
            "kube-controller-manager": self._controller_manager,
            "kube-scheduler": self._scheduler,
            "jobset": self._jobset,
            "kwok": self._kwok,
        }[component]()

    def readiness(self, component: str) -> str:
        """The URL that answers 200 once it is ready."""
        ports = self.ports
        return {
            "server": f"http://127.0.0.1:{ports.etcd}/readyz",
            "kube-apiserver": f"{self.url}/readyz",
            "kube-controller-manager": f"https://127.0.0.1:{ports.manager}/healthz",
            "kube-scheduler": f"https://127.0.0.1:{ports.scheduler}/readyz",
            "jobset": f"http://127.0.0.1:{ports.health}/readyz",
            "kwok": f"https://127.0.0.1:{ports.kwok}/healthz",
        }[component]

    def _etcd(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.ports.etcd, self.ports.peer))
        return [
            "--name=default",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=4294967296",
            "--log-level=warn",
        ]

    def _api_server(self) -> list[str]:
        return [
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.ports.api}",
            f"--tls-cert-file={self.certificate}",
            f"--tls-private-key-file={self.key}",
            f"--cert-dir={self.folder}/tls",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.key}",
            f"--service-account-signing-key-file={self.key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",  # a loopback address is refused as an endpoint
            "--allow-privileged=true",
            "--shutdown-delay-duration=0s",
            # For `kubectl logs`, which the API server asks the node for.
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={self.certificate}",
            f"--kubelet-client-key={self.key}",
        ]

    def _controller(self, port: int) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig('controllers')}",
            f"--cert-dir={self.folder}/tls",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--leader-elect=false",
            "--authentication-skip-lookup=true",
            "--kube-api-qps=500",
            "--kube-api-burst=500",
        ]

    def _controller_manager(self) -> list[str]:
        return [
            *self._controller(self.ports.manager),
            f"--controllers={','.join(CONTROLLERS)}",
            f"--service-account-private-key-file={self.key}",
            f"--root-ca-file={self.certificate}",
        ]

    def _scheduler(self) -> list[str]:
        return self._controller(self.ports.scheduler)

    def _jobset(self) -> list[str]:
        config, kubeconfig = self.folder / "jobset.yaml", self.kubeconfig("jobset")
        return [f"--config={config}", f"--kubeconfig={kubeconfig}", "--metrics-bind-address=0"]

    def _kwok(self) -> list[str]:
        ((label, value),) = PLAYED.items()
        return [
            f"--kubeconfig={self.kubeconfig('kwok')}",
            f"--config={HERE / 'kwok_stages.yaml'}",
            f"--manage-nodes-with-label-selector={label}={value}",
            "--cidr=10.244.0.0/16",
            "--node-ip=127.0.0.1",
            f"--node-port={self.ports.kwok}",
            f"--server-address=127.0.0.1:{self.ports.kwok}",
            f"--tls-cert-file={self.certificate}",
            f"--tls-private-key-file={self.key}",
            "--node-lease-duration-seconds=40",
            "-v=WARN",
        ]
