"""slices.json of a run on GKE, and the slice events: each state is written before the call to the cluster that follows.

States: checked (the preflight passed), requested (the JobSet is about to be created), created, releasing (it is about
to be deleted), released.
"""

from __future__ import annotations

from typing import Any

from ...runs.errors import BadInput
from ...runs.record import paths
from ...runs.record.events import EventLog
from ...runs.record.run import Run, attempts_of
from ...runs.record.slices import read_slices
from ...runs.store import records


class SlicesRecord:
    """Reads and writes slices.json of one run.

    Args:
      namespace, cluster: where the JobSet goes; `cluster` is the address of the API server. Written as they are.
    """

    def __init__(self, run: Run, namespace: str, cluster: str) -> None:
        self._run, self._where = run, {"namespace": namespace, "cluster": cluster}
        self._events = EventLog(run.store, "gke")

    def read(self) -> dict[str, Any] | None:
        """The record; None if there is none, empty if it is damaged: then the cluster alone tells what there is."""
        try:
            return read_slices(self._run)
        except BadInput:
            return {}

    def state(self) -> str:
        """The state on record; "absent" if there is no record, "" if it is damaged."""
        found = self.read()
        return "absent" if found is None else str(found.get("state", ""))

    def uid(self) -> str:
        """Of the JobSet on record; empty if there is none."""
        return str((self.read() or {}).get("uid", ""))

    def checked(self) -> None:
        """Write: the preflight passed, and the run has no JobSet."""
        self._write("checked")

    def requested(self) -> None:
        """Write, before the create call, that a JobSet may exist from now on, and how many attempts there were."""
        if self.state() != "requested":
            self._write_events("slice.requested")
        attempts = len(attempts_of(self._run, "train"))
        self._write("requested", requested=records.timestamp(), attempts=attempts)

    def refused(self) -> None:
        """Write: the create was answered and made nothing, so no JobSet can still come of it."""
        self._write("requested")

    def created(self, uid: str) -> None:
        """Write: the JobSet with this uid is the run's."""
        found = self.read() or {}
        if (found.get("state"), found.get("uid")) != ("created", uid):
            kept = (
                {"attempts": found["attempts"]}
                if found.get("state") in ("requested", "created") and "attempts" in found
                else {}
            )
            self._write("created", uid=uid, **kept)

    def releasing(self, uid: str) -> None:
        """Write, before the delete call, that this JobSet is being released: an interrupted release is resumed."""
        self._write("releasing", uid=uid)

    def released(self, uid: str) -> None:
        """Write: the JobSet with this uid is gone. Does nothing if another JobSet is on record by now."""
        found = self.read()
        state = (found or {}).get("state")
        if found is None or state == "released" or found.get("uid", uid) != uid:
            return
        if state in ("requested", "created", "releasing"):
            self._write_events("slice.released")
        self._write("released")

    def _write_events(self, kind: str) -> None:
        for index in range(self._run.spec.slices.count):
            self._events.write(kind, slice=index)

    def _write(self, state: str, **more: Any) -> None:
        body = {"run_id": self._run.run_id, "platform": "gke", "state": state, "wanted": self._run.spec.slices.count}
        self._run.store.put(paths.SLICES, records.dump({**body, **self._where, "slices": [], **more}))
