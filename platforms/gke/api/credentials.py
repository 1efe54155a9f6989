"""The login to a cluster, renewed for as long as a run lives; no file is ever written.

The cluster is, in this order: that of `gke.kubeconfig` or `gke.context`; the one that `gke.project`, `location` and
`cluster` name, through Google's API and the Application Default Credentials, unless this process is a pod of that very
cluster; the one that this process is a pod of; the one that KUBECONFIG or ~/.kube/config point at.
"""

from __future__ import annotations

import functools
import os
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .... import __version__
from ....runs.errors import BadInput, Problem, Unreachable
from ....runs.spec.run_spec import Gke


def _no_extra(error: ImportError) -> BadInput:
    return BadInput([Problem("platform", "gke", f"needs `pip install 'elastic-tpu[gke]'` ({error})")])


try:
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.config import ConfigException, incluster_config, kube_config, list_kube_config_contexts
    from kubernetes.config.exec_provider import ExecProvider
except ImportError as error:
    raise _no_extra(error) from error

Configure = Callable[[Any], None]

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_GOOGLE_LOGIN = "log in with `gcloud auth application-default login`, or give the pod a service account"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_SECONDS = 30.0  # for an answer of Google's APIs
_METADATA_SECONDS = 2.0


@dataclass(frozen=True)
class Surroundings:
    """What this process finds around itself.

    Attributes:
      account: the folder with a pod's token and certificate.
      google: (credentials of Google's library, answer of `get_cluster`) for a cluster's full name.
      metadata: a value of the machine's metadata server; None when there is none.
    """

    environ: Mapping[str, str]
    account: Path
    google: Callable[[str], tuple[Any, Any]]
    metadata: Callable[[str], str | None]


class Client(ApiClient):  # type: ignore[misc]  # the library has no types
    """The kubernetes client whose login can be made anew.

    Attributes:
      login: where the login came from and how a person renews it.
    """

    def __init__(self, configure: Configure, login: str) -> None:
        self._configure, self.login = configure, login
        super().__init__(self._make())
        self.user_agent = f"elastic-tpu/{__version__}"

    def renew(self) -> None:
        """Log in again, with new connections. On failure the old login stays."""
        configuration = self._make()
        # A pool has the client's and the cluster's certificates in it, which may be new as well.
        self.rest_client = RESTClientObject(configuration)
        self.configuration = configuration

    def _make(self) -> Any:
        configuration = Configuration()
        self._configure(configuration)
        return configuration


def api_client(gke: Gke) -> Client:
    """The client for the cluster that the spec names; all runs of a process share it.

    Raises:
      BadInput: no cluster is named or found, or there is no login for it.
      Unreachable: Google's API does not answer.
    """
    return _shared(gke.kubeconfig, gke.context, gke.project, gke.location, gke.cluster, gke.endpoint)


@functools.cache
def _shared(*fields: str | None) -> Client:
    keys = ("kubeconfig", "context", "project", "location", "cluster", "endpoint")
    return connect(Gke.model_validate(dict(zip(keys, fields, strict=True))), surroundings())


# Two processes on one connection would read each other's answers.
os.register_at_fork(after_in_child=_shared.cache_clear)


def surroundings() -> Surroundings:
    """The real ones."""
    return Surroundings(os.environ, Path(_ACCOUNT), _ask_google, _ask_metadata)


def connect(gke: Gke, around: Surroundings) -> Client:
    """As `api_client`, for one caller."""
    if gke.kubeconfig or gke.context:
        return _from_kubeconfig(gke, around)
    in_pod = "KUBERNETES_SERVICE_HOST" in around.environ and (around.account / "token").is_file()
    if gke.cluster:
        if missing := [field for field in ("project", "location") if not getattr(gke, field)]:
            raise BadInput([Problem(f"gke.{field}", None, "is missing; gke.cluster needs it") for field in missing])
        if not (in_pod and _is_this_cluster(gke, around)):
            return _from_google(gke, around)
    if in_pod:
        return _from_pod(around)
    return _from_kubeconfig(gke, around)


