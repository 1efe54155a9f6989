"""Patches of pod templates: what meets what, and what is refused with its path and cure."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from elastic_tpu.platforms.gke.manifests import manifest
from elastic_tpu.platforms.gke.manifests.patches import merge
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.plan import make_plan
from elastic_tpu.tests.tools.small import gke
from hypothesis import given, settings
from hypothesis import strategies as st

Json = dict[str, Any]

TEMPLATE: Json = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "hostNetwork": True,
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
        "initContainers": [{"name": "pathways-proxy", "args": ["--port=1", "--slices=2"], "image": "p:1"}],
        "containers": [
            {
                "name": "trainer",
                "command": ["python", "-m", "x"],
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "f"}}}, {"name": "B", "value": "$(A)"}],
                "volumeMounts": [{"name": "v", "mountPath": "/a"}],
                "ports": [{"containerPort": 1, "protocol": "TCP"}],
            }
        ],
        "volumes": [{"name": "v", "hostPath": {"path": "/tmp"}}],
    },
}


def merged(spec: Json | None = None, **metadata: Any) -> Json:
    before = copy.deepcopy(TEMPLATE)
    patch: Json = {"spec": spec or {}} | ({"metadata": metadata} if metadata else {})
    result = merge(TEMPLATE, patch)
    assert before == TEMPLATE
    return result


def trainer(**patch: Any) -> Json:
    (container,) = merged({"containers": [{"name": "trainer", **patch}]})["spec"]["containers"]
    return dict(container)


def test_nothing_is_nothing() -> None:
    assert merge(TEMPLATE, {}) == merged() == TEMPLATE


def test_mappings_are_merged_and_null_deletes() -> None:
    result = merged({"hostNetwork": None, "nodeSelector": {"pool": "cpu", "gone": None}}, labels={"b": "2"})
    assert result["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert "hostNetwork" not in result["spec"]
    assert result["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert result["spec"]["containers"] == TEMPLATE["spec"]["containers"]


def test_containers_are_found_by_name_and_others_are_added() -> None:
    result = merged({"initContainers": [{"name": "fetch", "image": "f:1"}, {"name": "pathways-proxy", "cpu": 1}]})
    assert [c["name"] for c in result["spec"]["initContainers"]] == ["pathways-proxy", "fetch"]
    assert result["spec"]["initContainers"][0] == {**TEMPLATE["spec"]["initContainers"][0], "cpu": 1}


def test_a_variable_replaces_the_one_of_its_name_where_it_stands() -> None:
    found = trainer(env=[{"name": "C", "value": "3"}, {"name": "A", "value": "1"}])["env"]
    assert found == [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}, {"name": "C", "value": "3"}]


def test_a_pathways_argument_replaces_the_one_of_its_flag_and_others_are_added() -> None:
    patch = {"initContainers": [{"name": "pathways-proxy", "args": ["--xla=1", "--port=7", "--xla=2"]}]}
    args = merged(patch)["spec"]["initContainers"][0]["args"]
    assert args == ["--port=7", "--slices=2", "--xla=1", "--xla=2"]


def test_volumes_mounts_ports_and_tolerations() -> None:
    result = merged(
        {
            "volumes": [{"name": "v", "hostPath": None, "emptyDir": {}}, {"name": "w"}],
            "tolerations": [
                {"key": "google.com/tpu", "operator": "Exists"},
                {"key": "t", "effect": "NoSchedule"},
                {"key": "t", "effect": "NoExecute"},
            ],
        }
    )["spec"]
    assert result["volumes"] == [{"name": "v", "emptyDir": {}}, {"name": "w"}]
    assert [t.get("effect") for t in result["tolerations"]] == [None, "NoSchedule", "NoExecute"]
    mounts = trainer(volumeMounts=[{"name": "v", "mountPath": "/b"}], ports=[{"containerPort": 1, "name": "x"}])
    assert [m["mountPath"] for m in mounts["volumeMounts"]] == ["/a", "/b"]  # one volume in two places
    assert mounts["ports"] == [{"containerPort": 1, "protocol": "TCP", "name": "x"}]


def test_other_lists_are_replaced() -> None:
    assert trainer(command=["other"])["command"] == ["other"]
    assert merged({"affinity": {"terms": [1]}})["spec"]["affinity"] == {"terms": [1]}


# -- what is refused -------------------------------------------------------------------------------------------------


def proxy(**patch: Any) -> Json:
    return {"spec": {"initContainers": [{"name": "pathways-proxy", **patch}]}}


def main(name: str = "trainer", **patch: Any) -> Json:
    return {"spec": {"containers": [{"name": name, **patch}]}}


REFUSED: list[tuple[str, Json, str]] = [
    ("head", {"nodeSelector": {"a": "b"}}, "gke.head.nodeSelector: is no part of a pod template"),
    ("head", {"spec": None}, "gke.head.spec: must be a mapping"),
    ("head", {"metadata": None}, "gke.head.metadata: must be a mapping"),
    ("head", {"metadata": {"name": "x"}}, "gke.head.metadata.name: is set by Kubernetes"),
    ("head", {"metadata": {"labels": None}}, "gke.head.metadata.labels: must be a mapping"),
    ("head", {"metadata": {"labels": {"a": 1}}}, "gke.head.metadata.labels.a: 1, must be text; put it in quotes"),
    (
        "worker",
        {"metadata": {"labels": {"elastic-tpu.dev/run-id": "mine"}}},
        "gke.worker.metadata.labels.elastic-tpu.dev/run-id: is reserved; leave it out",
    ),
    ("head", {"spec": {"restartPolicy": "OnFailure"}}, "gke.head.spec.restartPolicy: must stay Never"),
    ("worker", {"spec": {"restartPolicy": "Never"}}, "gke.worker.spec.restartPolicy: must stay OnFailure"),
    (
        "head",
        {"spec": {"serviceAccountName": "x"}},
        "gke.head.spec.serviceAccountName: is set by the product; use gke.",
    ),
    ("head", {"spec": {"containers": None}}, "gke.head.spec.containers: must be a list of mappings, each with its `na"),
    ("head", {"spec": {"containers": [{"image": "x"}]}}, "gke.head.spec.containers: must be a list of mappings, each"),
    ("head", {"spec": {"initContainers": {}}}, "gke.head.spec.initContainers: must be a list of mappings, each with"),
    (
        "head",
        main("log-shipper"),
        "gke.head.spec.containers.log-shipper: would keep the pod from ending; put it under i",
    ),
    ("head", main(command=["bash"]), "gke.head.spec.containers.trainer.command: is set by the product; leave it out"),
    ("head", main(args=["-v"]), "gke.head.spec.containers.trainer.args: is set by the product; leave it out"),
    ("head", main(image="x:1"), "gke.head.spec.containers.trainer.image: is set by the product; use gke.image"),
    ("head", main(env=None), "gke.head.spec.containers.trainer.env: must stay, with JAX_PLATFORMS in it; patch only"),
    (
        "head",
        main(env=[{"name": "JAX_PLATFORMS", "value": "cpu"}]),
        "gke.head.spec.containers.trainer.env.JAX_PLATFORMS: is set by the product: the parts of the run find",
    ),
    (
        "head",
        proxy(args=["--num_elastic_slices=0"]),
        "gke.head.spec.initContainers.pathways-proxy.args.--num_elastic_s",
    ),
    (
        "head",
        proxy(args=None),
        "gke.head.spec.initContainers.pathways-proxy.args: must stay, with --gcs_scratch_location",
    ),
    ("head", proxy(restartPolicy=None), "gke.head.spec.initContainers.pathways-proxy.restartPolicy: must stay Always"),
    (
        "head",
        proxy(image="x:1"),
        "gke.head.spec.initContainers.pathways-proxy.image: is set by the product; use gke.path",
    ),
    (
        "worker",
        {"spec": {"nodeSelector": {"cloud.google.com/reservation-project": "another"}}},
        "gke.worker.spec.nodeSelector.cloud.google.com/reservation-project: ",
    ),
    (
        "worker",
        {"spec": {"nodeSelector": {"cloud.google.com/gke-tpu-topology": "8x8"}}},
        "gke.worker.spec.nodeSelector.cloud.google.com/gke-tpu-topology: follows from slices.type; change that",
    ),
    (
        "worker",
        {"spec": {"nodeSelector": None}},
        "gke.worker.spec.nodeSelector: must stay, with cloud.google.com/gke-t",
    ),
    (
        "worker",
        main("pathways-worker", resources={"limits": None}),
        "gke.worker.spec.containers.pathways-worker.resources.limits: must stay, with google.com/tpu in it",
    ),
    (
        "jobs.evaluate.patch",
        main(command=["x"]),
        "gke.jobs.evaluate.patch.spec.containers.trainer.command: is set by the product; use gke.jobs.evaluate.command",
    ),
]


def sections(place: str, patch: Json) -> Json:
    return (
        {"head": patch}
        if place == "head"
        else {place: patch}
        if place == "worker"
        else {"jobs": {"evaluate": {"patch": patch}}}
    )


@pytest.mark.parametrize(("place", "patch", "expected"), REFUSED, ids=[expected[:70] for *_, expected in REFUSED])
def test_refused(place: str, patch: Json, expected: str) -> None:
    with pytest.raises(BadInput) as raised:
        check(gke(gke=sections(place, patch)))
    (line,) = str(raised.value).splitlines()
    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("place", "patch"),
    [
        ("head", {"metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": None}}}),
        ("head", {"spec": {"terminationGracePeriodSeconds": 900, "hostNetwork": False, "nodeSelector": {"a": "b"}}}),
        ("head", main(resources={"requests": {"cpu": "32"}}, env=[{"name": "XLA_FLAGS", "value": "--x"}])),
        ("head", proxy(args=["--xla_tpu_foo=true"], resources={"limits": {"memory": "200G"}})),
        ("head", {"spec": {"initContainers": [{"name": "logs", "image": "l:1", "restartPolicy": "Always"}]}}),
        ("worker", main("gcsfuse", image="x:1")),
        ("worker", main("pathways-worker", resources={"limits": {"memory": "100G"}})),
        ("worker", {"spec": {"volumes": [{"name": "shared-tmp", "hostPath": None, "emptyDir": {}}]}}),
        ("worker", {"spec": {"tolerations": []}}),
        ("jobs.evaluate.patch", main(env=[{"name": "JAX_PLATFORMS", "value": "cpu,tpu"}])),
    ],
)
def test_all_the_rest_is_the_users(place: str, patch: Json) -> None:
    check(gke(gke=sections(place, patch)))


def test_patches_do_not_matter_on_another_platform() -> None:
    """A profile may carry a section that only GKE reads."""
    document = gke(gke={"head": {"spec": None}})
    local = {"platform": "local", "slices": {"type": "sim-1x2", "count": 4}, "run": {"name": "x", "output": "/r"}}
    assert check({**document, **local}).gke is not None


# -- junk ------------------------------------------------------------------------------------------------------------

_keys = st.sampled_from(
    ["metadata", "spec", "containers", "initContainers", "labels", "env", "args", "name", "ports", "tolerations", "x"]
)
_leaves = st.none() | st.integers(0, 3) | st.sampled_from(["trainer", "pathways-proxy", "pathways-worker", "--a=b", ""])
_junk = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4), max_leaves=12
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["head", "worker", "jobs.evaluate.patch"]), st.dictionaries(_keys, _junk, max_size=3))
def test_junk_is_refused_or_merged(place: str, patch: Json) -> None:
    told: BadInput | None = None
    try:
        checked = check(gke(gke=sections(place, patch)))
    except BadInput as error:
        told = error
    if told is not None:
        assert all(problem.path.startswith("gke.") for problem in told.problems)
        return
    for document in manifest.documents(checked, make_plan(checked)):
        template = document["spec"].get("template") or document["spec"]["replicatedJobs"][0]["template"]
        assert json.loads(json.dumps(document)) == document
        assert "elastic-tpu.dev/run-id" in template["metadata"]["labels"]
