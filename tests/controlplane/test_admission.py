"""deploy/admission.yaml on a real API server: what it lets through, and what it refuses to whoever asks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from elastic_tpu.platforms.gke.manifests import manifest
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.plan import make_plan
from elastic_tpu.tests.platforms.gke.golden_cases import GOLDEN
from elastic_tpu.tests.support import until

if TYPE_CHECKING:
    from elastic_tpu.tests.controlplane.plane import ControlPlane

Json = dict[str, Any]
POLICY = Path(__file__).parents[2] / "deploy" / "admission.yaml"
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"serviceAccountName": "elastic-tpu-trainer", "containers": [{"name": "c", "image": "none"}]},
}


@pytest.fixture
def guarded(plane: ControlPlane, namespace: str) -> str:
    """The namespace, once the policy holds there."""
    guard(plane, namespace)
    return namespace


def guard(plane: ControlPlane, namespace: str) -> None:
    """Apply the policy as its own comment says, and wait until it holds."""
    plane.kubectl("apply", "-f", str(POLICY))
    plane.kubectl("label", "namespace", namespace, "elastic-tpu.dev/runs=restricted")
    until(lambda: refusal(plane, namespace, wider({"hostPID": True})), "the policy")


def wider(spec: Json | None = None, container: Json | None = None) -> Json:
    """A pod with more in its spec, or in its container."""
    pod = copy.deepcopy(POD)
    pod["spec"] |= spec or {}
    pod["spec"]["containers"][0] |= container or {}
    return pod


def refusal(plane: ControlPlane, namespace: str, body: Json) -> str:
    """Why the API server would not create it; empty if it would. Nothing is created."""
    import kubernetes

    path = {
        "Pod": f"/api/v1/namespaces/{namespace}/pods",
        "Job": f"/apis/batch/v1/namespaces/{namespace}/jobs",
        "JobSet": f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets",
    }[body["kind"]]
    body["metadata"]["namespace"] = namespace
    try:
        plane.admin.call_api(
            path,
            "POST",
            body=body,
            auth_settings=["BearerToken"],
            query_params=[("dryRun", "All")],
            header_params={"Content-Type": "application/json"},
        )
    except kubernetes.client.ApiException as error:
        return str(error.body)
    return ""


VOLUME = {"name": "v"}
REFUSED: dict[str, Json] = {
    "hostPID and hostIPC": wider({"hostIPC": True}),
    "past the scheduler": wider({"nodeName": "n"}),
    "a hostPath of a run": wider({"volumes": [{**VOLUME, "hostPath": {"path": "/"}}]}),
    "Secrets are not mounted": wider({"volumes": [{**VOLUME, "secret": {"secretName": "theirs"}}]}),
    "Secrets are not mounted; name": wider(
        {"volumes": [{**VOLUME, "projected": {"sources": [{"secret": {"name": "theirs"}}]}}]}
    ),
    "Secrets are not read": wider(container={"envFrom": [{"secretRef": {"name": "theirs"}}]}),
    "runs act as": wider({"serviceAccountName": "elastic-tpu-launcher"}),
    "privileged containers": wider(container={"securityContext": {"privileged": True}}),
    "added capabilities": wider(container={"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}),
    "seccomp": wider({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
    "set no sysctl": wider({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}}),
    "Pathways' images": wider(container={"name": "pathways-worker", "image": "evil.example/server:1"}),
}


def test_what_the_policy_refuses(plane: ControlPlane, guarded: str) -> None:
    assert refusal(plane, guarded, wider()) == ""
    for words, pod in REFUSED.items():
        assert words in refusal(plane, guarded, pod), words
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    template = {"spec": {**wider({"hostPID": True})["spec"], "restartPolicy": "Never"}}
    assert "hostPID" in refusal(plane, guarded, {**job, "spec": {"template": template}})


@pytest.mark.parametrize("name", [name for name in GOLDEN if name != "everything"])
def test_every_object_of_a_run_is_let_through(plane: ControlPlane, guarded: str, name: str) -> None:
    spec = check(GOLDEN[name])
    objects = manifest.documents(spec, make_plan(spec))
    for body in objects:
        assert refusal(plane, guarded, copy.deepcopy(body)) == ""
    objects[0]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["hostPID"] = True
    assert "hostPID" in refusal(plane, guarded, objects[0])


def test_what_a_profile_allows_has_to_be_allowed_here_too(plane: ControlPlane, guarded: str) -> None:
    spec = check(GOLDEN["everything"])
    refused = refusal(plane, guarded, manifest.documents(spec, make_plan(spec))[0])
    assert "service account elastic-tpu-trainer" in refused
