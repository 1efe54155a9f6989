"""A watch of all pods that goes on after the API server was away, and misses nothing meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from elastic_tpu.tests.controlplane.container import Json
from kubernetes.client import CoreV1Api
from kubernetes.client.rest import ApiException
from urllib3.exceptions import HTTPError

Take = Callable[[Json, bool], None]  # (object, whether it is gone)


class PodWatch:
    """Calls `take` from a thread of its own, from the start until `close`."""

    def __init__(self, core: CoreV1Api, take: Take, problems: list[BaseException]) -> None:
        self._core, self._take, self._problems = core, take, problems
        self._known: dict[str, Json] = {}  # by uid
        self._stream: Any = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._stream is not None:
            with suppress(Exception):  # whatever state it is in
                self._stream.shutdown()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._list()
                self._follow()
            except (ApiException, HTTPError, OSError):  # the server is away
                self._closing.wait(0.2)
            except Exception as error:
                if self._closing.is_set():  # what a socket that is shut down gives last is not decrypted
                    return
                self._problems.append(error)
                raise

    def _list(self) -> None:
        answer = json.loads(self._core.list_pod_for_all_namespaces(_preload_content=False).data)
        there = {obj["metadata"]["uid"]: obj for obj in answer["items"]}
        for uid in self._known.keys() - there.keys():
            self._tell(self._known[uid], gone=True)
        for obj in there.values():
            self._tell(obj, gone=False)
        self._version = answer["metadata"]["resourceVersion"]

    def _follow(self) -> None:
        """Until the stream ends: by a timeout, by an error such as a version that is too old, by `close`."""
        self._stream = self._core.list_pod_for_all_namespaces(
            watch=True, resource_version=self._version, timeout_seconds=300, _preload_content=False
        )
        rest = b""
        for chunk in self._stream.stream(amt=None, decode_content=False):
            *lines, rest = (rest + chunk).split(b"\n")
            for event in map(json.loads, lines):
                if event["type"] == "ERROR" or self._closing.is_set():
                    return
                self._tell(event["object"], gone=event["type"] == "DELETED")

    def _tell(self, obj: Json, gone: bool) -> None:
        uid = obj["metadata"]["uid"]
        if gone:
            self._known.pop(uid, None)
        else:
            self._known[uid] = obj
        self._take(obj, gone)
