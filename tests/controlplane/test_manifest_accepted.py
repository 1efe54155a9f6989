"""Every golden manifest, sent to a real API server: strict validation, the webhooks of JobSet, and what it makes."""

from __future__ import annotations

from typing import Any

import kubernetes
import pytest
import yaml
from elastic_tpu.platforms.gke import names
from elastic_tpu.tests.controlplane.plane import ControlPlane
from elastic_tpu.tests.platforms.gke.golden_cases import FOLDER, GOLDEN
from elastic_tpu.tests.support import until

Json = dict[str, Any]
PATHS = {"JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets", "Job": "/apis/batch/v1/namespaces/{}/jobs"}


def documents(name: str, namespace: str) -> list[Json]:
    found = list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))
    for document in found:
        document["metadata"]["namespace"] = namespace
    return found


def create(plane: ControlPlane, document: Json, **query: str) -> Json:
    """As the launcher does it, with its rights."""
    namespace = document["metadata"]["namespace"]
    answer: Json = plane.api_client("elastic-tpu-launcher", namespace).call_api(
        PATHS[document["kind"]].format(namespace),
        "POST",
        body=document,
        query_params=[("fieldValidation", "Strict"), *query.items()],
        auth_settings=["BearerToken"],
        response_type="object",
    )[0]
    return answer


@pytest.mark.parametrize("name", GOLDEN)
def test_accepted(plane: ControlPlane, namespace: str, name: str) -> None:
    for document in documents(name, namespace):
        answer = create(plane, document, dryRun="All")
        assert answer["metadata"]["name"] == document["metadata"]["name"]


def test_a_field_that_does_not_exist_is_refused(plane: ControlPlane, namespace: str) -> None:
    """Which proves that the validation above is strict."""
    jobset = documents("plain", namespace)[0]
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["nodeSelectr"] = {}
    with pytest.raises(kubernetes.client.ApiException, match="nodeSelectr"):
        create(plane, jobset, dryRun="All")


def test_its_jobs_and_pods_are_made_as_they_are_named(plane: ControlPlane, namespace: str) -> None:
    """Dry runs end before the Job controller, which has rules of its own for pods."""
    plane.cpu_pool(f"{namespace}-cpu")
    for index in range(4):
        plane.tpu_pool(f"{namespace}-{index}", "tpu-v6e-slice", "4x4", 4, 4)
    jobset, *jobs = documents("plain", namespace)
    run_id = create(plane, jobset)["metadata"]["name"]
    for job in jobs:
        create(plane, job)
    objects = kubernetes.client.CustomObjectsApi(plane.admin)
    core = kubernetes.client.CoreV1Api(plane.admin)

    def ready() -> bool:
        found = objects.get_namespaced_custom_object("jobset.x-k8s.io", "v1alpha2", namespace, "jobsets", run_id)
        status = {r["name"]: r["ready"] for r in found.get("status", {}).get("replicatedJobsStatus", ())}
        return status == {names.HEAD: 1, names.WORKER: 4}

    until(ready, "all of the JobSet's pods")
    made = {job.metadata.name for job in kubernetes.client.BatchV1Api(plane.admin).list_namespaced_job(namespace).items}
    slices = {names.worker_job(run_id, index) for index in range(4)}
    assert made == {names.head_job(run_id), *slices, *(names.plain_job(run_id, job) for job in ("export", "evaluate"))}
    pods = core.list_namespaced_pod(namespace, label_selector=f"{names.RUN_ID}={run_id}").items
    roles = [pod.metadata.labels[names.ROLE] for pod in pods]
    assert sorted(roles) == ["evaluate", "export", "head", *["worker"] * 16]
    pools = {
        (p.metadata.labels[names.JOB_INDEX], p.spec.node_name.rpartition("-")[0])
        for p in pods
        if p.metadata.labels[names.ROLE] == "worker"
    }
    assert len(pools) == 4  # a slice, a pool
