"""The GKE platform against an API server whose answers are written down: a look only reads, other calls change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import kubernetes
import pytest
from elastic_tpu.platforms.base import Job
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.gke.api.cluster import Cluster
from elastic_tpu.platforms.gke.api.observer import Observer
from elastic_tpu.platforms.gke.platform import GkePlatform
from elastic_tpu.runs.record import paths
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.store import records
from elastic_tpu.tests.fakes.store import MemoryStore
from elastic_tpu.tests.platforms.gke.objects import Moment, recorded
from elastic_tpu.tests.platforms.gke.scripted_api import Answer, Request, ScriptedApi, serving
from elastic_tpu.tests.tools import small

TRAIN, EXPORT = Job("train", ("train",), slices=True), Job("export", ("export",), slices=False)


@dataclass
class Namespace:
    """A run's objects, as its namespace shows them."""

    run: Run
    moment: Moment
    api: ScriptedApi
    changes: list[str] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        kind, name = request.path.split("/")[-2:]
        if request.method != "GET":
            self.changes.append(f"{request.method} {kind}/{name}")
            return Answer({"kind": "Status", "status": "Success"})
        if name == "log":
            return Answer(b"error: told to fail\n")
        if name in ("pods", "events", "jobsets"):
            items = {"pods": self.moment.pods, "events": [], "jobsets": [self.moment.object]}[name]
            return Answer({"kind": "List", "metadata": {}, "items": items})
        return Answer({"kind": "an object", **self.moment.object})

    def platform(self) -> GkePlatform:
        cluster = Cluster(kubernetes.client.ApiClient(kubernetes.client.Configuration(host=self.api.url)), "team")
        return GkePlatform(self.run, cluster, Observer(cluster))

    def stuck(self, part: str) -> list[str]:
        """Let pods be deleted long ago, on a node that does not answer; their names."""
        pods = [pod for pod in self.moment.pods if part in pod["metadata"]["name"]]
        for pod in pods:
            pod["metadata"]["deletionTimestamp"] = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
        return [pod["metadata"]["name"] for pod in pods]


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with serving(ScriptedApi()) as api:
        yield api


def namespace(api: ScriptedApi, moment: str) -> Namespace:
    store = MemoryStore()
    run = Run(store.uri, store, check(small.gke(gke={"namespace": "team"})))
    store.put(paths.SLICES, records.dump({"state": "created"}))
    made = Namespace(run, recorded(moment), api)
    made.moment.object["metadata"]["annotations"] = {names.RUN_URI: run.uri}
    for pod in made.moment.pods:
        pod["metadata"].pop("deletionTimestamp", None)  # of the day of the recording, perhaps long ago
    api.decide = made.answer
    return made


def own(pod: dict[str, Any]) -> None:
    job = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
    pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": job, "uid": f"uid of {job}"}]


def test_a_look_at_stuck_pods_changes_nothing(api: ScriptedApi) -> None:
    team = namespace(api, "slice_lost")
    team.stuck("worker-1")
    platform = team.platform()
    seen = platform.observe(TRAIN)
    assert (seen.state, seen.stuck, seen.ran, seen.trainer_lives) == ("running", True, True, True)
    assert seen.seen_at is not None
    assert platform.slices().state == "partly"
    assert team.changes == []
    assert {request.method for request in api.requests} == {"GET"}


def test_stuck_pods_are_freed_with_the_job_that_must_begin_anew(api: ScriptedApi) -> None:
    team = namespace(api, "slice_lost")
    for pod in team.moment.pods:
        own(pod)
    pods = team.stuck("worker-1")
    team.platform().free_stuck_pods(TRAIN)
    job = team.moment.pod("worker-1")["metadata"]["labels"]["batch.kubernetes.io/job-name"]
    assert team.changes == [f"DELETE jobs/{job}", *(f"DELETE pods/{pod}" for pod in pods)]


@pytest.mark.parametrize("job", [TRAIN, EXPORT])
def test_stuck_pods_of_another_run_are_left_alone(api: ScriptedApi, job: Job) -> None:
    team = namespace(api, "slice_lost")
    team.stuck("worker-1")
    team.moment.object["metadata"]["annotations"] = {names.RUN_URI: "gs://another/run"}
    team.platform().free_stuck_pods(job)
    assert team.changes == []


def test_pods_that_still_have_their_grace_are_not_stuck(api: ScriptedApi) -> None:
    team = namespace(api, "slice_lost")
    assert not team.platform().observe(TRAIN).stuck
    team.platform().free_stuck_pods(TRAIN)
    assert team.changes == []


@pytest.mark.parametrize(("job", "moment"), [(TRAIN, "exit_70"), (EXPORT, "job_failed")])
def test_the_last_lines_of_a_failed_container_are_shown(api: ScriptedApi, job: Job, moment: str) -> None:
    team = namespace(api, moment)
    seen = team.platform().observe(job)
    assert (seen.state, seen.exit_code, seen.evidence["tail"]) == ("over", 70, "error: told to fail\n")
    assert team.changes == []
