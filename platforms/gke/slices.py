"""The trainer's view of its own slices on GKE, and what brings a lost one back at once. Standard library only.

A slice is the child Job of a JobSet. When a pod of it is lost, the Job controller makes a new one only after a back-off
that doubles with each loss (10 s .. 600 s), while JobSet makes a whole Job anew in 2 to 3 s. So a thread here watches
the Jobs, and deletes the one whose slice was up and is not: nobody else has to look. Where that is refused, the
back-off of the Job brings the slice back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from . import names
from .pod_api import Away, PodApi, Refused

_log = logging.getLogger("elastic_tpu.trainer")

State = Literal["up", "short", "restarting", "failed", "leaving", "suspended"]
Kind = Literal["ready", "lost", "back"]

_IN_PLACE = 10.0  # seconds that a container may take to restart inside its pod
_BETWEEN = 2.0  # seconds between two deletes of one slice, at least
_DELETES, _WITHIN = 20, 600.0  # and no more than so many in so many seconds: a slice that cannot live is left alone
_HURRY, _HURRIED = 10.0, 0.2  # after something happened: so many seconds of looking so often
_A_LOOK = 0.05  # seconds that each slice adds to the interval: 20 requests a second are enough for one run
_LONGEST = 30.0  # seconds between two looks while the API does not answer
# Seconds of refusals that are not believed, since an API server that has just started knows no Roles for one or two;
# fewer than a Job's first back-off of 10, so that a right that is missing is told.
_NO_ROLES = 5.0
_ASK_AGAIN = 0.5  # seconds between two deletes that are refused


@dataclass(frozen=True)
class Seen:
    """One look at the child Job of a slice."""

    uid: str
    state: State
    detail: str


def look(job: Mapping[str, Any]) -> Seen:
    """What a Job (raw JSON) says about its slice.

    `short`: pods are missing, and new ones wait for the back-off; `restarting`: all are there, not all run, so a
    container is being restarted in place, or a node is silent; `leaving`: somebody has deleted the Job.
    """
    status, spec, metadata = job.get("status", {}), job.get("spec", {}), job["metadata"]
    wanted, ready = spec.get("parallelism", 1), status.get("ready", 0)
    pods = f"{ready} of {wanted} pods ready"
    failed = [
        c for c in status.get("conditions", ()) if c["type"] in ("Failed", "FailureTarget") and c["status"] == "True"
    ]
    state: State
    if metadata.get("deletionTimestamp"):
        state, detail = "leaving", "its Job is being deleted"
    elif spec.get("suspend"):
        state, detail = "suspended", "suspended"
    elif failed:
        state, detail = "failed", f"its Job failed: {failed[0].get('message', '')[:200]}"
    elif ready >= wanted:
        state, detail = "up", pods
    elif status.get("active", 0) < wanted:
        ending = status.get("terminating", 0)
        state, detail = "short", f"{pods}, {ending} ending" if ending else pods
    else:
        state, detail = "restarting", f"{pods}, all there"
    return Seen(metadata["uid"], state, detail)


@dataclass
class Tracked:
    """What is known of one slice. Decides, and touches nothing.

    `uid`: of the Job that was last seen up; `losses`: how often it was up and then was not.
    """

    up: bool = False
    lost: bool = False
    losses: int = 0
    uid: str = ""
    seen: Seen | None = None
    _down_since: float = 0.0
    _given_up: str = ""
    _refusals: tuple[float, float] | None = None  # since when its deletes are refused, and the last time
    _deletes: deque[float] = field(default_factory=lambda: deque(maxlen=_DELETES))

    def note(self, seen: Seen | None, now: float) -> list[tuple[Kind, str]]:
        """Take a look in (None: there is no such Job); what it changes, with the reason."""
        was_up, self.seen = self.up, seen
        self.up = seen is not None and seen.state == "up"
        told: list[tuple[Kind, str]] = []
        if seen is not None and seen.state == "suspended":
            # Kueue took the slices back: no loss. The same Job will be started again, which is no reason to delete it.
            self.losses += was_up
            self.uid = ""
            return told
        if was_up and not (seen is not None and seen.uid == self.uid and self.up):
            self.losses, self.lost, self._down_since = self.losses + 1, True, now
            told.append(("lost", "its Job was replaced" if self.up else seen.detail if seen else "its Job is gone"))
        if seen is not None and self.up:
            self.uid, self._refusals = seen.uid, None
            if self.lost:
                self.lost = False
                told.append(("back", seen.detail))
        return told

    def should_delete(self, now: float) -> bool:
        """Whether deleting the Job brings the slice back sooner than waiting.

        Only a Job that was up: one that starts, for the first time or anew, is left in peace however long it takes
        (there may be no node). Pods that are still ending are no reason to wait. At a spot notice Pathways saves what a
        slice holds within the grace of its pods, and resumes when all pods of the slice are back: deleting the Job
        shortens no grace that runs (the API keeps the longer of two), and gives the slice's other pods, which the
        notice takes as well, a grace of their own; what it spares is the back-off before the replacements.
        """
        seen = self.seen
        if self.up or seen is None or seen.uid != self.uid or seen.uid == self._given_up:
            return False
        in_place = seen.state == "restarting" and now - self._down_since < _IN_PLACE
        if in_place or seen.state not in ("short", "restarting", "failed"):
            return False
        if self._refusals is not None and now - self._refusals[1] < _ASK_AGAIN:
            return False
        often = len(self._deletes) == _DELETES and now - self._deletes[0] < _WITHIN
        return not often and not (self._deletes and now - self._deletes[-1] < _BETWEEN)

    def deleted(self, now: float) -> None:
        """Its Job was deleted: once is enough."""
        self._deletes.append(now)
        self._given_up, self._refusals = self.uid, None

    def api_was_away(self) -> None:
        """It may have been started again: earlier refusals say nothing."""
        self._refusals = None

    def refused(self, now: float) -> bool:
        """Its Job may not be deleted; whether that has lasted long enough to leave the slice to its back-off."""
        since = self._refusals[0] if self._refusals is not None else now
        self._refusals = since, now
        if now - since < _NO_ROLES:
            return False
        self._given_up, self._refusals = self.uid, None
        return True


class GkeSlices:
    """The slices of a run, watched by a thread from the start until `close`.

    Args:
      run_id: name of the JobSet.
      count: its slices.
      api: the cluster as the pod sees it.
      interval: seconds between two looks.
      on_change: told ("ready", None, why) once all were up for the first time, ("lost", index, why) and
        ("back", index, why). Called by the thread, so it must not block.
      clock: monotonic seconds.
    """

    def __init__(
        self,
        run_id: str,
        count: int,
        *,
        api: PodApi | None = None,
        interval: float = 1.0,
        on_change: Callable[[Kind, int | None, str], None] = lambda kind, index, why: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_id, self._api, self._clock, self._on_change = run_id, api or PodApi(), clock, on_change
        self._slices = [Tracked() for _ in range(count)]
        self._interval = max(interval, count * _A_LOOK)
        self._hurried = min(self._interval, max(_HURRIED, count * _A_LOOK))
        self._held: dict[int, int] = {}
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._hurry_until = float("-inf")
        self._looked = self._announced = self._over = self._closed = False
        self._complaints: set[str] = set()
        self._silent = 0
        self._refused_since: float | None = None
        self._thread = threading.Thread(target=self._watch, name="slices", daemon=True)
        self._thread.start()

    # -- for training -----------------------------------------------------------------------------------------

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        """Count losses from now on. All can be had: which are up is for JAX to say, and a Job's status is late."""
        with self._changed:
            self._held = {index: self._slices[index].losses for index in indices}
        return frozenset(self._held)

    def lost(self, patience: float = 0.0) -> frozenset[int]:
        """Held slices that were seen down, or replaced, since they were taken.

        Args:
          patience: seconds to wait for one, since JAX sees a loss before the Job's status tells it.
        """
        if patience:
            self.ask_back(())
        with self._changed:
            self._changed.wait_for(self._lost, patience)
            return self._lost()

    def _lost(self) -> frozenset[int]:
        return frozenset(index for index, losses in self._held.items() if self._slices[index].losses != losses)

    def alive(self) -> frozenset[int]:
        """Slices that were up at the last look; all, while there was none: unknown is not lost."""
        with self._changed:
            return frozenset(index for index, slice_ in enumerate(self._slices) if slice_.up or not self._looked)

    def ask_back(self, indices: Iterable[int]) -> None:
        """Look at once, and often for a while. Nothing is deleted here that the thread would not delete by itself:
        a slice that JAX calls lost may be back already, restarted in place, or be on its way."""
        self._hurry_until = self._clock() + _HURRY
        self._wake.set()

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)

    # -- the thread -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed:
            try:
                pause = self._round()
            except Exception:
                _log.exception("the slices could not be looked at; trying again")
                pause = _LONGEST
            self._wake.wait(pause)
            self._wake.clear()
        self._api.close()

    def _round(self) -> float:
        """Look at each slice; seconds until the next round."""
        try:
            for index in range(len(self._slices)):
                if not self._closed and not self._over:
                    self._look_at(index)
        except Away as error:
            self._silent += 1
            self._refused_since = None
            for slice_ in self._slices:
                slice_.api_was_away()
            self._complain("the cluster's API does not answer, so slices are not watched", error)
            return min(_LONGEST, self._interval * 2.0 ** min(self._silent, 20))
        except Refused as error:
            now = self._clock()
            self._refused_since = now if self._refused_since is None else self._refused_since
            if now - self._refused_since < _NO_ROLES:
                return self._interval
            self._complain(f"slices are not watched ({_CURE})", error)
            return _LONGEST
        self._refused_since = None
        if self._silent:
            _log.info("the cluster's API answers again")
            self._silent = 0
            self._complaints.clear()
        self._looked = True
        if not self._announced and not self._over and all(slice_.up for slice_ in self._slices):
            self._announced = True
            self._on_change("ready", None, "")
        return self._hurried if self._clock() < self._hurry_until else self._interval

    def _look_at(self, index: int) -> None:
        name, slice_ = names.worker_job(self._run_id, index), self._slices[index]
        job = self._api.get_job(name)
        seen = None if job is None else look(job)
        if slice_.up and (seen is None or seen.state == "leaving") and self._all_is_leaving():
            return
        with self._changed:
            told = slice_.note(seen, self._clock())
            self._changed.notify_all()
        if told:
            self._hurry_until = self._clock() + _HURRY
        for kind, why in told:
            _log.warning("slice %d %s: %s", index, "lost" if kind == "lost" else "is back", why)
            self._on_change(kind, index, why)
        if slice_.should_delete(self._clock()):
            self._delete(name, slice_)

    def _delete(self, name: str, slice_: Tracked) -> None:
        try:
            self._api.delete_job(name, slice_.uid)
        except Refused as error:
            if slice_.refused(self._clock()):
                self._complain(f"a lost slice comes back after its Job's back-off only ({_CURE})", error)
            return
        slice_.deleted(self._clock())
        self._hurry_until = self._clock() + _HURRY
        _log.info("Job %s deleted, so that JobSet makes it anew at once", name)

    def _all_is_leaving(self) -> bool:
        """Whether the whole JobSet goes, the head included: an end, not a loss."""
        head = self._api.get_job(names.head_job(self._run_id))
        self._over = head is None or look(head).state == "leaving"
        return self._over

    def _complain(self, text: str, error: Exception) -> None:
        """Once, not at every look."""
        if text not in self._complaints:
            self._complaints.add(text)
            _log.warning("%s: %s", text, error)


_CURE = "give the head's service account the Role elastic-tpu-trainer of deploy/rbac.yaml"
