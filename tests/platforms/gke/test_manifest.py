"""What is sent to Kubernetes: compared with golden files, and held against what a run needs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from elastic_tpu.platforms.base import Job
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.gke.manifests import manifest
from elastic_tpu.platforms.gke.pod_api import MOUNTED
from elastic_tpu.runs.spec import patch_rules
from elastic_tpu.runs.spec.images import TRAINER_JAX
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.plan import make_plan
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.tests.controlplane import binaries
from elastic_tpu.tests.platforms.gke.golden_cases import FOLDER, GOLDEN
from elastic_tpu.tests.tools.small import gke

Json = dict[str, Any]


def made(**sections: Any) -> tuple[RunSpec, Json]:
    """A spec and its JobSet."""
    spec = check(gke(**sections))
    return spec, manifest.jobset(spec, make_plan(spec))


def template(jobset: Json, name: str) -> Json:
    """The Job template of head or worker."""
    (found,) = [r["template"] for r in jobset["spec"]["replicatedJobs"] if r["name"] == name]
    return dict(found)


def pod(jobset: Json, name: str) -> Json:
    return dict(template(jobset, name)["spec"]["template"]["spec"])


def container(pod: Json, name: str) -> Json:
    (found,) = [c for c in (*pod.get("initContainers", ()), *pod["containers"]) if c["name"] == name]
    return dict(found)


def environment(container: Json) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}


def plain(job: str = "evaluate", **sections: Any) -> Json:
    spec = check(gke(**sections))
    argv = (job, "--run", spec.uri)
    return manifest.job(spec, make_plan(spec), Job(job, argv, slices=False))


FIREWALL = Path(__file__).parents[3] / "deploy" / "firewall.sh"


def templates(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod template of every object of a run."""
    spec = check(document)
    first, *jobs = manifest.documents(spec, make_plan(spec))
    found = [one["template"]["spec"]["template"] for one in first["spec"]["replicatedJobs"]]
    return [*found, *(one["spec"]["template"] for one in jobs)]


# -- golden files: a change of what is sent is seen in a review ------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    """UPDATE_GOLDEN=1 writes them anew."""
    spec = check(GOLDEN[name])
    objects = manifest.documents(spec, make_plan(spec))
    path = FOLDER / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(yaml.safe_dump_all(objects, sort_keys=False, width=1000))
    assert list(yaml.safe_load_all(path.read_text())) == objects


def test_every_golden_file_has_its_case() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(GOLDEN)


# -- against the CRD of the JobSet release that tests run ------------------------------------------------------------