# -- a kubeconfig -------------------------------------------------------------------------------------------------


def _from_kubeconfig(gke: Gke, around: Surroundings) -> Client:
    paths = gke.kubeconfig or around.environ.get("KUBECONFIG") or "~/.kube/config"
    field = "gke.kubeconfig" if gke.kubeconfig else "gke.context" if gke.context else "gke.cluster"
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        if field == "gke.cluster":
            cure = (
                "no cluster is named or found; set gke.project, gke.location and gke.cluster, or gke.kubeconfig, or "
                f"log in with `gcloud container clusters get-credentials` ({paths} is not there)"
            )
            raise BadInput([Problem(field, None, cure)])
        raise BadInput([Problem("gke.kubeconfig", paths, "there is no such file; correct the path")])
    # The context is settled now: whoever changes the current one later does not send this run to another cluster.
    context = gke.context or _current_context(paths)
    login = f"log in again for context {context!r} of {paths} (e.g. `gcloud auth login`)"
    return Client(functools.partial(_load_kubeconfig, paths=paths, context=context), login)


def _current_context(paths: str) -> str:
    try:
        return str(list_kube_config_contexts(paths)[1]["name"])
    except Exception as error:  # YAML's errors and the library's
        cure = f"cannot be read as a kubeconfig with a current context ({error}); correct it, or set gke.context"
        raise BadInput([Problem("gke.kubeconfig", paths, cure)]) from error


def _load_kubeconfig(configuration: Any, *, paths: str, context: str) -> None:
    try:
        known = [str(item["name"]) for item in list_kube_config_contexts(paths)[0]]
        if context not in known:
            raise BadInput([Problem("gke.context", context, f"{paths} has no such context, but {', '.join(known)}")])
        kube_config.load_kube_config(paths, context, configuration, persist_config=False)
        if not configuration.api_key and not configuration.cert_file:
            _explain_plugin(paths, context)
    except BadInput:
        raise
    except Exception as error:  # YAML's errors, the library's, those of files it names
        raise BadInput([Problem("gke.kubeconfig", paths, f"cannot be used: {error}; correct it")]) from error


def _explain_plugin(paths: str, context: str) -> None:
    """The library goes on without a login when a plugin fails; run it again to see why."""
    config = kube_config.KubeConfigMerger(paths).config
    user = config["contexts"].get_with_name(context)["context"].safe_get("user")
    found = config["users"].get_with_name(user, safe=True) if user else None
    if found is None or "exec" not in found["user"]:
        return
    plugin = found["user"]["exec"]
    try:
        ExecProvider(plugin, None).run()
        reason = "it gives neither a token nor a certificate"
    except (ConfigException, OSError) as error:
        reason = str(error)
    cure = f"its login plugin {plugin['command']} failed: {reason}; install it, or log in (`gcloud auth login`)"
    raise BadInput([Problem("gke.kubeconfig", paths, cure)])


# -- a pod of the cluster -----------------------------------------------------------------------------------------


def _from_pod(around: Surroundings) -> Client:
    def configure(configuration: Any) -> None:
        # Reads the token again every minute: the kubelet replaces it.
        token, certificate = (str(around.account / name) for name in ("token", "ca.crt"))
        loader = incluster_config.InClusterConfigLoader(token, certificate, environ=around.environ)
        try:
            loader.load_and_set(configuration)
        except (ConfigException, OSError) as error:
            cure = f"this pod's service account cannot be used: {error}; set automountServiceAccountToken"
            raise BadInput([Problem("gke.cluster", None, cure)]) from error

    return Client(configure, f"this pod's token ({around.account}/token) is not valid any more; start the pod again")


