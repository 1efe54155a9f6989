"""A small HTTP proxy in front of a test server that fails on request: answers 429, loses an answer, cuts a body short.

Faults are queued; each is used once, by the next request that it matches. Requests are forwarded unchanged, and
every one is recorded, so that a test can also tell what was asked.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    Attributes:
      kind: ``pass`` = nothing; ``refuse`` = `status` without asking the server; ``reset`` = connection closed without
        asking it; ``lose`` = the server carries the request out and its answer is lost; ``lose-503`` = the same, but
        answered by 503; ``cut`` = half of the body arrives.
      method: only requests with this method; "" = any.
      path: only requests whose path has this in it; Google's client asks for its bucket in the background.
      status: of a refused request.
      reason: the error's reason in Google's JSON.
      before: called before anything else, to let somebody else act in between.
    """

    kind: Literal["pass", "refuse", "reset", "lose", "lose-503", "cut"]
    method: str = ""
    path: str = "/o"
    status: int = 503
    reason: str = "backendError"
    before: Callable[[], object] | None = None


@dataclass
class FaultProxy:
    """Listens on a free loopback port while used as a context manager; ``url`` is its address."""

    upstream: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def __enter__(self) -> FaultProxy:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._lock = threading.Lock()
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, method: str, path: str) -> Fault | None:
        """Record the request and return the first fault that matches it, which is then used up."""
        with self._lock:
            self.requests.append((method, path))
            for fault in self.faults:
                if fault.method in ("", method) and fault.path in path:
                    self.faults.remove(fault)
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.owner.take(self.command, self.path)
        if fault and fault.before:
            fault.before()
        if fault and fault.kind == "reset":
            return self._drop()
        if fault and fault.kind == "refuse":
            return self._refuse(fault.status, fault.reason)
        address = urlsplit(self.owner.upstream)
        upstream = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "accept-encoding")}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        if fault and fault.kind == "lose":
            return self._drop()
        if fault and fault.kind == "lose-503":
            return self._refuse(503, "backendError")
        self.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if fault and fault.kind == "cut" else data)
        if fault and fault.kind == "cut":
            self.wfile.flush()
            self._drop()
        return None

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _refuse(self, status: int, reason: str) -> None:
        message = f"injected: {reason}"
        error = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
        data = json.dumps({"error": error}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _drop(self) -> None:
        """Close so that the client sees the connection end at once."""
        self.close_connection = True
        with suppress(OSError):
            # Linger 0 sends RST instead of an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Say nothing: pytest's output is for failures."""