def closed(schema: Any) -> Any:
    """The schema with no other fields allowed than those it names, as strict validation has it."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict) and schema.get("type") == "object":
        inner.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        inner = {"type": ["integer", "string"]}
    return inner


def test_schema() -> None:
    path = binaries.directory() / "jobset-config/crd/bases/jobset.x-k8s.io_jobsets.yaml"
    if not path.exists():
        pytest.skip("the JobSet CRD is not here: `make controlplane` builds it")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the other takes seconds for 10,000 lines
    (version,) = yaml.load(path.read_text(), Loader=loader)["spec"]["versions"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    validator = jsonschema.Draft7Validator(schema)
    for name in GOLDEN:
        validator.validate(next(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())))
    assert list(validator.iter_errors({"metadata": {}, "sped": {}}))  # it is strict


# -- names and labels --------------------------------------------------------------------------------------------


def pieces(document: Any) -> Iterator[Json]:
    """Every object and pod template in a document."""
    if isinstance(document, dict):
        if "spec" in document and "metadata" in document:
            yield document
        for value in document.values():
            yield from pieces(value)
    elif isinstance(document, list):
        for item in document:
            yield from pieces(item)


@pytest.mark.parametrize("case", GOLDEN)
def test_everything_of_a_run_is_found_by_its_label(case: str) -> None:
    spec = check(GOLDEN[case])
    found = list(pieces(manifest.documents(spec, make_plan(spec))))
    assert len(found) >= 5  # JobSet, two Jobs, their pods
    for piece in found:
        labels = piece["metadata"]["labels"]
        assert labels[names.RUN_ID] == spec.run_id
        assert {**labels, **spec.run.labels} == labels
        assert all(isinstance(value, str) for value in labels.values())


def test_roles_tell_pods_apart() -> None:
    _, jobset = made()
    roles = [
        template(jobset, names.HEAD)["spec"]["template"]["metadata"]["labels"][names.ROLE],
        template(jobset, names.WORKER)["spec"]["template"]["metadata"]["labels"][names.ROLE],
        *(plain(job)["spec"]["template"]["metadata"]["labels"][names.ROLE] for job in ("export", "evaluate")),
    ]
    assert roles == ["head", "worker", "export", "evaluate"]


def test_an_adopter_can_compare() -> None:
    spec, jobset = made()
    expected = {names.RUN_URI: "gs://bucket/runs/small", names.SPEC_HASH: spec.hash()}
    assert jobset["metadata"]["annotations"] == plain()["metadata"]["annotations"] == expected
    assert made(train={"steps": 101})[1]["metadata"]["annotations"][names.SPEC_HASH] != spec.hash()


def test_the_longest_name_fits_a_coordinator_label() -> None:
    spec, jobset = made(run={"name": "a-name-that-is-much-longer-than-it-need-be"})
    name = jobset["metadata"]["name"]
    assert name == spec.run_id
    assert len(name) <= 22
    assert len(f"{name}-{names.HEAD}-0-0.{name}") <= 63
    assert "subdomain" not in jobset["spec"]["network"]


# -- who restarts what ---------------------------------------------------------------------------------------------


def test_a_head_that_ended_for_good_fails_the_run_and_any_other_is_restarted() -> None:
    _, jobset = made(recovery={"head_restarts": 7})
    policy = jobset["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 7
    (rule,) = policy["rules"]
    assert rule["action"] == "FailJobSet"
    assert (rule["onJobFailureReasons"], rule["targetReplicatedJobs"]) == (["PodFailurePolicy"], [names.HEAD])
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_,:]*", rule["name"])  # a hyphen is refused
    head = template(jobset, names.HEAD)["spec"]
    assert head["backoffLimit"] == 0
    (exits,) = head["podFailurePolicy"]["rules"]
    assert exits["action"] == "FailJob"
    assert exits["onExitCodes"] == {"containerName": "trainer", "operator": "In", "values": [64, 70, 76, 77]}
    assert pod(jobset, names.HEAD)["restartPolicy"] == "Never"


def test_a_slice_has_a_budget_a_pod_and_not_one_for_all() -> None:
    worker = template(made(slices={"type": "v6e-32"})[1], names.WORKER)["spec"]
    assert (worker["completions"], worker["parallelism"]) == (8, 8)
    assert (worker["backoffLimitPerIndex"], worker["maxFailedIndexes"]) == (50, 0)
    assert "backoffLimit" not in worker


def test_the_run_is_over_when_the_head_is() -> None:
    _, jobset = made(gke={"ttl": "1500ms"})
    assert jobset["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": [names.HEAD]}
    assert jobset["spec"]["ttlSecondsAfterFinished"] == 2
    assert made()[1]["spec"]["ttlSecondsAfterFinished"] == 3600


def test_the_trainer_has_time_to_save_and_is_not_moved_about() -> None:
    head = template(made()[1], names.HEAD)["spec"]["template"]
    assert head["spec"]["terminationGracePeriodSeconds"] == 300
    assert head["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


# -- the trainer -----------------------------------------------------------------------------------------------------


def test_the_trainer() -> None:
    _, jobset = made(secrets={"HF_TOKEN": {"secret": "hf", "key": "token"}}, gke={"namespace": "training"})
    trainer = container(pod(jobset, names.HEAD), "trainer")
    assert trainer["command"] == ["python", "-m", "elastic_tpu.trainer", "train", "--run", "gs://bucket/runs/small"]
    found = environment(trainer)
    assert (found["JAX_PLATFORMS"], found["JAX_BACKEND_TARGET"]) == ("proxy", "grpc://localhost:29000")
    assert found["ELASTIC_TPU_PATHWAYS_JAX"] == TRAINER_JAX
    assert found["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert jobset["metadata"]["namespace"] == "training"
    assert [mount["mountPath"] for mount in trainer["volumeMounts"]] == [MOUNTED]
    assert pod(jobset, names.HEAD)["serviceAccountName"] == "elastic-tpu-trainer"


def test_the_token_of_the_account_is_the_trainers_alone() -> None:
    """It asks for a lost slice by it; Pathways' containers and the plain Jobs have none."""
    for document in GOLDEN.values():
        for template_ in templates(document):
            assert template_["spec"]["automountServiceAccountToken"] is False
            for one in (*template_["spec"].get("initContainers", ()), *template_["spec"]["containers"]):
                mounts = [mount["name"] for mount in one.get("volumeMounts", ())]
                is_trainer = one["name"] == "trainer" and template_["metadata"]["labels"][names.ROLE] == "head"
                assert ("kubernetes-api" in mounts) is is_trainer


