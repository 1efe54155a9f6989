"""A run on the real control plane: its spec, its bucket, its pods, and the launchers that drive it.

The head's pod is a process of this machine (kubelet.py) and runs the stand-in trainer; the workers' pods are played by
kwok. Launchers are the real command, with the rights of deploy/rbac.yaml and no more.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from elastic_tpu.platforms.gke import k8s_json, names
from elastic_tpu.platforms.gke.api.choice import KUBECONFIG
from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.runs.record import paths, proof
from elastic_tpu.runs.record.result import TrainingResult
from elastic_tpu.runs.record.status import Status, load_status
from elastic_tpu.runs.spec.images import TRAINER_JAX
from elastic_tpu.runs.spec.run_spec import run_id
from elastic_tpu.runs.store import records
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.stages.open import open_stage
from elastic_tpu.stages.results import StageResult
from elastic_tpu.stages.retry import until_answered
from elastic_tpu.stages.stage import Stage
from elastic_tpu.stages.steps import STEPS
from elastic_tpu.tests.controlplane.kubelet import Node, ProcessKubelet
from elastic_tpu.tests.controlplane.plane import ControlPlane
from elastic_tpu.tests.controlplane.proxy import ApiProxy
from elastic_tpu.tests.support import STANDIN, RunDirectory, expected_state, until
from elastic_tpu.tests.tools.small import write_tokenizer

Json = dict[str, Any]
BUCKET_VARIABLES = ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL", "NO_GCE_CHECK", "GOOGLE_CLOUD_PROJECT")
TAG = f"20260101-jax_{TRAINER_JAX}"


class ClusterCase(RunDirectory):
    """A run of a bucket in a namespace; `sections` are merged over a small spec."""

    def __init__(self, plane: ControlPlane, namespace: str, bucket: str, folder: Path) -> None:
        self.plane, self.namespace, self.bucket, self.folder, self.name = plane, namespace, bucket, folder, "r"
        self.server = ""  # what launchers talk to in place of the API server
        self.kubeconfig = plane.kubeconfig("elastic-tpu-launcher", namespace)
        self.pool = f"cpu-{namespace}"
        self.here: Json = {"patch": {"spec": {"nodeSelector": {"cloud.google.com/gke-nodepool": self.pool}}}}
        self.trainer: list[str] = ["--step-seconds", "0.01"]
        self.starts: list[list[str]] = []  # more options for the next starts of the trainer, one list a start
        self.kubelet: ProcessKubelet | None = None
        self.heads: list[Node] = []
        self.told: list[str] = []  # by stages, to whoever drives them
        folder.mkdir(parents=True, exist_ok=True)
        store = open_store(f"gs://{bucket}")
        for name in ("train", "eval"):
            store.put(f"{name}.array_record", b"what a stand-in does not read")
        for file in write_tokenizer(folder / "tokenizer").iterdir():
            store.put(f"tokenizer/{file.name}", file.read_bytes())
        self.spec = self.write()

    def write(self, **sections: Any) -> Path:
        """Write the spec, with sections over the default's."""
        document: Json = {
            "run": {"name": self.name, "output": f"gs://{self.bucket}/runs"},
            "platform": "gke",
            "slices": {"type": "v5litepod-16", "count": 2},
            "model": {"name": "qwen3-0.6b", "tokenizer": f"gs://{self.bucket}/tokenizer"},
            "data": {"train": f"gs://{self.bucket}/train.array_record"},
            "train": {"steps": 60},
            "checkpoint": {"every": 10},
            "export": False,
            "evaluate": False,
            "gke": {
                "namespace": self.namespace,
                "kubeconfig": str(self.kubeconfig),
                "image": "example.test/trainer:1",
                "pathways": {"tag": TAG},
                "interval": "300ms",
                "head": self.here["patch"],
                "jobs": {"export": self.here, "evaluate": self.here},
            },
        }
        for key, value in sections.items():
            both = isinstance(document.get(key), dict) and isinstance(value, dict)
            document[key] = {**document[key], **value} if both else value
        # Stages and commands open the run again, and take no login from what a bucket holds. Its fixture puts it back.
        os.environ[KUBECONFIG] = str(document["gke"]["kubeconfig"])
        self.spec = self.folder / "spec.yaml"
        self.spec.write_text(yaml.safe_dump(document))
        return self.spec

    # -- hardware ---------------------------------------------------------------------------------------------

    @contextmanager
    def hardware(self, slices: int = 2, vms: int = 4, heads: int = 1) -> Iterator[ProcessKubelet]:
        """Nodes for the head, whose pods are processes, and pools for the slices, which kwok plays."""
        for index in range(slices):
            self.plane.tpu_pool(f"{self.namespace}-s{index}", "tpu-v5-lite-podslice", "4x4", vms, 4)
        with ProcessKubelet(self.plane, self.folder / "kubelet", self.program) as kubelet:
            self.kubelet = kubelet
            self.heads = kubelet.cpu_pool(self.pool, nodes=heads)
            yield kubelet

    def program(self, pod: Json, container: Json, environment: Json, argv: list[str]) -> tuple[list[str], Json] | None:
        """What a container really runs: the stand-in for the trainer, sleep for Pathways, a user's own command."""
        del pod, environment
        if container["name"] != names.TRAINER:
            return None
        if "elastic_tpu.trainer" not in argv:
            return argv, self.environment
        job = argv[argv.index("elastic_tpu.trainer") + 1 :]
        more = self.starts.pop(0) if self.starts and job[0] == "train" else []
        return [sys.executable, str(STANDIN), *self.trainer, *more, *job], self.environment

    def hold_at(self, step: int) -> None:
        """Let training wait in this step, alive to all that happens around it, until `go_on`."""
        self.trainer += ["--hold-at", f"{step}:{self.folder / 'go-on'}"]

    def go_on(self) -> None:
        """What was held goes on."""
        (self.folder / "go-on").touch()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach the bucket."""
        return {key: os.environ[key] for key in (*BUCKET_VARIABLES, "PATH", "HOME") if key in os.environ}

    # -- the run ----------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        return f"gs://{self.bucket}/runs/{self.name}"

    @property
    def run_id(self) -> str:
        return run_id(f"gs://{self.bucket}/runs", self.name)

    def record(self, name: str) -> Json | None:
        """A small file of the run directory."""
        return self.run.read(name)

    @property
    def status(self) -> Status | None:
        return load_status(self.record("status.json"))

    def wait_for_step(self, step: int) -> None:
        def there() -> bool:
            return bool(self.started and (status := self.status) and status.phase == "training" and status.step >= step)

        until(there, f"training at step {step}")

    @property
    def started(self) -> bool:
        """Whether the run directory is there."""
        return bool(open_store(self.uri).list("spec.yaml"))

    # -- stages in this process, for tests that need no terminal ------------------------------------------------

    def stage(self, name: str, holder: str = "tests", instance: str = "1") -> Stage:
        """A stage of this run; whoever opens the first one begins the run."""
        source = self.uri if self.started else str(self.spec)
        return open_stage(STEPS[name], source, holder, instance, tell=self.told.append)

    def do(self, name: str, seconds: float = 60.0) -> tuple[Stage, Verdict]:
        """Submit a stage and watch it to its end."""
        stage = self.stage(name)
        stage.submit()
        return stage, self.watch(stage, seconds)

    def watch(self, stage: Stage, seconds: float = 60.0) -> Verdict:
        """Poll until it is done."""

        def verdict() -> Verdict | None:
            seen = stage.poll()
            return seen if seen.done else None

        return until(verdict, f"the end of {stage.name}", seconds)

    def launch(self) -> Stage:
        """Provision and submit training, and watch nothing."""
        self.do("provision")
        stage = self.stage("train")
        stage.submit()
        return stage

    def trained(self) -> TrainingResult:
        """As if training were over, with no cluster: a proven checkpoint of the last step, and a result."""
        self.do("provision")
        run, step = self.run, 59
        folder = paths.checkpoint(step)
        run.store.put(f"{folder}/state.json", records.dump({"state": expected_state(step + 1), "step": step}))
        run.store.put(f"{folder}/commit_success.txt", b"ok")
        proven = proof.Proof(step, proof.files_of(run.store, step))
        run.store.put(f"proofs/{step}.json", proven.dump())
        result = TrainingResult(step, run.path(folder), proven.digest, run.spec_hash, 1, 0, 0, 1.0, {}, False)
        run.store.put(paths.RESULT, result.dump())
        return result

    def final_state(self) -> str:
        """What the stand-in's final checkpoint has: see `support.expected_state`."""
        result = self.record("result.json")
        assert result is not None, "there is no result.json"
        saved = self.record(f"checkpoints/{result['final_step']}/state.json")
        assert saved is not None
        return str(saved["state"])

    def submit(self, stage: Stage, pause: float = 0.1, seconds: float = 60.0) -> list[str]:
        """Submit as whoever drives a stage does: again while there is no answer. What was said meanwhile."""
        told: list[str] = []
        until_answered(stage.submit, told.append, sleep=lambda _: time.sleep(pause), limit=seconds)
        return told

    def released(self) -> StageResult:
        """Release, and see that nothing is left in the cluster and that slices.json says so."""
        stage, verdict = self.do("release")
        assert verdict.outcome == "complete", verdict
        self.nothing_left()
        record = self.record("slices.json")
        assert record is None or record["state"] in ("released", "checked"), record
        return stage.collect()

    def through(self, proxy: ApiProxy) -> None:
        """From now on launchers reach the API server through the proxy; pods reach it directly."""
        self.kubeconfig = self.plane.kubeconfig("elastic-tpu-launcher", self.namespace, proxy.url)
        self.write()

    def suspend(self, suspended: bool) -> None:
        """What a queue does to a JobSet: hold it back, or let it go."""
        change = json.dumps({"spec": {"suspend": suspended}})
        self.plane.kubectl("patch", "jobset", self.run_id, "-n", self.namespace, "--type=merge", "-p", change)

    # -- the cluster, as an administrator sees it ---------------------------------------------------------------

    def get(self, kind: str, name: str = "") -> Any:
        """The object, None, or without a name all objects of this kind in the namespace."""
        arguments = ["get", kind, *([name] if name else []), "-n", self.namespace, "-o", "json", "--ignore-not-found"]
        out = self.plane.kubectl(*arguments).stdout
        found = json.loads(out) if out.strip() else None
        return found if name else (found or {"items": []})["items"]

    @property
    def jobset(self) -> Json | None:
        found: Json | None = self.get("jobset", self.run_id)
        return found

    def pods(self, role: str) -> list[Json]:
        """Living pods: of the head, or of the workers."""
        return [
            pod
            for pod in self.get("pods")
            if pod["metadata"]["labels"].get(names.REPLICATED_JOB) == role
            and pod["status"].get("phase") in ("Pending", "Running")
            and not pod["metadata"].get("deletionTimestamp")
        ]

    def lose(self, slice_: int, count: int = 1) -> None:
        """Force-delete worker pods of a slice, as an administrator."""
        mine = [p for p in self.pods(names.WORKER) if p["metadata"]["labels"][names.JOB_INDEX] == str(slice_)]
        found = [p["metadata"]["name"] for p in mine[:count]]
        self.plane.kubectl("delete", "pod", "-n", self.namespace, "--force", "--grace-period=0", *found)

    def nothing_left(self) -> None:
        """No object of the run and no process of it is there, but for Jobs that are over and wait for their ttl."""
        jobs, pods = self.get("jobs"), self.get("pods")
        over = [
            job["metadata"]["uid"]
            for job in jobs
            if k8s_json.holds(job, "Complete") and "ttlSecondsAfterFinished" in job["spec"]
        ]
        kept = {*over, *(p["metadata"]["uid"] for p in pods if p["metadata"]["ownerReferences"][0]["uid"] in over)}
        left = [item for item in [*self.get("jobsets"), *jobs, *pods] if item["metadata"]["uid"] not in kept]
        assert not left, [item["metadata"]["name"] for item in left]
        if self.kubelet is not None:
            until(lambda: not self.kubelet.left(), "processes gone", 10)  # type: ignore[union-attr]
