"""slices.json of a run on GKE: what was asked for and made, on record before it is, and the events that go with it.

checked (the preflight passed), requested (about to create), created, releasing (about to delete), released.
"""

from __future__ import annotations

from typing import Any

from ...runs.errors import BadInput
from ...runs.record import paths
from ...runs.record.events import EventLog
from ...runs.record.run import Run
from ...runs.store import records


class SlicesRecord:
    """What is on record of a run's slices."""

    def __init__(self, run: Run, namespace: str, cluster: str) -> None:
        self._run, self._where = run, {"namespace": namespace, "cluster": cluster}
        self._events = EventLog(run.store, "gke")

    def read(self) -> dict[str, Any] | None:
        """None when there is none; a damaged one is empty: the cluster tells more than it does."""
        try:
            return self._run.read(paths.SLICES)
        except BadInput:
            return {}

    def state(self) -> str:
        """The state on record; "absent" when there is none, "" when it is damaged."""
        found = self.read()
        return "absent" if found is None else str(found.get("state", ""))

    def checked(self) -> None:
        """The preflight passed and nothing is there."""
        self._write("checked")

    def intend(self) -> None:
        """Whoever comes next knows what may be there."""
        if self.state() != "requested":
            self._write("requested")
            self._tell("slice.requested")

    def created(self, uid: str) -> None:
        """The JobSet with this uid is the run's."""
        found = self.read() or {}
        if (found.get("state"), found.get("uid")) != ("created", uid):
            self._write("created", uid=uid)

    def releasing(self, uid: str) -> None:
        """A release that breaks off after its delete is known to have been one."""
        self._write("releasing", uid=uid)

    def released(self, uid: str) -> None:
        """What had this uid is gone; what somebody has created since then stays on record."""
        found = self.read()
        state = (found or {}).get("state")
        if found is None or state == "released" or found.get("uid", uid) != uid:
            return
        if state in ("requested", "created", "releasing"):
            self._tell("slice.released")
        self._write("released")

    def _tell(self, kind: str) -> None:
        for index in range(self._run.spec.slices.count):
            self._events.write(kind, slice=index)

    def _write(self, state: str, **more: Any) -> None:
        body = {"run_id": self._run.run_id, "platform": "gke", "state": state, "wanted": self._run.spec.slices.count}
        self._run.store.put(paths.SLICES, records.dump({**body, **self._where, "slices": [], **more}))
