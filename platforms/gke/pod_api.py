"""The Kubernetes API from inside the trainer's pod: GET and DELETE of Jobs. Standard library only.

The trainer's image has no Kubernetes client. One connection is kept open; the pod's token is read at each call, since
the kubelet replaces it about once an hour.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from .k8s_json import Json

MOUNTED = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the pod's token, its namespace and the authority of the API server are."""

_TIMEOUT = 5.0  # seconds for connecting, and for each read
_CLOSED_WHILE_IDLE = (http.client.RemoteDisconnected, http.client.BadStatusLine, ConnectionError)


class NoAnswer(Exception):
    """The API did not answer, or not with anything useful: the state of the Job is unknown, which is no loss."""


class Refused(Exception):
    """The API answered 403: the pod's service account lacks the right."""


class PodApi:
    """GET and DELETE of batch/v1 Jobs in the pod's own namespace. Not thread-safe.

    Args:
      environ: has KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. ELASTIC_TPU_SERVICE_ACCOUNT may name a folder
        with `token`, `ca.crt` and `namespace` other than the mounted one.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._folder = Path(environ.get("ELASTIC_TPU_SERVICE_ACCOUNT", MOUNTED))
        self._connection: http.client.HTTPSConnection | None = None

    def get_job(self, name: str) -> Json | None:
        """The Job as JSON, or None if there is none.

        Raises:
          NoAnswer: no useful answer.
          Refused: no right to read Jobs.
        """
        status, answer = self._call("GET", name)
        return None if status == http.HTTPStatus.NOT_FOUND else answer

    def delete_job(self, name: str, uid: str) -> None:
        """Delete the Job with this uid, and its pods after it. Does nothing if it is gone or replaced already.

        Raises:
          NoAnswer: no useful answer.
          Refused: no right to delete Jobs.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        self._call("DELETE", name, body)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, method: str, name: str, body: Json | None = None) -> tuple[int, Json]:
        kept = self._connection is not None
        try:
            try:
                status, text = self._send(method, name, body)
            except _CLOSED_WHILE_IDLE:
                self.close()
                if not kept:
                    raise
                status, text = self._send(method, name, body)  # the server had closed the idle connection
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswer(f"{type(error).__name__}: {error}") from error
        try:
            answer = json.loads(text or b"{}")
        except ValueError as error:
            raise NoAnswer(f"HTTP {status}, and the body is no JSON") from error
        if status == http.HTTPStatus.FORBIDDEN:
            raise Refused(str(answer.get("message", "forbidden")))
        if status < 300 or status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT):
            return status, answer
        raise NoAnswer(f"HTTP {status}: {answer.get('message', '')}")

    def _send(self, method: str, name: str, body: Json | None) -> tuple[int, bytes]:
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
        # Python 3.13 refuses certificate authorities without an Authority Key Identifier, as some clusters have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        port = int(self._environ.get("KUBERNETES_SERVICE_PORT", "443"))
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)
