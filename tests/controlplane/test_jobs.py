"""Export and evaluation as Jobs: over when their proof holds, adopted, cancelled, begun anew, or the user's own."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from elastic_tpu.cli.main import app
from elastic_tpu.platforms.gke import names
from elastic_tpu.platforms.gke.status import stuck_pods
from elastic_tpu.runs.errors import ElasticTPUError, ExitCode, GateFailed
from elastic_tpu.tests.support import Launcher, until
from typer.testing import CliRunner

if TYPE_CHECKING:
    from elastic_tpu.tests.controlplane.cases import ClusterCase

EVALUATED = {"export": {}, "evaluate": {"gate": ["heldout.loss <= 2"]}}


def uid(case: ClusterCase, job: str) -> str | None:
    """Of the Job, if there is one."""
    found = case.get("job", names.plain_job(case.run_id, job))
    return found["metadata"]["uid"] if found else None


def test_a_run_with_export_and_evaluation_by_the_command(case: ClusterCase) -> None:
    case.write(**EVALUATED, data={"eval": f"gs://{case.bucket}/eval.array_record"})
    with case.hardware(), Launcher(case) as launcher:
        assert launcher.wait() == 0, launcher.output
        assert [len(case.events(kind)) for kind in ("export.published", "evaluation.done")] == [1, 1]
        assert "heldout.loss <= 2.0: 1.0" in launcher.output
        assert case.claim is not None
        assert case.claim.claim.state == "done"
        # Jobs that are over stay for their logs, until their time to live; a release takes them as well.
        for what in ("verify", "release"):
            assert CliRunner().invoke(app, [what, case.uri]).exit_code == 0
        case.nothing_left()


def test_a_job_that_is_over_without_its_proof_is_made_anew(case: ClusterCase) -> None:
    case.write(export={})
    case.trained()
    with case.hardware(slices=0):
        export, verdict = case.do("export")
        assert verdict.outcome == "complete", verdict
        assert export.collect().values["step"] == 59
        first = uid(case, "export")
        case.run.store.delete("export/59/manifest.json")
        again = case.stage("export")
        again.submit()
        second = uid(case, "export")
        assert None is not second != first
        assert case.watch(again).outcome == "complete"
        # Nothing is done twice, once it is proven.
        case.do("export")
        assert uid(case, "export") == second


def test_a_job_that_fails_says_which_container_how_and_its_last_lines(case: ClusterCase) -> None:
    case.trainer += ["--fail-job", "export"]
    case.write(export={})
    case.trained()
    with case.hardware(slices=0):
        export, verdict = case.do("export")
        assert (verdict.outcome, verdict.act, verdict.code) == ("failed", "user", ExitCode.BUG), verdict
        assert verdict.reason.startswith("trainer exited 70: ")
        assert verdict.reason.endswith("; error: export was told to fail")
        assert verdict.evidence["tail"].endswith("\nerror: export was told to fail\n")
        with pytest.raises(ElasticTPUError, match="export was told to fail") as error:
            export.collect()
        assert error.value.code == ExitCode.BUG
        assert len([p for p in case.get("pods") if p["status"]["phase"] == "Failed"]) == 1  # not tried again
        shown = CliRunner().invoke(app, ["logs", case.uri, "--job", "export"])
        assert (shown.exit_code, shown.stdout) == (0, verdict.evidence["tail"])


def test_a_job_that_runs_is_adopted_by_the_next_launcher(case: ClusterCase) -> None:
    case.trainer += ["--job-seconds", "2"]
    case.write(export={})
    case.trained()
    with case.hardware(slices=0):
        case.stage("export", instance="1").submit()
        first = uid(case, "export")
        next_one = case.stage("export", instance="2")
        next_one.submit()
        assert case.watch(next_one).outcome == "complete"
        assert uid(case, "export") == first is not None
        assert len(case.events("export.published")) == 1


@pytest.mark.parametrize("who", ["driver", "person"])
def test_a_job_is_cancelled_and_gone(case: ClusterCase, who: str) -> None:
    case.trainer += ["--job-seconds", "600"]
    case.write(export={})
    case.trained()
    with case.hardware(slices=0) as kubelet:
        export = case.stage("export")
        export.submit()
        until(lambda: kubelet.running(case.run_id) and export.poll().phase == "running", "the export")
        if who == "driver":
            export.cancel(0.0, by="me")
        else:
            said = CliRunner().invoke(app, ["cancel", case.uri])
            assert said.exit_code == 0
            assert "drives the run and gives the slices back" in said.stdout
        verdict = case.watch(export)
        assert (verdict.outcome, verdict.act, verdict.code) == ("cancelled", "none", 76), verdict
        until(lambda: uid(case, "export") is None, "the Job's end")
        until(lambda: not kubelet.left(), "its process's end")


def test_a_job_on_a_silent_node_is_freed_and_run_again(case: ClusterCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_pods, "_SILENT", timedelta(seconds=1))
    case.trainer += ["--job-seconds", "600"]
    case.write(export={})
    case.trained()
    with case.hardware(slices=0, heads=2):
        export = case.stage("export")
        export.submit()
        until(lambda: export.poll().phase == "running", "the export")
        (pod,) = case.get("pods")
        (node,) = (n for n in case.heads if n.name == pod["spec"]["nodeName"])
        node.lose_power()
        case.plane.kubectl("cordon", node.name)
        options = ["-n", case.namespace, "--wait=false", "--grace-period=1"]
        case.plane.kubectl("delete", "pod", *options, pod["metadata"]["name"])
        verdict = case.watch(export)
        assert (verdict.outcome, verdict.act, verdict.code) == ("failed", "relaunch", 75), verdict
        case.trainer = case.trainer[:-2]
        assert case.do("export")[1].outcome == "complete"


EVALUATOR = """
import json, os, sys
from urllib.parse import quote
from urllib.request import Request, urlopen