def _is_this_cluster(gke: Gke, around: Surroundings) -> bool:
    """Whether the pod's cluster is the one that the spec names; a pod that cannot tell goes through Google's API."""
    names = ("project/project-id", "instance/attributes/cluster-location", "instance/attributes/cluster-name")
    return all(
        around.metadata(name) == wanted
        for name, wanted in zip(names, (gke.project, gke.location, gke.cluster), strict=True)
    )


def _ask_metadata(name: str) -> str | None:
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(f"http://{host}/computeMetadata/v1/{name}", headers={"Metadata-Flavor": "Google"})
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_METADATA_SECONDS) as answer:
            return str(answer.read().decode())
    except (OSError, ValueError):
        return None


# -- Google's API -------------------------------------------------------------------------------------------------


def _from_google(gke: Gke, around: Surroundings) -> Client:
    name = f"projects/{gke.project}/locations/{gke.location}/clusters/{gke.cluster}"

    def configure(configuration: Any) -> None:
        credentials, cluster = around.google(name)
        host, certificate = server_of(cluster, gke)
        configuration.host = f"https://{host}"
        if certificate:
            configuration.ssl_ca_cert = kube_config.FileOrData({"ca-data": certificate}, "ca").as_file()
        configuration.refresh_api_key_hook = _token_of(credentials)
        configuration.api_key["authorization"] = "to come"  # without one the hook is not asked

    return Client(configure, f"{_GOOGLE_LOGIN}, and let it use {name} (roles/container.viewer)")


def server_of(cluster: Any, gke: Gke) -> tuple[str, str]:
    """Address and certificate authority (base64; empty: a public one) of a cluster as Google describes it. Pure.

    Raises:
      BadInput: the cluster has no such endpoint.
    """
    endpoints = cluster.control_plane_endpoints_config
    addresses = endpoints.ip_endpoints_config
    host = {
        "public": addresses.public_endpoint or cluster.private_cluster_config.public_endpoint or cluster.endpoint,
        "private": addresses.private_endpoint or cluster.private_cluster_config.private_endpoint,
        "dns": endpoints.dns_endpoint_config.endpoint,
    }[gke.endpoint]
    if not host:
        raise BadInput([Problem("gke.endpoint", gke.endpoint, f"cluster {gke.cluster} has none; choose another one")])
    if gke.endpoint == "dns":
        return host, ""
    return host, cluster.master_auth.cluster_ca_certificate


def _token_of(credentials: Any) -> Configure:
    """Sets a valid token before each request; Google's library renews it minutes before it ends."""
    from google.auth.transport.requests import Request

    lock = threading.Lock()

    def refresh(configuration: Any) -> None:
        with lock:
            if not credentials.valid:
                credentials.refresh(functools.partial(Request(), timeout=_SECONDS))
            configuration.api_key["authorization"] = f"Bearer {credentials.token}"

    return refresh


def _ask_google(name: str) -> tuple[Any, Any]:
    import google.auth
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    try:
        from google.cloud import container_v1
    except ImportError as error:
        raise _no_extra(error) from error
    try:
        credentials, _ = google.auth.default(scopes=SCOPES)
        return credentials, container_v1.ClusterManagerClient(credentials=credentials).get_cluster(
            name=name, timeout=_SECONDS
        )
    except auth.DefaultCredentialsError as error:
        raise BadInput([Problem("gke.cluster", name, f"no Google credentials: {error}; {_GOOGLE_LOGIN}")]) from error
    except api.NotFound as error:
        cure = f"there is no such cluster ({error.message}); correct gke.project, gke.location or gke.cluster"
        raise BadInput([Problem("gke.cluster", name, cure)]) from error
    except (api.Forbidden, api.BadRequest) as error:
        cure = f"Google refuses it: {error.message}; grant this account roles/container.viewer, or correct the names"
        raise BadInput([Problem("gke.cluster", name, cure)]) from error
    except (api.GoogleAPICallError, api.RetryError, auth.GoogleAuthError) as error:
        raise Unreachable(f"Google's API did not describe {name}: {error}; {_GOOGLE_LOGIN} if this goes on") from error
