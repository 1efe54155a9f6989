"""One look an interval for all runs of a process: how often the cluster is asked, and that no answer is a stale one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from elastic_tpu.platforms.gke.api.observer import Observer, observer_of, trim
from elastic_tpu.runs.errors import Unreachable

Json = dict[str, Any]


def jobset(name: str, restarts: int = 0) -> Json:
    template = {"spec": {"parallelism": 4, "template": {"spec": {"containers": ["big"] * 100}}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "metadata": {"name": name, "uid": f"u-{name}", "labels": {"a": "b"}, "managedFields": ["big"] * 100},
        "spec": {"suspend": True, "replicatedJobs": [{"name": "pathways-worker", "replicas": 3, "template": template}]},
        "status": {"restarts": restarts},
    }


def event(name: str) -> Json:
    times = {"lastTimestamp": "2026-01-01T00:00:00Z", "metadata": {"name": "x", "managedFields": ["big"] * 100}}
    return {"involvedObject": {"name": name}, "reason": "FailedCreate", "message": "no", **times}


class FakeCluster:
    """Counts what it is asked; `before` is called in the middle of each request."""

    identity = ("https://one", "team", "")

    def __init__(self, *names: str) -> None:
        self.there = {name: jobset(name) for name in names}
        self.about: list[str] = []
        self.unlabelled: set[str] = set()
        self.lists: list[str] = []
        self.gets: list[str] = []
        self.error: Exception | None = None
        self.before: Callable[[], object] = lambda: None

    def list_jobsets(self, keep: Callable[[Json], Json], selector: str) -> list[Json]:
        self.lists.append(selector)
        found = [keep(item) for name, item in self.there.items() if name not in self.unlabelled]
        self.fail()
        return found

    def get_jobset(self, name: str) -> Json | None:
        self.gets.append(name)
        found = self.there.get(name)
        self.fail()
        return found

    def list_events(self, keep: Callable[[Json], Json]) -> list[Json]:
        self.lists.append("events")
        self.fail()
        return [keep(event(name)) for name in self.about]

    def fail(self) -> None:
        self.before()
        if self.error:
            raise self.error

    @property
    def asked(self) -> tuple[int, int]:
        return len(self.lists), len(self.gets)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(*names: str) -> tuple[FakeCluster, Observer, Clock]:
    cluster, clock = FakeCluster(*names), Clock()
    return cluster, Observer(cluster, 15.0, clock), clock  # type: ignore[arg-type]


def slow() -> None:
    """Time for others to ask as well."""
    time.sleep(0.2)


def warm(observer: Observer, clock: Clock, *names: str) -> None:
    """Let them all be watched, with answers of one LIST."""
    for name in names:
        observer.jobset(name)
    clock.now += 15
    for name in names:
        observer.jobset(name)


def test_one_run_is_one_get_an_interval() -> None:
    cluster, observer, clock = make("a", "b")
    for _ in range(10):
        assert observer.jobset("a") == trim(jobset("a"))
    clock.now += 14.9
    observer.jobset("a")
    assert cluster.asked == (0, 1)
    clock.now += 0.1
    observer.jobset("a")
    assert cluster.asked == (0, 2)


def test_a_few_runs_are_one_list_of_these_an_interval() -> None:
    cluster, observer, clock = make("a", "b", "c", "other")
    warm(observer, clock, "a", "b", "c")
    assert cluster.lists == ["elastic-tpu.dev/run-id in (a,b,c)"]
    assert cluster.gets == ["a", "b", "c"], "only when each was new"


def test_many_runs_are_one_list_an_interval() -> None:
    names = [f"run-{i}" for i in range(200)]
    cluster, observer, clock = make(*names)
    warm(observer, clock, *names)
    before = cluster.asked
    for _ in range(3):
        clock.now += 15
        for name in names:
            assert observer.jobset(name)
    assert cluster.asked == (before[0] + 3, before[1])
    assert cluster.lists[-1] == "elastic-tpu.dev/run-id"


def test_runs_that_were_first_asked_for_at_different_times_end_up_in_one_list() -> None:
    names = [f"run-{i}" for i in range(10)]
    cluster, observer, clock = make(*names)
    for _ in range(4):  # one poll a second and a half, each run every 15 s
        before = cluster.asked
        for name in names:
            clock.now += 1.5
            assert observer.jobset(name)
    assert cluster.asked == (before[0] + 1, before[1])


def test_a_list_of_all_runs_serves_also_those_that_begin_to_be_watched() -> None:
    names = [f"run-{i}" for i in range(200)]
    cluster, observer, clock = make(*names)
    warm(observer, clock, *names[:100])
    before = cluster.asked
    for name in names:
        assert observer.jobset(name)
    assert cluster.asked == before


def test_many_threads_at_once_are_served_by_one_list() -> None:
    names = [f"run-{i}" for i in range(100)]
    cluster, observer, clock = make(*names)
    warm(observer, clock, *names)
    before = cluster.asked
    clock.now += 15
    cluster.before = slow
    together = threading.Barrier(100)

    def poll(name: str) -> Json | None:
        together.wait(30)
        return observer.jobset(name)

    with ThreadPoolExecutor(100) as pool:
        found = list(pool.map(poll, names))
    assert [item and item["metadata"]["name"] for item in found] == names
    assert cluster.asked == (before[0] + 1, before[1])


def test_many_threads_that_watch_the_same_new_run_ask_once() -> None:
    cluster, observer, _ = make("a")
    cluster.before = slow
    together = threading.Barrier(20)

    def poll(_: int) -> Json | None:
        together.wait(30)
        return observer.jobset("a")

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(poll, range(20)))
    assert cluster.asked == (0, 1)


def test_absent_is_said_by_a_get_each_time_never_by_a_list() -> None:
    cluster, observer, clock = make("a", "b")
    warm(observer, clock, "a", "b", "new")
    gets = len(cluster.gets)
    assert observer.jobset("new") is None
    assert len(cluster.gets) == gets + 1
    cluster.there["new"] = jobset("new")  # made by another process
    assert observer.jobset("new") is not None


def test_a_jobset_without_our_label_is_found_though_no_list_shows_it() -> None:
    cluster, observer, clock = make("a", "b", "foreign")
    cluster.unlabelled = {"foreign"}
    warm(observer, clock, "a", "b", "foreign")
    assert cluster.lists
    clock.now += 15
    assert observer.jobset("foreign") == trim(jobset("foreign"))


def test_one_that_was_deleted_is_seen_within_an_interval() -> None:
    cluster, observer, clock = make("a", "b")
    warm(observer, clock, "a", "b")
    del cluster.there["a"]
    assert observer.jobset("a"), "known from before"
    clock.now += 15
    assert observer.jobset("a") is None
    assert observer.jobset("b")


def test_fresh_asks_now_and_all_see_its_answer() -> None:
    cluster, observer, clock = make("a", "b")
    warm(observer, clock, "a", "b")
    cluster.there["a"] = jobset("a", restarts=1)
    assert observer.jobset("a")["status"]["restarts"] == 0  # type: ignore[index]
    clock.now += 1
    assert observer.jobset("a", fresh=True)["status"]["restarts"] == 1  # type: ignore[index]
    assert observer.jobset("a")["status"]["restarts"] == 1  # type: ignore[index]
    del cluster.there["a"]
    assert observer.jobset("a", fresh=True) is None
    assert observer.jobset("a") is None


def test_a_list_under_way_does_not_undo_what_a_later_question_found() -> None:
    cluster, observer, clock = make("a", "b")
    warm(observer, clock, "a", "b")
    clock.now += 15

    def meanwhile() -> None:
        cluster.before = lambda: None
        clock.now += 1
        cluster.there["a"] = jobset("a", restarts=1)
        assert observer.jobset("a", fresh=True)["status"]["restarts"] == 1  # type: ignore[index]

    cluster.before = meanwhile  # the list has its answer, which is not here yet
    observer.jobset("b")
    assert observer.jobset("a")["status"]["restarts"] == 1  # type: ignore[index]


def test_a_cluster_that_does_not_answer_is_left_alone_for_an_interval() -> None:
    cluster, observer, clock = make("a", "b")
    warm(observer, clock, "a", "b")
    before = cluster.asked
    cluster.error = Unreachable("nobody there")
    clock.now += 15
    for _ in range(5):
        for name in ("a", "b"):
            with pytest.raises(Unreachable, match="nobody there"):
                observer.jobset(name)
    assert cluster.asked == (before[0] + 1, before[1])
    clock.now += 15
    cluster.error = None
    assert observer.jobset("a")
    assert observer.jobset("b")
    assert cluster.asked == (before[0] + 2, before[1])


def test_what_is_known_stays_good_while_another_question_fails() -> None:
    cluster, observer, _ = make("a")
    assert observer.jobset("a")
    cluster.error = Unreachable("nobody there")
    with pytest.raises(Unreachable):
        observer.jobset("b", fresh=True)
    assert observer.jobset("a")
    cluster.error = None
    assert observer.jobset("a", fresh=True), "who has changed something is not made to wait"
    assert observer.jobset("b") is None, "and its answer ends the silence"


def test_runs_that_nobody_asks_for_are_forgotten() -> None:
    cluster, observer, clock = make("a", "b", "c")
    warm(observer, clock, "a", "b", "c")
    for _ in range(20):
        clock.now += 15
        observer.jobset("a")
        observer.jobset("b")
    assert cluster.lists[-1] == "elastic-tpu.dev/run-id in (a,b)"


def test_of_a_jobset_only_what_is_looked_at_is_kept() -> None:
    kept = trim(jobset("a"))
    assert kept["metadata"] == {"name": "a", "uid": "u-a", "labels": {"a": "b"}}
    assert kept["spec"] == {
        "suspend": True,
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": "pathways-worker", "replicas": 3, "template": {"spec": {"parallelism": 4}}}],
    }
    assert kept["status"] == {"restarts": 0}
    assert trim({"metadata": {"name": "x"}})["status"] == {}, "one that no controller has seen yet"


def test_a_process_has_one_observer_for_a_cluster_namespace_and_login() -> None:
    one, same, other = FakeCluster(), FakeCluster(), FakeCluster()
    other.identity = ("https://one", "elsewhere", "")
    first = observer_of(one, 15.0)  # type: ignore[arg-type]
    assert observer_of(same, 5.0) is first  # type: ignore[arg-type]
    assert first.interval == 5.0
    assert observer_of(other) is not first  # type: ignore[arg-type]
    assert first.cluster is one, "whose clock and rights all runs can go by"  # type: ignore[comparison-overlap]


def test_events_are_one_list_an_interval_for_all_runs() -> None:
    cluster, observer, clock = make()
    cluster.about = ["a-1", "a-1-pathways-head-0", "jobset-a-1-f00", "job-a-1-export-f00", "a-10", "b", "jobset-b-f00"]
    for _ in range(3):
        names = [found["involvedObject"]["name"] for found in observer.events("a-1")]
        assert names == ["a-1", "a-1-pathways-head-0", "jobset-a-1-f00", "job-a-1-export-f00"]
        assert [found["involvedObject"]["name"] for found in observer.events("b")] == ["b", "jobset-b-f00"]
    assert cluster.lists == ["events"]
    assert "managedFields" not in observer.events("b")[0]["metadata"]
    clock.now += 15
    cluster.error = Unreachable("nobody there")
    for _ in range(3):
        with pytest.raises(Unreachable):
            observer.events("b")
    assert cluster.lists == ["events"] * 2
    clock.now += 15
    cluster.error = None
    assert observer.events("b")
