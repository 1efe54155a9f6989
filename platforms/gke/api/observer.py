"""Looks at JobSets and events for all runs that a process watches in a namespace, with one request an interval.

Answers are kept for an interval. The first caller after that asks anew for all watched runs at once: by a GET for one
run, a LIST by run id for a few, a LIST of all runs for many. A LIST never means that a JobSet is absent, since its
label may have been removed, or it may be younger than the LIST: that takes a GET, each time.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ....runs.errors import ElasticTPUError
from ..k8s_json import Json
from ..names import RUN_ID
from .cluster import Cluster

T = TypeVar("T")

INTERVAL = 15.0  # seconds
_FEW = 64  # run ids in one label selector; if more are watched, the JobSets of all runs are listed
_FORGET = 8  # intervals after which a run is not watched any more, unless somebody asks for it again

_EVENT = ("involvedObject", "reason", "message", "source", "reportingComponent", "series", "lastTimestamp", "eventTime")
_METADATA = ("name", "uid", "labels", "annotations", "creationTimestamp", "deletionTimestamp")


def trim(jobset: Json) -> Json:
    """The part of a JobSet that is kept, mostly its status: a twentieth of the whole."""
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
    """The part of an event that is kept."""
    metadata = {"creationTimestamp": event.get("metadata", {}).get("creationTimestamp")}
    return {"metadata": metadata, **{key: event[key] for key in _EVENT if key in event}}


def is_about(event: Json, run_id: str) -> bool:
    """Whether an event is about an object of a run: its JobSet, its Jobs and pods, or Kueue's Workloads of these."""
    name = str(event.get("involvedObject", {}).get("name", ""))
    name = name.removeprefix("jobset-").removeprefix("job-") if not name.startswith(run_id) else name
    return name == run_id or name.startswith(f"{run_id}-")


@dataclass(frozen=True)
class _Answer:
    jobset: Json | None  # None: there was none
    asked_at: float  # monotonic seconds


class Observer:
    """Looks at JobSets and events for any number of threads, at most once an interval. Made by `observer_of`.

    Args:
      cluster: shared by all runs, with what it learns of the server's clock and of this login's rights.
      interval: seconds that an answer is kept; also the pause after a request that failed.
      clock: monotonic seconds.
    """

    def __init__(
        self, cluster: Cluster, interval: float = INTERVAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cluster, self.interval, self._clock = cluster, interval, clock
        self._asking = threading.Lock()  # held during a shared request: a thread that waits for it finds the answer
        self._guard = threading.Lock()  # of the fields below, but `_events`
        self._answers: dict[str, _Answer] = {}
        self._watched: dict[str, float] = {}  # run id -> when somebody asked for it last
        self._asking_events = threading.Lock()
        self._events: tuple[float, list[Json]] | None = None
        self._failed: tuple[float, ElasticTPUError] | None = None

    def jobset(self, name: str, *, fresh: bool = False) -> Json | None:
        """The JobSet, trimmed, as it was less than an interval ago; None if the API says that there is none.

        Args:
          fresh: ask now. For callers that decide what to create or delete next.

        Raises:
          Unreachable: no answer now, or none to a request less than an interval ago. Earlier answers are kept.
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

        One LIST serves all runs, since Kubernetes cannot select the events of one run.
        """
        with self._asking_events:
            now = self._clock()
            if self._events is None or now - self._events[0] >= self.interval:
                with self._guard:
                    self._raise_if_just_failed()
                self._events = now, self._guarded(lambda: self.cluster.list_events(trim_event))
            known = self._events[1]
        return [event for event in known if is_about(event, run_id)]

    def _recent(self, name: str) -> Json | None:
        """The JobSet if an answer is younger than an interval; None if another request is needed."""
        with self._guard:
            known, now = self._answers.get(name), self._clock()
            if known and known.jobset and now - known.asked_at < self.interval:
                return known.jobset
            self._raise_if_just_failed()
            return None

    def _raise_if_just_failed(self) -> None:
        if self._failed and self._clock() - self._failed[0] < self.interval:
            raise self._failed[1].with_traceback(None)

    def _to_list(self, name: str) -> set[str]:
        """Run ids to LIST when this one is asked for; empty if a GET of this one will do.

        All that are watched, so that their answers get old together. Empty if no other is watched, or if this one is
        new (or absent) and the answers for all others are young.
        """
        with self._guard:
            now = self._clock()
            self._watched = {n: asked for n, asked in self._watched.items() if now - asked < _FORGET * self.interval}
            self._answers = {n: k for n, k in self._answers.items() if now - k.asked_at < _FORGET * self.interval}
            young = {n for n, known in self._answers.items() if now - known.asked_at < self.interval}
            has_grown_old = name in self._answers and name not in young
            others = self._watched.keys() - {name}
            return set(self._watched) if others and (has_grown_old or others - young) else set()

    def _list(self, names: set[str]) -> None:
        now = self._clock()
        selector = f"{RUN_ID} in ({','.join(sorted(names))})" if len(names) <= _FEW else RUN_ID
        # JobSets that nobody watches are kept too: when a thousand runs begin to be watched, most are known from here.
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
        """Keep an answer, unless one to a later request is there, such as a `fresh` one."""
        with self._guard:
            known = self._answers.get(name)
            if known is None or known.asked_at <= asked:
                self._answers[name] = _Answer(jobset, asked)

    def _guarded(self, call: Callable[[], T]) -> T:
        """Call, and remember a failure, so that hundreds of runs do not each wait for a server that is down."""
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
    """The observer that this process shares for an API server, namespace and login.

    Args:
      interval: seconds; the shortest one that any caller asked for counts.
    """
    with _observers_lock:
        observer = _observers.get(cluster.identity)
        if observer is None:
            observer = _observers[cluster.identity] = Observer(cluster, interval)
        observer.interval = min(observer.interval, interval)
        return observer
