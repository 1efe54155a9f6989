"""What a spec for GKE must say, and what cannot be run there: one mistake, one line, with its cure."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.spec.images import TRAINER_JAX
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.plan import colocated_python, make_plan
from elastic_tpu.tests.tools.small import gke, spec

PATHWAYS = {"tag": f"20260510-jax_{TRAINER_JAX}"}
SECRET = {"secret": "s", "key": "k"}
MOUNT = {"spec": {"containers": [{"name": "trainer", "volumeMounts": [{"name": "d", "mountPath": "/data"}]}]}}
EVALUATOR = {"jobs": {"evaluate": {"image": "acme/evals:7", "command": ["evals"]}}}


def lines(document: dict[str, Any]) -> list[str]:
    try:
        check(document)
    except BadInput as error:
        return str(error).splitlines()
    return []


MISTAKES: list[tuple[dict[str, Any], str]] = [
    (gke(gke=None), "gke: is required on platform gke: the trainer's `image`, `pathways: {tag}`, and the cluster"),
    (gke(gke={"image": None}), "gke.image: is required: the trainer's image, e.g. gcr.io/acme/elastic-tpu:0.1.0"),
    (gke(gke={"image": 7}), "gke.image: 7, must be text; put it in quotes"),
    (gke(gke={"image": "acme/x:latest"}), "gke.image: 'acme/x:latest', `latest` may name another image tomorrow"),
    (gke(gke={"pathways": None}), "gke.pathways.tag: is required: the release of the Pathways images"),
    (gke(gke={"pathways": {}}), "gke.pathways.tag: is required"),
    (gke(gke={"pathways": {"tag": "latest"}}), "gke.pathways.tag: 'latest', must be a release that names its JAX"),
    (gke(gke={"pathways": {"tag": "20260128-jax_0.9.0"}}), "gke.pathways.tag: '20260128-jax_0.9.0', is for JAX 0.9.0"),
    (
        gke(gke={"pathways": {**PATHWAYS, "proxy": "r/p:7"}}),
        "gke.pathways.proxy: 'r/p:7', server and proxy share one tag",
    ),
    (gke(gke={"pathways": {**PATHWAYS, "serer": "r/p"}}), "gke.pathways.serer: 'r/p', is not a field here; nearest: s"),
    (gke(gke={"jobs": {"export": {"image": "x"}}}), "gke.jobs.export.image: 'x', has no tag"),
    (gke(gke={"jobs": {"export": {"memory": 0}}}), "gke.jobs.export.memory: 0, must be greater than 0"),
    (gke(gke={"jobs": {"train": {}}}), "gke.jobs.train: is not a field here; known: export, evaluate"),
    (gke(gke={"project": "p", "cluster": "c"}), "gke.location: is required: a cluster is named by gke.project, gke.lo"),
    (gke(gke={"namespace": "Training"}), "gke.namespace: 'Training', must be a Kubernetes name"),
    (gke(gke={"interval": "1ms"}), "gke.interval: '1ms', must be at least 100ms"),
    (gke(gke={"endpoint": "vpn"}), "gke.endpoint: 'vpn', must be 'public', 'private' or 'dns'"),
    (gke(slices={"type": "v6e-4"}), "slices.type: 'v6e-4', is one VM, and GKE joins only slices of several"),
    (
        gke(slices={"type": None, "machine_type": "ct6e-standard-8t", "topology": "2x4"}),
        "slices.machine_type: 'ct6e-standard-8t', is one VM",
    ),
    (gke(slices={"type": "v6e-1", "count": 1}), "slices.type: 'v6e-1', has one chip a machine, which Pathways"),
    (
        gke(slices={"capacity": "reservation", "reservation": "zones/x/r"}),
        "slices.reservation: 'zones/x/r', must be a reservation's name, or projects/<project>/reservations/<name>",
    ),
    (gke(slices={"queue": "TPU queue"}), "slices.queue: 'TPU queue', must be a Kubernetes name"),
    (gke(run={"labels": {"elastic-tpu.dev/role": "x"}}), "run.labels.elastic-tpu.dev/role: 'x', is reserved: the prod"),
    (
        gke(run={"labels": {"kueue.x-k8s.io/queue-name": "q"}}),
        "run.labels.kueue.x-k8s.io/queue-name: 'q', is set by the product; use slices.queue",
    ),
    (
        gke(model={"tokenizer": "/opt/tok"}),
        "model.tokenizer: '/opt/tok', must be a bucket (gs://...) on platform gke, or",
    ),
    (
        gke(data={"train": "/data/x.parquet"}),
        "data.train: '/data/x.parquet', must be a bucket (gs://...) on platform gke",
    ),
    (gke(run={"output": "gs://My_Bucket!/runs"}), "run.output: 'gs://My_Bucket!/runs', has no valid bucket name"),
    (
        gke(gke={"worker": {"spec": {"containers": [{"name": "worker", "tty": True}]}}}),
        "gke.worker.spec.containers.worker: is no container of the pod (there is pathways-worker); a new one needs an",
    ),
    (gke(secrets={"JAX_PLATFORMS": SECRET}), "secrets.JAX_PLATFORMS: is a variable that the product sets"),
    (gke(secrets={"HF-TOKEN": SECRET}), "secrets.HF-TOKEN: names an environment variable"),
    (
        gke(train={"maxtext": {"colocated_python_checkpointing": True}}),
        "gke.pathways.colocated_python: is required by train.maxtext.colocated_python_checkpointing",
    ),
    (gke(data={"eval": None}), "data.eval: is required by evaluate.heldout"),
]


@pytest.mark.parametrize(("document", "expected"), MISTAKES, ids=[expected[:60] for _, expected in MISTAKES])
def test_one_mistake_is_one_line(document: dict[str, Any], expected: str) -> None:
    (line,) = lines(document)
    assert line.startswith(expected)


@pytest.mark.parametrize(
    "document",
    [
        gke(slices={"type": "v6e-4", "count": 1}),
        gke(slices={"type": "v6e-4"}, gke={"single_host_slices": True}),
        gke(slices={"capacity": "reservation", "reservation": "projects/p/reservations/r/reservationBlocks/b"}),
        gke(gke={"project": "p", "location": "l", "cluster": "c", "endpoint": "dns"}),
        gke(gke={"context": "c", "kubeconfig": "/k"}),
        gke(run={"labels": {"acme.com/team": "nlp"}}),
        gke(gke={"head": MOUNT}, data={"train": "/data/train.parquet"}, model={"tokenizer": "/data/tokenizer"}),
        gke(gke={"worker": {"spec": {"initContainers": [{"name": "warm-up", "image": "acme/warm:1"}]}}}),
        # What one's own evaluator measures, and on what, is its own affair.
        gke(gke=EVALUATOR, data={"eval": None}),
        gke(gke=EVALUATOR, evaluate={"heldout": False, "gate": ["mmlu.acc >= 0.6"]}),
    ],
)
def test_what_is_right(document: dict[str, Any]) -> None:
    assert lines(document) == []


def test_a_spec_that_is_written_and_read_is_the_same() -> None:
    first = check(gke(gke={"jobs": {"export": {"cpu": 2}}, "head": {"spec": {"affinity": None}}}))
    assert check(first.model_dump(mode="json", exclude_none=True)).hash() == first.hash()


def test_colocated_python_costs_suspend_and_resume() -> None:
    key = "colocated_python_data_input"
    pathways = {**PATHWAYS, "colocated_python": "acme/sidecar:3"}
    with_it = spec(**gke(train={"maxtext": {key: True}}, gke={"pathways": pathways}))
    assert colocated_python(with_it) == [key]
    assert any("cannot suspend and resume" in note for note in make_plan(with_it).notes)
    assert colocated_python(spec(**gke())) == []


def test_a_checkpoint_of_unknown_size_goes_through_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher without MaxText knows no size; a large checkpoint would not fit the head's memory."""
    monkeypatch.setattr("elastic_tpu.runs.spec.maxtext_config.base", dict)
    monkeypatch.setattr("elastic_tpu.runs.spec.maxtext_config.model", lambda name: {})
    plan = make_plan(spec(**gke()))
    assert plan.memory is None
    assert plan.persistence
    assert "not known here" in plan.persistence_reason
    assert not make_plan(spec()).persistence
