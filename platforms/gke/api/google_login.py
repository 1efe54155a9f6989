"""What Google's servers tell about a cluster, and the tokens for it: Google's API and the machine's metadata server."""

from __future__ import annotations

import functools
import os
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

from ....runs.errors import BadInput, Problem, Unreachable
from ....runs.extras import needed
from ....runs.spec.run_spec import Gke

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
LOGIN_CURE = "log in with `gcloud auth application-default login`, or give the pod a service account"
_SECONDS = 30.0  # timeout of a request to Google's APIs
_METADATA_SECONDS = 2.0  # timeout of a request to the metadata server


def server_of(cluster: Any, gke: Gke) -> tuple[str, str]:
    """Address and certificate authority (base64, empty for a public one) for `gke.endpoint` of a cluster. Pure.

    Args:
      cluster: the answer of Google's `get_cluster`.

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
        cure = f"cluster {gke.cluster} has no such endpoint; choose another one"
        raise BadInput([Problem("gke.endpoint", gke.endpoint, cure)])
    if gke.endpoint == "dns":
        return host, ""
    return host, cluster.master_auth.cluster_ca_certificate


def token_hook(credentials: Any) -> Callable[[Any], None]:
    """For `refresh_api_key_hook` of a kubernetes Configuration: sets a valid token before each request.

    Google's library renews a token minutes before it expires.
    """
    from google.auth.transport.requests import Request

    lock = threading.Lock()

    def refresh(configuration: Any) -> None:
        with lock:
            if not credentials.valid:
                credentials.refresh(functools.partial(Request(), timeout=_SECONDS))
            configuration.api_key["authorization"] = f"Bearer {credentials.token}"

    return refresh


def ask_google(name: str) -> tuple[Any, Any]:
    """The Application Default Credentials, and Google's description of a cluster.

    Args:
      name: projects/PROJECT/locations/LOCATION/clusters/CLUSTER.

    Raises:
      BadInput: no credentials, no such cluster, or Google refuses the request; names the cure.
      Unreachable: Google's API does not answer.
    """
    import google.auth
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    with needed("gke", "platform: 'gke',"):
        from google.cloud import container_v1
    try:
        credentials, _ = google.auth.default(scopes=SCOPES)
        return credentials, container_v1.ClusterManagerClient(credentials=credentials).get_cluster(
            name=name, timeout=_SECONDS
        )
    except auth.DefaultCredentialsError as error:
        raise BadInput([Problem("gke.cluster", name, f"no Google credentials: {error}; {LOGIN_CURE}")]) from error
    except api.NotFound as error:
        cure = f"there is no such cluster ({error.message}); correct gke.project, gke.location or gke.cluster"
        raise BadInput([Problem("gke.cluster", name, cure)]) from error
    except (api.Forbidden, api.BadRequest) as error:
        cure = f"Google refuses it: {error.message}; grant this account roles/container.viewer, or correct the names"
        raise BadInput([Problem("gke.cluster", name, cure)]) from error
    except (api.GoogleAPICallError, api.RetryError, auth.GoogleAuthError) as error:
        raise Unreachable(f"Google's API did not describe {name}: {error}; {LOGIN_CURE} if this goes on") from error


def ask_metadata(name: str) -> str | None:
    """A value of the machine's metadata server; None if there is no server or no such value."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(f"http://{host}/computeMetadata/v1/{name}", headers={"Metadata-Flavor": "Google"})
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_METADATA_SECONDS) as answer:
            return str(answer.read().decode())
    except (OSError, ValueError):
        return None
