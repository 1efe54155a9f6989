"""For the trainer: which of its slices on GKE are up or lost, and how a lost one comes back at once.

A slice is a child Job of the JobSet. If one of its pods is lost, the Job controller makes a new pod only after a
back-off that doubles with each loss (10 to 600 s), but JobSet makes a whole Job again in 2 to 3 s. So a thread watches
the Jobs and deletes that of a slice that was up and is not; no launcher is needed. Where the delete is refused, the
slice comes back after the back-off. Standard library only.
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
from .pod_api import NoAnswer, PodApi, Refused

_log = logging.getLogger("elastic_tpu.trainer")

State = Literal["up", "short", "restarting", "failed", "leaving", "suspended"]
Kind = Literal["ready", "lost", "back"]

_IN_PLACE = 10.0  # seconds that a container may take to restart inside its pod
_BETWEEN = 2.0  # least seconds between two deletes of one slice
_DELETES, _WITHIN = 20, 600.0  # most deletes of one slice in so many seconds: one that always fails is left alone
_HURRY, _HURRIED = 10.0, 0.2  # for so many seconds after a change, so many seconds between two looks
_A_LOOK = 0.05  # seconds that each slice adds to the interval, so that a run sends at most 20 requests a second
_LONGEST = 30.0  # seconds between two looks while the API does not answer
# Seconds that a refused request is repeated: an API server that has just started knows no Roles for a second or two.
# Less than a Job's first back-off of 10, so that a missing right is reported before the slice is back.
_NO_ROLES = 5.0
_ASK_AGAIN = 0.5  # seconds between two deletes while they are refused


@dataclass(frozen=True)
class JobLook:
    """One look at the child Job of a slice.

    Attributes:
      state: up = all pods are ready; short = pods are missing, and new ones wait for the back-off; restarting = all
        pods exist and some are not ready: a container restarts in place, or a node does not answer; leaving = the Job
        was deleted.
    """

    uid: str
    state: State
    detail: str


def look(job: Mapping[str, Any]) -> JobLook:
    """What a Job (JSON) tells about its slice."""
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
        state, detail = "restarting", f"{pods}, all exist"
    return JobLook(metadata["uid"], state, detail)


@dataclass
class Tracked:
    """What is known of one slice; decides what a look means and whether to delete the Job. Sends nothing itself.

    Attributes:
      up: all its pods were ready at the last look.
      lost: it was up, is not, and has not come back.
      losses: how often it was up and then was not.
      uid: of the Job that was last up.
    """

    up: bool = False
    lost: bool = False
    losses: int = 0
    uid: str = ""
    seen: JobLook | None = None
    _down_since: float = 0.0
    _given_up: str = ""
    _refusals: tuple[float, float] | None = None  # since when its deletes are refused, and the last time
    _deletes: deque[float] = field(default_factory=lambda: deque(maxlen=_DELETES))

    def note(self, seen: JobLook | None, now: float) -> list[tuple[Kind, str]]:
        """Take in a look, None if there is no such Job. Returns what changed (lost, back), each with the reason.

        Args:
          now: monotonic seconds, here and in the other methods.
        """
        was_up, self.seen = self.up, seen
        self.up = seen is not None and seen.state == "up"
        told: list[tuple[Kind, str]] = []
        if seen is not None and seen.state == "suspended":
            # Kueue took the slices back, which is no loss to recover from: it resumes the same Job, so keep that.
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

        Only for a Job that was up. One that is starting, for the first time or again, is kept however long it takes:
        there may be no node. Pods that are still ending are no reason to wait. At a spot notice Pathways saves what a
        slice holds within the grace of its pods, and resumes when all pods of the slice are back. Deleting the Job
        shortens no grace that has begun (the API keeps the longer of two), gives the other pods of the slice, which the
        notice takes as well, a grace of their own, and saves the back-off before the replacements.
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
        """Note that its Job was deleted, so that the same Job is not deleted again."""
        self._deletes.append(now)
        self._given_up, self._refusals = self.uid, None

    def api_was_silent(self) -> None:
        """Note that the API did not answer: it may have restarted, so earlier refusals do not count."""
        self._refusals = None

    def refused(self, now: float) -> bool:
        """Note that the delete was refused. Returns True once the refusal is final: the back-off must do."""
        since = self._refusals[0] if self._refusals is not None else now
        self._refusals = since, now
        if now - since < _NO_ROLES:
            return False
        self._given_up, self._refusals = self.uid, None
        return True


class GkeSlices:
    """The slices of a run, watched by a thread until `close`.

    Args:
      run_id: name of the JobSet.
      count: slices of the run.
      api: the Kubernetes API from inside the pod.
      interval: seconds between two looks.
      on_change: called with ("ready", None, "") when all slices are up for the first time, ("lost", index, why) and
        ("back", index, why). The thread calls it, so it must not block.
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
        self._warned: set[str] = set()
        self._silent = 0
        self._refused_since: float | None = None
        self._thread = threading.Thread(target=self._watch, name="slices", daemon=True)
        self._thread.start()

    # -- for training -----------------------------------------------------------------------------------------

    def hold(self, indices: Iterable[int]) -> frozenset[int]:
        """Count the losses of these slices from now on.

        Returns:
          All of them, since JAX knows which are up sooner than the status of their Jobs does.
        """
        with self._changed:
            self._held = {index: self._slices[index].losses for index in indices}
        return frozenset(self._held)

    def lost(self, timeout: float = 0.0) -> frozenset[int]:
        """Held slices that were not up at some look since `hold`, or whose Job was replaced.

        Args:
          timeout: seconds to wait for the first, since JAX sees a loss before the Job's status tells it.
        """
        if timeout:
            self.ask_back(())
        with self._changed:
            self._changed.wait_for(self._lost, timeout)
            return self._lost()

    def _lost(self) -> frozenset[int]:
        return frozenset(index for index, losses in self._held.items() if self._slices[index].losses != losses)

    def alive(self) -> frozenset[int]:
        """Slices that were up at the last look; all slices before the first look: unknown is not lost."""
        with self._changed:
            return frozenset(index for index, slice_ in enumerate(self._slices) if slice_.up or not self._looked)

    def away(self) -> dict[int, str]:
        """Held slices that were not up at the last look, each with the state of its Job: lost, or suspended."""
        with self._changed:
            if not self._looked or self._over or self._closed:
                return {}  # unknown is not away
            held = {index: self._slices[index] for index in self._held}
            return {i: s.seen.detail if s.seen else "its Job is gone" for i, s in held.items() if not s.up}

    def ask_back(self, indices: Iterable[int]) -> None:
        """Look at once, and often for a while. Deletes nothing that the thread would not delete by itself: a slice that
        JAX calls lost may be back, restarted in place, or starting."""
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
                _log.exception("the slices could not be looked at; trying again in %.0f s", _LONGEST)
                pause = _LONGEST
            self._wake.wait(pause)
            self._wake.clear()
        self._api.close()

    def _round(self) -> float:
        """Look at each slice once. Returns the seconds until the next round."""
        try:
            for index in range(len(self._slices)):
                if not self._closed and not self._over:
                    self._look_at(index)
        except NoAnswer as error:
            self._silent += 1
            self._refused_since = None
            for slice_ in self._slices:
                slice_.api_was_silent()
            self._warn_once("the Kubernetes API does not answer; slices are not watched until it does", error)
            return min(_LONGEST, self._interval * 2.0 ** min(self._silent, 20))
        except Refused as error:
            now = self._clock()
            self._refused_since = now if self._refused_since is None else self._refused_since
            if now - self._refused_since < _NO_ROLES:
                return self._interval
            self._warn_once(f"slices are not watched: this pod may not read Jobs; {_CURE}", error)
            return _LONGEST
        self._refused_since = None
        if self._silent:
            _log.info("the Kubernetes API answers again; slices are watched")
            self._silent = 0
            self._warned.clear()
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
                why = "a lost slice comes back only after its Job's back-off: this pod may not delete Jobs"
                self._warn_once(f"{why}; {_CURE}", error)
            return
        slice_.deleted(self._clock())
        self._hurry_until = self._clock() + _HURRY
        _log.info("Job %s deleted, so that JobSet makes it again at once", name)

    def _all_is_leaving(self) -> bool:
        """Whether the head's Job is being deleted as well: then the run ends, and no slice is lost."""
        head = self._api.get_job(names.head_job(self._run_id))
        self._over = head is None or look(head).state == "leaving"
        return self._over

    def _warn_once(self, text: str, error: Exception) -> None:
        """Log a warning once; again only after the API was silent and came back."""
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s: %s", text, error)


_CURE = "give the head's service account the Role elastic-tpu-trainer of deploy/rbac.yaml"
