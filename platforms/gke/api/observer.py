"""One look at the cluster an interval for all runs that a process watches in a namespace.

Whoever asks first when what is known has become old asks for all that is watched, with one request: one run is a GET, a
few are a LIST by run id, many are a LIST of all runs. That a JobSet is absent is never concluded from a LIST (its label
may have been removed, or it may be younger): a GET has to say so each time.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ....runs.errors import ElasticTPUError
from ..names import RUN_ID
from .cluster import Cluster

T = TypeVar("T")
Json = dict[str, Any]

INTERVAL = 15.0  # seconds
_FEW = 64  # run ids that fit well into a selector
_FORGET = 8  # intervals after which a run that nobody asks for is watched no more

_EVENT = ("involvedObject", "reason", "message", "source", "reportingComponent", "series", "lastTimestamp", "eventTime")
_METADATA = ("name", "uid", "labels", "annotations", "creationTimestamp", "deletionTimestamp")


def trim(jobset: Json) -> Json:
    """What is kept of a JobSet: a twentieth of it, mostly the status."""
    metadata, spec = jobset.get("metadata", {}), jobset.get("spec", {})
    replicated = [
        {
            "name": job.get("name"),
            "replicas": job.get("replicas", 1),
            "template": {"spec": {"parallelism": job.get("template", {}).get("spec", {}).get("parallelism", 1)}},
        }
        for job in spec.get("replicatedJobs", [])
    ]
    return {
        "metadata": {key: metadata[key] for key in _METADATA if key in metadata},
        "spec": {
            "suspend": spec.get("suspend", False),
            "failurePolicy": {"maxRestarts": spec.get("failurePolicy", {}).get("maxRestarts", 0)},
            "replicatedJobs": replicated,
        },
        "status": jobset.get("status", {}),
    }


def trim_event(event: Json) -> Json:
    """What is kept of an event."""
    metadata = {"creationTimestamp": event.get("metadata", {}).get("creationTimestamp")}
    return {"metadata": metadata, **{key: event[key] for key in _EVENT if key in event}}


def is_about(event: Json, run_id: str) -> bool:
    """Whether an event is about an object of a run: its JobSet, its Jobs and pods, or Kueue's Workloads of these."""
    name = str(event.get("involvedObject", {}).get("name", ""))
    name = name.removeprefix("jobset-").removeprefix("job-") if not name.startswith(run_id) else name
    return name == run_id or name.startswith(f"{run_id}-")


@dataclass(frozen=True)
class _Known:
    jobset: Json | None  # None: it was absent
    since: float  # when it was asked for


class Observer:
    """Looks at JobSets for any number of threads, at most once an interval. See `observer_of`.

    Args:
      cluster: who is asked; what it learns of clock and rights is known to all runs that share it.
      interval: seconds that an answer is good for; also how long a cluster that does not answer is left alone.
    """

    def __init__(
        self, cluster: Cluster, interval: float = INTERVAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cluster, self.interval, self._clock = cluster, interval, clock
        self._asking = threading.Lock()  # held during a request for all: whoever waits for it finds the answer
        self._guard = threading.Lock()  # of what is below
        self._known: dict[str, _Known] = {}
        self._watched: dict[str, float] = {}
        self._asking_events = threading.Lock()
        self._events: tuple[float, list[Json]] | None = None
        self._failed: tuple[float, ElasticTPUError] | None = None

    def jobset(self, name: str, *, fresh: bool = False) -> Json | None:
        """The JobSet, trimmed, as it was less than an interval ago; None: the API says that there is none.

        Args:
          fresh: ask now, about this one. For whoever has just changed it.

        Raises:
          Unreachable: no answer, now or less than an interval ago; what was known before is kept.
        """
        if fresh:
            return self._get(name)
        with self._guard:
            self._watched[name] = self._clock()
        if recent := self._recent(name):
            return recent
        with self._asking:
            if recent := self._recent(name):
                return recent
            names = self._to_list(name)
            if not names:
                return self._get(name)
            self._list(names)
        return self._recent(name) or self._get(name)

    def events(self, run_id: str) -> list[Json]:
        """Events about a run's objects, trimmed, as they were less than an interval ago. Raises as `jobset`.

        One LIST serves all runs: Kubernetes cannot select the events of one.
        """
        with self._asking_events:
            now = self._clock()
            if self._events is None or now - self._events[0] >= self.interval:
                with self._guard:
                    self._refuse_while_silent()
                self._events = now, self._guarded(lambda: self.cluster.list_events(trim_event))
            known = self._events[1]
        return [event for event in known if is_about(event, run_id)]

    def _recent(self, name: str) -> Json | None:
        """What is known and not old."""
        with self._guard:
            known, now = self._known.get(name), self._clock()
            if known and known.jobset and now - known.since < self.interval:
                return known.jobset
            self._refuse_while_silent()
            return None

    def _refuse_while_silent(self) -> None:
        if self._failed and self._clock() - self._failed[0] < self.interval:
            raise self._failed[1].with_traceback(None)

    def _to_list(self, name: str) -> set[str]:
        """What to LIST for whoever asks for this one: all that is watched, so that it grows old together, or nothing.

        Nothing if this one is all that is watched, or is new (or absent) while all others are young.
        """
        with self._guard:
            now = self._clock()
            self._watched = {n: asked for n, asked in self._watched.items() if now - asked < _FORGET * self.interval}
            self._known = {n: k for n, k in self._known.items() if now - k.since < _FORGET * self.interval}
            young = {n for n, known in self._known.items() if now - known.since < self.interval}
            has_grown_old = name in self._known and name not in young
            others = self._watched.keys() - {name}
            return set(self._watched) if others and (has_grown_old or others - young) else set()

    def _list(self, names: set[str]) -> None:
        now = self._clock()
        selector = f"{RUN_ID} in ({','.join(sorted(names))})" if len(names) <= _FEW else RUN_ID
        # All of them, watched or not: while a thousand runs begin to be watched, most are found here.
        for jobset in self._guarded(lambda: self._listed(selector)):
            self._keep(jobset["metadata"]["name"], jobset, now)

    def _listed(self, selector: str) -> list[Json]:
        return self.cluster.list_jobsets(trim, selector)

    def _get(self, name: str) -> Json | None:
        now = self._clock()
        answer = self._guarded(lambda: self.cluster.get_jobset(name))
        jobset = None if answer is None else trim(answer)
        self._keep(name, jobset, now)
        return jobset

    def _keep(self, name: str, jobset: Json | None, asked: float) -> None:
        """Unless there is already an answer to a later question, such as that of somebody who changed it."""
        with self._guard:
            known = self._known.get(name)
            if known is None or known.since <= asked:
                self._known[name] = _Known(jobset, asked)

    def _guarded(self, call: Callable[[], T]) -> T:
        """Call; a failure is remembered, so that hundreds of runs do not each wait for the same dead server."""
        try:
            answer = call()
        except ElasticTPUError as error:
            with self._guard:
                self._failed = self._clock(), error
            raise
        with self._guard:
            self._failed = None
        return answer


_observers: weakref.WeakValueDictionary[tuple[str, str, str], Observer] = weakref.WeakValueDictionary()
_observers_lock = threading.Lock()


def observer_of(cluster: Cluster, interval: float = INTERVAL) -> Observer:
    """The process's observer of this API server, namespace and login; the shortest interval asked for counts."""
    with _observers_lock:
        observer = _observers.get(cluster.identity)
        if observer is None:
            observer = _observers[cluster.identity] = Observer(cluster, interval)
        observer.interval = min(observer.interval, interval)
        return observer
