"""Events that a thread of its own writes, so that who tells them never waits for a storage that is away."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from ..runs.errors import ElasticTPUError

_log = logging.getLogger("elastic_tpu.trainer")


class EventQueue:
    """Hands events, in their order, to `tell` (kind, **data), which may block; one that fails is logged."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._waiting: queue.SimpleQueue[tuple[str, dict[str, object]]] = queue.SimpleQueue()
        threading.Thread(target=self._write, name="events", daemon=True).start()

    def put(self, kind: str, **data: object) -> None:
        """Queue an event."""
        self._waiting.put((kind, data))

    def _write(self) -> None:
        while True:
            kind, data = self._waiting.get()
            try:
                self._tell(kind, **data)
            except ElasticTPUError as error:
                _log.warning("%s could not be recorded: %s", kind, error)
