"""Chooses the cluster of a spec and logs in to it, again whenever the login expires. Never writes a kubeconfig.

The first of these that applies is used:
  1. `gke.kubeconfig` or `gke.context`: that kubeconfig.
  2. `gke.project`, `gke.location` and `gke.cluster`: Google's API, with the Application Default Credentials; but the
     pod's own token if this process is a pod of that very cluster.
  3. This process is a pod: its own cluster, with the pod's token.
  4. The kubeconfig of KUBECONFIG, else ~/.kube/config.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .... import __version__
from ....runs.errors import BadInput, Problem
from ....runs.extras import needed
from ....runs.spec.run_spec import Gke
from . import google_login

with needed("gke", "platform: 'gke',"):
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.config import ConfigException, incluster_config, kube_config, list_kube_config_contexts
    from kubernetes.config.exec_provider import ExecProvider

Configure = Callable[[Any], None]
"""Writes address, certificates and login into a kubernetes Configuration."""

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True)
class Surroundings:
    """Where a login may be found on this machine; injected, so that tests can replace it.

    Attributes:
      environ: environment variables.
      account: the folder with the pod's `token` and `ca.crt`.
      google: from a cluster's full name (projects/P/locations/L/clusters/C) to (credentials of Google's library, answer
        of `get_cluster`).
      metadata: a value of the machine's metadata server; None if there is no server or no such value.
    """

    environ: Mapping[str, str]
    account: Path
    google: Callable[[str], tuple[Any, Any]]
    metadata: Callable[[str], str | None]


class Client(ApiClient):  # type: ignore[misc]  # the library has no types
    """A kubernetes client that can log in again.

    Attributes:
      login: where the login comes from and how to renew it, for error messages.
    """

    def __init__(self, configure: Configure, login: str) -> None:
        self._configure, self.login = configure, login
        super().__init__(self._make())
        self.user_agent = f"elastic-tpu/{__version__}"

    def renew(self) -> None:
        """Log in again and open new connections. If that raises, the old login stays in use."""
        configuration = self._make()
        # The connection pool holds the client's and the cluster's certificates, which may be new as well.
        self.rest_client = RESTClientObject(configuration)
        self.configuration = configuration

    def _make(self) -> Any:
        configuration = Configuration()
        self._configure(configuration)
        return configuration


def api_client(gke: Gke) -> Client:
    """The client for the cluster that the spec names. Runs of one process with the same fields share it.

    Raises:
      BadInput: no cluster is named or found, or there is no login for it; names field and cure.
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
    """The real surroundings of this process."""
    return Surroundings(os.environ, Path(_ACCOUNT), google_login.ask_google, google_login.ask_metadata)


def connect(gke: Gke, around: Surroundings) -> Client:
    """As `api_client`, but a client of its own for each call."""
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
    # Resolve the current context now: changing it later must not send a renewed login to another cluster.
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
    """Raise BadInput with the reason why the login plugin gives no login.

    The library only logs such a failure and goes on without a login, so the plugin is run again.
    """
    config = kube_config.KubeConfigMerger(paths).config
    user = config["contexts"].get_with_name(context)["context"].safe_get("user")
    found = config["users"].get_with_name(user, safe=True) if user else None
    if found is None or "exec" not in found["user"]:
        return
    plugin = found["user"]["exec"]
    try:
        ExecProvider(plugin, None).run()
        reason = "it returned neither a token nor a certificate"
    except (ConfigException, OSError) as error:
        reason = str(error)
    cure = f"its login plugin {plugin['command']} failed: {reason}; install it, or log in (`gcloud auth login`)"
    raise BadInput([Problem("gke.kubeconfig", paths, cure)])


# -- a pod of the cluster -----------------------------------------------------------------------------------------


def _from_pod(around: Surroundings) -> Client:
    def configure(configuration: Any) -> None:
        # The loader reads the token again every minute, since the kubelet replaces it.
        token, certificate = (str(around.account / name) for name in ("token", "ca.crt"))
        loader = incluster_config.InClusterConfigLoader(token, certificate, environ=around.environ)
        try:
            loader.load_and_set(configuration)
        except (ConfigException, OSError) as error:
            cure = f"this pod's service account cannot be used: {error}; set automountServiceAccountToken"
            raise BadInput([Problem("gke.cluster", None, cure)]) from error

    return Client(configure, f"this pod's token ({around.account}/token) is no longer valid; restart the pod")


def _is_this_cluster(gke: Gke, around: Surroundings) -> bool:
    """Whether this pod's cluster is the one that the spec names; False if the metadata server does not tell."""
    names = ("project/project-id", "instance/attributes/cluster-location", "instance/attributes/cluster-name")
    return all(
        around.metadata(name) == wanted
        for name, wanted in zip(names, (gke.project, gke.location, gke.cluster), strict=True)
    )


# -- Google's API -------------------------------------------------------------------------------------------------


def _from_google(gke: Gke, around: Surroundings) -> Client:
    name = f"projects/{gke.project}/locations/{gke.location}/clusters/{gke.cluster}"

    def configure(configuration: Any) -> None:
        credentials, cluster = around.google(name)
        host, certificate = google_login.server_of(cluster, gke)
        configuration.host = f"https://{host}"
        if certificate:
            configuration.ssl_ca_cert = kube_config.FileOrData({"ca-data": certificate}, "ca").as_file()
        configuration.refresh_api_key_hook = google_login.token_hook(credentials)
        configuration.api_key["authorization"] = "to come"  # without a value the hook is not called

    return Client(configure, f"{google_login.LOGIN_CURE}, and let it use {name} (roles/container.viewer)")
