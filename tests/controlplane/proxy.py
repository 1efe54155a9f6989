"""The fault-injecting proxy in front of an API server: TLS on both sides, and errors as Kubernetes words them.

    with ApiProxy(plane.url, certificate=plane.certificate, key=plane.key) as proxy:
        client = plane.api_client("elastic-tpu-launcher", "team", server=proxy.url)
        proxy.faults = [ApiFault("lose", "POST", "/jobsets")]  # carried out, but the launcher does not hear of it

See tests/tools/fault_proxy.py for what a fault can do.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elastic_tpu.tests.tools.fault_proxy import Fault, FaultProxy

REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True)
class ApiFault(Fault):
    """A fault of any path; an empty `reason` is the one that goes with `status`."""

    path: str = ""
    reason: str = ""


@dataclass
class ApiProxy(FaultProxy):
    """Serves TLS with the certificate and key of the API server at `upstream`."""

    certificate: Path = field(kw_only=True)
    key: Path = field(kw_only=True)

    scheme = "https"

    def connection(self) -> http.client.HTTPConnection:
        address = urlsplit(self.upstream)
        trust = ssl.create_default_context(cafile=str(self.certificate))
        return http.client.HTTPSConnection(address.hostname or "", address.port, timeout=30, context=trust)

    def listener(self, plain: socket.socket) -> socket.socket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        # The handshake is the first read's, in the connection's own thread: a slow client does not keep others out.
        return context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    def refusal(self, status: int, reason: str) -> dict[str, Any]:
        reason = reason or REASONS.get(status, "")
        message = f"injected: {reason}"
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": reason,
            "message": message,
            "code": status,
        }

    def asked(self, method: str, path: str = "") -> int:
        """How many requests with this method had this in their path."""
        return sum(m == method and path in p for m, p in self.requests)