def test_no_container_can_get_more_rights_than_it_starts_with() -> None:
    for document in GOLDEN.values():
        for template_ in templates(document):
            assert template_["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for one in (*template_["spec"].get("initContainers", ()), *template_["spec"]["containers"]):
                assert one["securityContext"]["allowPrivilegeEscalation"] is False


def test_the_firewall_closes_every_port_of_pathways() -> None:
    (line,) = [line for line in FIREWALL.read_text().splitlines() if line.startswith("PORTS=")]
    ranges = [part.removeprefix("tcp:").partition("-") for part in line.removeprefix("PORTS=").split(",")]
    closed = {port for low, _, high in ranges for port in range(int(low), int(high or low) + 1)}
    for document in GOLDEN.values():
        for template_ in templates(document):
            for one in (*template_["spec"].get("initContainers", ()), *template_["spec"]["containers"]):
                assert {port["containerPort"] for port in one.get("ports", ())} <= closed


@pytest.mark.parametrize(("model", "value"), [("qwen3-0.6b", None), ("qwen3-1.7b", "1")])
def test_persistence_follows_the_plan(model: str, value: str | None) -> None:
    _, jobset = made(model={"name": model})
    found = environment(container(pod(jobset, names.HEAD), "trainer"))
    assert found.get("ENABLE_PATHWAYS_PERSISTENCE") == value


def test_elastic_arguments() -> None:
    _, jobset = made(slices={"type": "v5litepod-16", "count": 3, "min": 2})
    proxy, manager = (container(pod(jobset, names.HEAD), name) for name in ("pathways-proxy", "pathways-rm"))
    assert "--num_elastic_slices=3" in proxy["args"]
    assert "--virtual_slices=tpuv5e:4x4,tpuv5e:4x4,tpuv5e:4x4" in proxy["args"]
    assert {"--instance_count=3", "--instance_type=tpuv5e:4x4"} <= set(manager["args"])
    scratch = "--gcs_scratch_location=gs://bucket/runs/small/pathways"
    worker = container(pod(jobset, names.WORKER), "pathways-worker")
    assert all(scratch in one["args"] for one in (proxy, manager, worker))


def test_variables_are_defined_before_they_are_used() -> None:
    """Kubernetes leaves `$(NAME)` as it is where NAME comes later."""
    for document in GOLDEN.values():
        spec = check(document)
        jobset = manifest.jobset(spec, make_plan(spec))
        for name in (names.HEAD, names.WORKER):
            for one in (*pod(jobset, name).get("initContainers", ()), *pod(jobset, name)["containers"]):
                known = {variable["name"] for variable in one["env"]}
                assert set(re.findall(r"\$\((\w+)\)", json.dumps(one.get("args", [])))) <= known
                for index, variable in enumerate(one["env"]):
                    before = {v["name"] for v in one["env"][:index]}
                    assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= before


# -- where pods go ---------------------------------------------------------------------------------------------------

ACCELERATOR, TOPOLOGY = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"


@pytest.mark.parametrize(
    ("slices", "selector"),
    [
        ({}, {}),
        ({"capacity": "spot"}, {"cloud.google.com/gke-spot": "true"}),
        ({"capacity": "flex_start"}, {"cloud.google.com/gke-flex-start": "true"}),
        ({"capacity": "reservation", "reservation": "r1"}, {"cloud.google.com/reservation-name": "r1"}),
        (
            {"capacity": "reservation", "reservation": "projects/p/reservations/r1/reservationBlocks/b"},
            {"cloud.google.com/reservation-name": "r1", "cloud.google.com/reservation-project": "p"},
        ),
    ],
)
def test_slices_are_of_the_capacity_that_was_asked_for(slices: Json, selector: dict[str, str]) -> None:
    worker = pod(made(slices=slices)[1], names.WORKER)
    assert worker["nodeSelector"] == {ACCELERATOR: "tpu-v6e-slice", TOPOLOGY: "4x4", **selector}
    assert container(worker, "pathways-worker")["resources"]["limits"] == {"google.com/tpu": "4"}
    keys = [toleration["key"] for toleration in worker["tolerations"]]
    assert keys == ["google.com/tpu", *(key for key in selector if "reservation" not in key)]
    assert "nodeSelector" not in pod(made(slices=slices)[1], names.HEAD)


def test_a_slice_has_a_node_pool_to_itself_and_a_head_a_node() -> None:
    key = "alpha.jobset.sigs.k8s.io/exclusive-topology"

    def places(**slices: Any) -> list[str]:
        _, jobset = made(slices=slices, gke={"single_host_slices": True})
        pods = [template(jobset, name)["spec"]["template"] for name in (names.HEAD, names.WORKER)]
        return [one["metadata"]["annotations"][key] for one in pods]

    assert places() == ["kubernetes.io/hostname", "cloud.google.com/gke-nodepool"]
    assert places(type="v6e-4") == ["kubernetes.io/hostname", "kubernetes.io/hostname"]  # many slices a pool


def test_a_queue_gets_the_run_and_is_left_to_suspend_it() -> None:
    _, jobset = made(slices={"queue": "tpu-queue"})
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "tpu-queue"
    assert "suspend" not in jobset["spec"]
    assert "kueue.x-k8s.io/queue-name" not in made()[1]["metadata"]["labels"]


def test_priority() -> None:
    _, jobset = made(gke={"priority_class": "high"})
    assert {pod(jobset, name)["priorityClassName"] for name in (names.HEAD, names.WORKER)} == {"high"}
    assert plain(gke={"priority_class": "high"})["spec"]["template"]["spec"]["priorityClassName"] == "high"


# -- export and evaluation -------------------------------------------------------------------------------------------


def test_a_job_on_cpu() -> None:
    job = plain("export", gke={"jobs": {"export": {"cpu": 2, "memory": 4.5}}}, slices={"queue": "q"})
    (one,) = job["spec"]["template"]["spec"]["containers"]
    assert job["metadata"]["name"] == names.plain_job("small-26780d1b", "export")
    assert one["command"] == ["python", "-m", "elastic_tpu.trainer", "export", "--run", "gs://bucket/runs/small"]
    assert one["resources"] == {"requests": {"cpu": "2", "memory": "4608Mi"}, "limits": {"memory": "4608Mi"}}
    assert environment(one)["JAX_PLATFORMS"] == "cpu"
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]
    (usual,) = plain("export")["spec"]["template"]["spec"]["containers"]
    assert usual["resources"]["requests"] == {"cpu": "8", "memory": "32Gi"}


