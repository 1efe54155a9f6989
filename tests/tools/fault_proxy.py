"""A small HTTP proxy in front of a test server that fails on request: answers 429, loses an answer, cuts a body short.

Faults are queued; each is used once, unless it says otherwise, by the next request that it matches. Requests are
forwarded unchanged, and every one is recorded, so that a test can also tell what was asked. Answers are forwarded
whole, so one that never ends (a watch) does not get through.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from elastic_tpu.tests.tools.ports import free_ports


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    Attributes:
      kind: ``pass`` = nothing; ``refuse`` = `status` without asking the server; ``reset`` = connection closed without
        asking it; ``lose`` = the server carries the request out and its answer is lost; ``lose-503`` = the same, but
        answered by 503; ``cut`` = half of the body arrives.
      method: only requests with this method, a regular expression; "" = any.
      path: only requests whose path with its query has this in it, a regular expression; Google's client asks for its
        bucket in the background.
      body: only requests whose body has this in it; the name of an object that is written stands there.
      status: of a refused request.
      reason: the error's reason in the answer's JSON.
      headers: more headers of a refusal, such as Retry-After.
      skip: how many matching requests pass before it begins.
      times: how many requests it is used for; 0 = all that follow.
      delay: seconds before anything else.
      before: called before anything else, to let somebody else act in between.
      after: called when the server has answered and the client has not heard.
    """

    kind: Literal["pass", "refuse", "reset", "lose", "lose-503", "cut"]
    method: str = ""
    path: str = "/o"
    body: bytes = b""
    status: int = 503
    reason: str = "backendError"
    headers: Mapping[str, str] = field(default_factory=dict)
    skip: int = 0
    times: int = 1
    delay: float = 0.0
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


@dataclass
class FaultProxy:
    """Listens on a free loopback port while used as a context manager; ``url`` is its address."""

    upstream: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    carried_out: list[tuple[str, str, int]] = field(default_factory=list)  # by the server, with its answer's status

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._hits: dict[int, tuple[Fault, int]] = {}  # by id; holds the fault, so that no other gets its id
        self._connections: set[socket.socket] = set()
        self._listen(free_ports(1)[0])
        self.url = f"{self.scheme}://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    scheme = "http"

    def connection(self) -> http.client.HTTPConnection:
        """A new connection to the server."""
        address = urlsplit(self.upstream)
        return http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)

    def listener(self, plain: socket.socket) -> socket.socket:
        """The socket that clients connect to."""
        return plain

    def refusal(self, status: int, reason: str) -> dict[str, Any]:
        """The JSON of an error answer, here Google's."""
        message = f"injected: {reason}"
        return {"error": {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}}

    @contextmanager
    def away(self) -> Iterator[None]:
        """Be gone for a while: connections end, and new ones are refused."""
        port = self._server.server_port
        self.__exit__()
        with self._lock:
            for connection in self._connections:
                reset(connection)
        try:
            yield
        finally:
            self._listen(port)

    def take(self, method: str, path: str, body: bytes = b"") -> Fault | None:
        """Record the request and return the first fault that matches it; the last time, it is used up."""
        with self._lock:
            self.requests.append((method, path))
            for fault in self.faults:
                if not (re.fullmatch(fault.method or ".*", method) and re.search(fault.path, path)):
                    continue
                if fault.body not in body:
                    continue
                hits = self._hits.get(id(fault), (fault, 0))[1] + 1
                self._hits[id(fault)] = (fault, hits)
                if hits <= fault.skip:
                    continue
                if hits == fault.skip + fault.times:
                    self.faults.remove(fault)
                    del self._hits[id(fault)]
                return fault
        return None

    def _listen(self, port: int) -> None:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", port), Handler)
        self._server.socket = self.listener(self._server.socket)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()


def reset(connection: socket.socket) -> None:
    """End a connection so that its client sees it at once."""
    with suppress(OSError):
        # Linger 0 sends RST instead of an orderly end. Past TLS, whose own state belongs to the thread that reads.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients that vanish are what tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def setup(self) -> None:
        super().setup()
        with self.owner._lock:
            self.owner._connections.add(self.connection)

    def finish(self) -> None:
        with self.owner._lock:
            self.owner._connections.discard(self.connection)
        super().finish()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.owner.take(self.command, self.path, body)
        if fault and fault.delay:
            time.sleep(fault.delay)
        if fault and fault.before:
            fault.before()
        if fault and fault.kind == "reset":
            return self._drop()
        if fault and fault.kind == "refuse":
            return self._refuse(fault.status, fault.reason, fault.headers)
        upstream = self.owner.connection()
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "accept-encoding")}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        data = answer.read()
        self.owner.carried_out.append((self.command, self.path, answer.status))
        upstream.close()
        if fault and fault.after:
            fault.after()
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

    def _refuse(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(self.owner.refusal(status, reason)).encode()
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _drop(self) -> None:
        self.close_connection = True
        reset(self.connection)

    def log_message(self, *_: object) -> None:
        """Say nothing: pytest's output is for failures."""
