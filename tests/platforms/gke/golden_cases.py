"""Specs whose manifests are kept in golden/, to be read in a review and sent to a real API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elastic_tpu.runs.spec.images import TRAINER_JAX
from elastic_tpu.tests.tools.small import gke

FOLDER = Path(__file__).with_name("golden")
DIGEST = f"sha256:{'0123456789abcdef' * 4}"

GOLDEN: dict[str, dict[str, Any]] = {
    "plain": gke(),
    "everything": gke(
        run={"labels": {"team": "nlp", "cost-centre": "42"}},
        slices={"type": "v5litepod-16", "count": 3, "min": 2, "capacity": "spot", "queue": "tpu-queue"},
        model={"name": "qwen3-8b"},
        recovery={"head_restarts": 7},
        secrets={"HF_TOKEN": {"secret": "hf-token", "key": "token"}},
        gke={
            "namespace": "training",
            "allow": ["serviceAccount:trainer", "registry:eu.gcr.io/acme"],
            "service_account": "trainer",
            "priority_class": "high",
            "ttl": "90m",
            "image": f"eu.gcr.io/acme/elastic-tpu@{DIGEST}",
            "pathways": {
                "tag": f"20260510-jax_{TRAINER_JAX}",
                "server": "eu.gcr.io/acme/pathways-server",
                "proxy": f"eu.gcr.io/acme/pathways-proxy@{DIGEST}",
            },
            "head": {
                "spec": {
                    "nodeSelector": {"cloud.google.com/gke-nodepool": "cpu-np"},
                    "initContainers": [{"name": "pathways-proxy", "args": ["--xla_tpu_scoped_vmem_limit_kib=65536"]}],
                    "containers": [{"name": "trainer", "env": [{"name": "LIBTPU_INIT_ARGS", "value": "--x=1"}]}],
                }
            },
            "worker": {"spec": {"tolerations": [{"key": "team", "operator": "Equal", "value": "nlp"}]}},
            "jobs": {
                "export": {"cpu": 16, "memory": 64},
                "evaluate": {"hardware": "tpu", "image": "eu.gcr.io/acme/evals:7", "command": ["evaluate", "--all"]},
            },
        },
    ),
    "reservation": gke(
        slices={
            "type": "v5p-16",
            "count": 2,
            "capacity": "reservation",
            "reservation": "projects/acme/reservations/r1",
        },
        export=False,
        evaluate=False,
    ),
    "flex-start": gke(slices={"type": "tpu7x-16", "count": 2, "capacity": "flex_start"}, evaluate=False),
    "colocated-python": gke(
        slices={"count": 1},
        train={"maxtext": {"colocated_python_data_input": True}},
        gke={
            "pathways": {"tag": f"20260510-jax_{TRAINER_JAX}", "colocated_python": "eu.gcr.io/acme/colocated:3"},
        },
        evaluate=False,
    ),
    "single-host": gke(slices={"type": "v6e-4", "count": 2}, gke={"single_host_slices": True}),
}
