"""The compiled pipeline, read back: one document for each backend, parameters, order, caching, image."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_tpu.components.kfp_step import IMAGE
from elastic_tpu.pipelines.compile import compile_pipeline, main
from elastic_tpu.runs.errors import ExitCode

REGISTRY = f"europe-docker.pkg.dev/acme/tpu/{IMAGE}"
ORDER = ["provision", "train", "release", "export", "evaluate"]


@pytest.fixture(scope="module", params=["kfp", "vertex"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document for a backend, compiled as a user does it."""
    path = tmp_path_factory.mktemp(request.param) / "pipeline.yaml"
    command = [sys.executable, "-m", "elastic_tpu.pipelines.compile", "--target", request.param, "--image", REGISTRY]
    subprocess.run([*command, "-o", str(path)], check=True, timeout=120)
    (document,) = yaml.safe_load_all(path.read_text())
    return dict(document)


def tasks(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every task that runs our image, by its display name, the exit task included."""
    found = {task["taskInfo"]["name"]: task for task in every_task(document)}
    return {name: task for name, task in found.items() if name in {*ORDER, "release-at-the-end"}}


def every_task(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every task and every group of tasks."""
    groups = [document["root"], *(c for c in document["components"].values() if "dag" in c)]
    return [task for group in groups for task in group["dag"]["tasks"].values()]


def test_every_task_gets_the_run_and_the_holder_in_a_form_that_backends_resolve(compiled: dict[str, Any]) -> None:
    # KFP's driver replaces the placeholder only where it is the whole constant of a task's own input.
    assert list(compiled["root"]["inputDefinitions"]["parameters"]) == ["run"]
    found = tasks(compiled)
    assert set(found) == {*ORDER, "release-at-the-end"}
    for name, task in found.items():
        inputs = task["inputs"]["parameters"]
        pinned = {"provision": set(), "release-at-the-end": {"last"}}.get(name, {"spec_hash"})
        assert set(inputs) == {"run", "holder"} | pinned
        if pinned == {"spec_hash"}:  # of the spec that provision found; an exit task can take nobody's output
            made_by = {"outputParameterKey": "spec_hash", "producerTask": "provision-slices"}
            assert inputs["spec_hash"]["taskOutputParameter"] == made_by
        assert inputs["holder"] == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}
        assert inputs["run"]["componentInputParameter"] in ("run", "pipelinechannel--run")
    (handler,) = (t for k, t in compiled["root"]["dag"]["tasks"].items() if "exit-handler" in k)
    assert handler["inputs"]["parameters"] == {"pipelinechannel--run": {"componentInputParameter": "run"}}


def test_the_model_is_an_artifact_with_the_uri_that_the_export_gave(compiled: dict[str, Any]) -> None:
    # An artifact of the step itself must lie inside the pipeline root; an importer takes the URI of a run directory.
    (importer,) = (e["importer"] for e in compiled["deploymentSpec"]["executors"].values() if "importer" in e)
    assert importer["artifactUri"] == {"runtimeParameter": "uri"}
    assert importer["typeSchema"]["schemaTitle"] == "system.Model"
    (model,) = (task for task in every_task(compiled) if task["taskInfo"]["name"] == "model")
    channel = "pipelinechannel--export-checkpoint-model_uri"
    assert model["inputs"]["parameters"] == {"uri": {"componentInputParameter": channel}}
    (group,) = (task for task in every_task(compiled) if "condition" in task.get("triggerPolicy", {}))
    assert group["inputs"]["parameters"][channel] == {
        "taskOutputParameter": {"outputParameterKey": "model_uri", "producerTask": "export-checkpoint"}
    }
    # Without an export there is no model: an importer of an empty URI fails.
    assert group["triggerPolicy"]["condition"] == f"inputs.parameter_values['{channel}'] != ''"


def test_nothing_else_is_left_to_resolve(compiled: dict[str, Any]) -> None:
    text = yaml.safe_dump(compiled)
    assert "{{channel" not in text
    # `{{$}}` is the executor's input, which every backend gives to a Python component.
    assert set(re.findall(r"{{.*?}}", text)) == {"{{$}}", "{{$.pipeline_job_uuid}}"}
    assert text.count("{{$.pipeline_job_uuid}}") == len(ORDER) + 1


def test_tasks_are_in_order_and_the_exit_task_runs_whatever_happened(compiled: dict[str, Any]) -> None:
    found = tasks(compiled)
    by_key = {}
    for component in compiled["components"].values():
        by_key |= {key: t["taskInfo"]["name"] for key, t in component.get("dag", {}).get("tasks", {}).items()}
    after = {name: {by_key[key] for key in found[name].get("dependentTasks", [])} for name in ORDER}
    # Each after the one before it, and after provision, whose output it takes.
    assert after == dict(zip(ORDER, [set(), *({"provision", name} for name in ORDER)], strict=False))
    at_end = found["release-at-the-end"]
    assert at_end["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert at_end["dependentTasks"] == ["exit-handler-1"]
    assert at_end["inputs"]["parameters"]["last"] == {"runtimeValue": {"constant": True}}  # gives the claim up
    assert "taskFinalStatus" not in yaml.safe_dump(compiled)  # backends disagree about it


def test_caching_is_off_for_every_task(compiled: dict[str, Any]) -> None:
    for task in every_task(compiled):
        assert not task.get("cachingOptions", {}).get("enableCache", False)


def test_the_image_is_the_one_that_was_given(compiled: dict[str, Any]) -> None:
    executors = [e for e in compiled["deploymentSpec"]["executors"].values() if "container" in e]
    assert {executor["container"]["image"] for executor in executors} == {REGISTRY}
    for executor in executors:
        assert "pip install" not in " ".join(executor["container"]["command"])


def test_artifacts_are_typed(compiled: dict[str, Any]) -> None:
    found = {}
    for name, task in tasks(compiled).items():
        outputs = compiled["components"][task["componentRef"]["name"]].get("outputDefinitions", {}).get("artifacts", {})
        found[name] = {key: value["artifactType"]["schemaTitle"] for key, value in outputs.items()}
    numbers_and_page = {"metrics": "system.Metrics", "report": "system.HTML"}
    nothing: dict[str, str] = {}
    assert found == {
        "provision": nothing,
        "train": numbers_and_page,
        "release": nothing,
        "export": {"model": "system.Model"},
        "evaluate": numbers_and_page,
        "release-at-the-end": nothing,
    }


@pytest.mark.parametrize(
    ("target", "image", "says"),
    [
        ("kfp", "elastic-tpu", "pin it"),
        ("kfp", "registry:5000/elastic-tpu", "pin it"),
        ("kfp", "elastic-tpu:latest", "pin it"),
        ("vertex", "elastic-tpu:0.1.0", "pulls from a registry"),
    ],
)
def test_an_image_that_is_not_pinned_or_cannot_be_pulled(
    target: str, image: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipeline.yaml"
    assert main(["--target", target, "--image", image, "-o", str(path)]) == ExitCode.BAD_INPUT
    assert says in capsys.readouterr().err
    assert not path.exists()


def test_an_image_by_digest(tmp_path: Path) -> None:
    compile_pipeline("kfp", tmp_path / "pipeline.yaml", "registry:5000/elastic-tpu@sha256:" + 64 * "0")