bucket, _, run = os.environ["ELASTIC_TPU_RUN"].removeprefix("gs://").partition("/")
server = os.environ["STORAGE_EMULATOR_HOST"]

def read(name):
    return json.load(urlopen(f"{server}/storage/v1/b/{bucket}/o/{quote(f'{run}/{name}', safe='')}?alt=media"))

step = read("result.json")["final_step"]
manifest = read(f"export/{step}/manifest.json")
scores = {"mine": {"model": read(f"export/{step}/model.json")["model"], "score": float(sys.argv[1])}}
record = {"key": "mine", "export_digest": manifest["export_digest"], "metrics": scores}
name = quote(f"{run}/evaluation/mine.json", safe="")
url = f"{server}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
urlopen(Request(url, json.dumps(record).encode(), {"Content-Type": "application/json"}))
"""


def test_an_evaluator_of_the_users_own_decides_by_the_gate(case: ClusterCase) -> None:
    own = {"image": "example.test/mine:1", "command": [sys.executable, "-c", EVALUATOR, "0.9"]}
    jobs = {"export": case.here, "evaluate": {**case.here, **own}}
    case.write(export={}, evaluate={"gate": ["mine.model >= 59", "mine.score >= 0.95"]}, gke={"jobs": jobs})
    case.trained()
    with case.hardware(slices=0):
        assert case.do("export")[1].outcome == "complete"
        evaluate, verdict = case.do("evaluate")
        assert verdict.outcome == "complete", verdict
        (pod,) = (p for p in case.get("pods") if p["metadata"]["labels"][names.ROLE] == "evaluate")
        assert pod["spec"]["containers"][0]["image"] == "example.test/mine:1"
        with pytest.raises(GateFailed, match=r"mine\.score >= 0\.95: 0\.9") as error:
            evaluate.collect()
        assert "mine.model" not in str(error.value)
