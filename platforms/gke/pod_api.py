"""The cluster's API from inside a pod, with the pod's own token: two verbs, standard library only.

The trainer's image has no Kubernetes client, and needs none for one kind of object. One connection is kept open; the
token is read at each call, since the kubelet replaces it about once an hour.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MOUNTED = "/var/run/secrets/kubernetes.io/serviceaccount"
_AGAIN_SAFELY = (http.client.RemoteDisconnected, http.client.BadStatusLine, ConnectionError)


class Away(Exception):
    """No answer, or none that says anything: unknown, not lost."""


class Refused(Exception):
    """The service account lacks the right."""


class PodApi:
    """GET and DELETE of batch/v1 Jobs in the pod's own namespace. For one thread.

    Args:
      environ: where KUBERNETES_SERVICE_HOST and _PORT are, and ELASTIC_TPU_SERVICE_ACCOUNT, which may name another
        folder than the mounted one for token, ca.crt and namespace.
      timeout: seconds that connecting, and each wait for an answer, may take.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, timeout: float = 5.0) -> None:
        self._environ, self._timeout = environ, timeout
        self._folder = Path(environ.get("ELASTIC_TPU_SERVICE_ACCOUNT", _MOUNTED))
        self._connection: http.client.HTTPSConnection | None = None

    def get_job(self, name: str) -> dict[str, Any] | None:
        """The Job, or None if there is none.

        Raises:
          Away, Refused.
        """
        status, answer = self._call("GET", name)
        return None if status == http.HTTPStatus.NOT_FOUND else answer

    def delete_job(self, name: str, uid: str) -> None:
        """Delete this very Job, its pods after it; one that is gone or replaced already is as good as deleted.

        Raises:
          Away, Refused.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        self._call("DELETE", name, body)

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, method: str, name: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        kept = self._connection is not None
        try:
            try:
                status, text = self._send(method, name, body)
            except _AGAIN_SAFELY:
                self.close()
                if not kept:
                    raise
                status, text = self._send(method, name, body)  # the server had let go of an idle connection
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Away(f"{type(error).__name__}: {error}") from error
        try:
            answer = json.loads(text or b"{}")
        except ValueError as error:
            raise Away(f"HTTP {status}, and no JSON") from error
        if status == http.HTTPStatus.FORBIDDEN:
            raise Refused(str(answer.get("message", "forbidden")))
        if status < 300 or status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT):
            return status, answer
        raise Away(f"HTTP {status}: {answer.get('message', '')}")

    def _send(self, method: str, name: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        namespace, token = self._mounted("namespace"), self._mounted("token")
        if self._connection is None:
            self._connection = self._connect()
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def _mounted(self, name: str) -> str:
        return (self._folder / name).read_text().strip()

    def _connect(self) -> http.client.HTTPSConnection:
        host = self._environ.get("KUBERNETES_SERVICE_HOST")
        if not host:
            raise OSError("KUBERNETES_SERVICE_HOST is not set: this process is not in a pod")
        context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        # Python 3.13 refuses authorities without an Authority Key Identifier; clusters have such.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        port = int(self._environ.get("KUBERNETES_SERVICE_PORT", "443"))
        return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=context)
