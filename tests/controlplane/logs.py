"""The part of a kubelet's server that `kubectl logs` needs: `/containerLogs/<namespace>/<pod>/<container>`."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from elastic_tpu.tests.controlplane.container import Container

Find = Callable[[str, str, str], Container | None]
_KNOWN = {"follow", "previous", "tailLines", "limitBytes"}


class LogServer:
    """Serves the logs of the containers that `find(namespace, pod, container)` knows, on a free loopback port."""

    def __init__(self, find: Find, certificate: Path, key: Path) -> None:
        class Handler(_Handler):
            pass

        Handler.find = staticmethod(find)
        Handler.closing = self._closing = threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # The handshake is left to the request's own thread: a client that says nothing must not hold up the others.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    find: Find
    closing: threading.Event

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        options, place = dict(parse_qsl(url.query)), url.path.strip("/").split("/")
        if len(place) != 4 or place[0] != "containerLogs" or options.keys() - _KNOWN:
            self.send_error(501, f"a kubelet of processes does not serve {self.path}")
            return
        container = self.find(place[1], place[2], place[3])
        start = container.starts - (options.get("previous") == "true") if container else 0
        if container is None or start < 1:
            self.send_error(404, f"no log of {'/'.join(place[1:])}")
            return
        self.send_response(200)
        self.end_headers()
        try:
            self._write(container, start, options)
        except OSError:
            return  # the reader went away

    def _write(self, container: Container, start: int, options: dict[str, str]) -> None:
        with container.log(start).open("rb") as log:
            text = log.read()
            if tail := options.get("tailLines"):
                text = b"".join(text.splitlines(keepends=True)[-int(tail) :] if int(tail) else [])
            self.wfile.write(text[: int(options.get("limitBytes", len(text)))])
            follow = options.get("follow") == "true"
            while follow and not self.closing.is_set():
                follow = container.running and container.starts == start  # asked before the last read
                if more := log.read():
                    self.wfile.write(more)
                elif follow:
                    time.sleep(0.05)

    def log_message(self, *args: object) -> None:
        del args