@pytest.mark.parametrize(
    ("type", "topology", "chips"), [("v6e-16", "2x2", "4"), ("v5p-16", "2x2x1", "4"), ("tpu7x-16", "2x2x1", "4")]
)
def test_a_job_on_one_tpu_host(type: str, topology: str, chips: str) -> None:
    slices = {"type": type, "queue": "q", "capacity": "spot"}
    job = plain(gke={"jobs": {"evaluate": {"hardware": "tpu"}}}, slices=slices)
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeSelector"][TOPOLOGY] == topology
    assert spec["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert spec["containers"][0]["resources"]["limits"]["google.com/tpu"] == chips
    assert environment(spec["containers"][0])["JAX_PLATFORMS"] == "tpu"  # no libtpu: an error, not a CPU's work
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"


def test_ones_own_evaluator_is_told_the_run() -> None:
    job = plain(gke={"jobs": {"evaluate": {"image": "acme/evals:7", "command": ["evals", "--all"]}}})
    (one,) = job["spec"]["template"]["spec"]["containers"]
    assert (one["image"], one["command"]) == ("acme/evals:7", ["evals", "--all"])
    assert environment(one)["ELASTIC_TPU_RUN"] == "gs://bucket/runs/small"


def test_a_job_is_not_tried_again_where_that_cannot_help() -> None:
    job = plain()["spec"]
    final, disrupted = job["podFailurePolicy"]["rules"]
    assert (final["action"], final["onExitCodes"]["values"]) == ("FailJob", [64, 65, 70, 76, 77])
    assert (disrupted["action"], job["backoffLimit"]) == ("Ignore", 3)  # a preempted node counts for nothing
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_what_is_switched_off_is_not_there() -> None:
    def kinds(**sections: Any) -> list[str]:
        spec = check(gke(**sections))
        return [f"{d['kind']} {d['metadata']['name']}" for d in manifest.documents(spec, make_plan(spec))]

    name = "small-26780d1b"
    assert kinds() == [f"JobSet {name}", f"Job {name}-export", f"Job {name}-evaluate"]
    assert kinds(evaluate=False) == [f"JobSet {name}", f"Job {name}-export"]
    assert kinds(evaluate=False, export=False) == [f"JobSet {name}"]


# -- patches ---------------------------------------------------------------------------------------------------------


def test_patches_are_in_the_result() -> None:
    spec = check(GOLDEN["everything"])
    jobset = manifest.jobset(spec, make_plan(spec))
    proxy = container(pod(jobset, names.HEAD), "pathways-proxy")
    assert proxy["args"][-1] == "--xla_tpu_scoped_vmem_limit_kib=65536"
    assert "--num_elastic_slices=3" in proxy["args"]
    assert environment(container(pod(jobset, names.HEAD), "trainer"))["LIBTPU_INIT_ARGS"] == "--x=1"
    assert {"key": "google.com/tpu", "operator": "Exists"} in pod(jobset, names.WORKER)["tolerations"]


@pytest.mark.parametrize(
    ("contract", "of"), [(patch_rules.HEAD, names.HEAD), (patch_rules.WORKER_POD, names.WORKER), (None, "job")]
)
def test_what_is_protected_is_there(contract: patch_rules.Contract | None, of: str) -> None:
    """A protected path that no manifest has would protect nothing: a slip of the pen here, or a renamed container."""
    found: set[tuple[str, ...]] = set()
    for document in GOLDEN.values():
        spec = check(document)
        jobset = manifest.jobset(spec, make_plan(spec))
        if of == "job":
            tops = [plain(**{k: v for k, v in document.items() if k != "platform"})["spec"]["template"]]
        else:
            tops = [template(jobset, of)["spec"]["template"]]
        for path in (contract or patch_rules.job_contract("evaluate")).fixed:
            found |= {path for top in tops if patch_rules._touched(top, path) == path}
    # What is protected from being added; all else is in a manifest already.
    missing = set((contract or patch_rules.job_contract("evaluate")).fixed) - found
    assert {path[-1] for path in missing} <= {"args", "command", "serviceAccount"}
    assert all(path[2] != "trainer" or path[-1] == "args" for path in missing if len(path) > 2)


def test_containers_are_called_the_same_everywhere() -> None:
    assert names.TRAINER == patch_rules.TRAINER
    assert patch_rules.OURS[0] == f"{names.PREFIX}/"
