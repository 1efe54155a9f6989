"""An API server whose answers a test writes itself: for what a real one gives too rarely."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    token: str
    body: Any


@dataclass(frozen=True)
class Answer:
    """`drop`: the connection breaks instead; `half`: it breaks within the body; `late`: an event is waited for."""

    body: object = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    half: bool = False
    late: threading.Event | None = None


def status(code: int, reason: str = "", message: str = "", **details: str) -> Answer:
    """How Kubernetes words an error."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return Answer({**body, "message": message or reason, "details": details}, code)


class ScriptedApi:
    """Gives the next of `answers`, and the last one again and again; or what `decide` says."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.decide: Callable[[Request], Answer] | None = None
        self.requests: list[Request] = []
        self.url = ""
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            if self.decide:
                return self.decide(request)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def __len__(self) -> int:
        return len(self.requests)


@contextmanager
def serving(api: ScriptedApi, certificate: Path | None = None, key: Path | None = None) -> Iterator[ScriptedApi]:
    """Serve it on a free loopback port, with TLS if there is a certificate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            token = self.headers.get("Authorization", "")
            body = json.loads(data) if data else None
            answer = api.answer(Request(self.command, parts.path, query, token, body))
            if answer.late:
                answer.late.wait(60)
            if answer.drop:
                return self.hang_up()
            out = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            with suppress(OSError):  # whoever asked may be tired of waiting
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(out)))
                self.end_headers()
                self.wfile.write(out[: len(out) // 2] if answer.half else out)
            return self.hang_up() if answer.half else None

        do_GET = do_POST = do_DELETE = serve

        def hang_up(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.wfile.flush()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate and key:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    api.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
