"""What KFP's launcher accepts of a component's output artifacts, held against every component.

A component runs in kfp's own executor, as in a pod of a backend. The launcher (kfp's
backend/src/v2/component/launcher_v2.go, `uploadOutputArtifacts`) then uploads each artifact, and fails a step that has
succeeded when an artifact's URI has a scheme that it knows and lies outside the pipeline root of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.pipelines import describe
from elastic_tpu.runs.record.run import open_run
from elastic_tpu.stages.allowed import ALLOW_LOCAL
from elastic_tpu.tests.support import Case

ROOT = "minio://mlpipeline/v2/artifacts/train-export-evaluate/5c1e9d"
SCHEMES = ("gs://", "s3://", "minio://")  # others are left alone by the launcher, oci:// among them


def refusal(uri: str) -> str:
    """Why the launcher would not upload an artifact of this URI; empty when it would, or leaves it alone."""
    if not uri.startswith(SCHEMES):
        return ""
    if not uri.startswith(ROOT):
        return f"URI {uri!r} does not have expected bucket prefix {ROOT!r}"
    return "" if uri.removeprefix(ROOT).strip("/") else f"URI {uri!r} has an empty key"


def executed(component: Any, run: str, output: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Run a component in kfp's executor; its output artifacts by name, as the launcher merges them, and parameters."""
    from kfp.dsl import executor  # importing kfp takes seconds

    outputs = (component.component_spec.outputs or {}).items()
    plain = [name for name, value in outputs if not value.type.startswith("system.")]
    parameters = {name: output.with_suffix(f".{name}") for name in plain}
    artifacts = {
        name: {"name": name, "type": {"schemaTitle": value.type.partition("@")[0]}, "uri": f"{ROOT}/{name}"}
        for name, value in outputs
        if name not in parameters
    }
    given = {
        "inputs": {"parameterValues": {"run": run, "holder": "pipeline/1"}},
        "outputs": {
            "artifacts": {name: {"artifacts": [{**made, "metadata": {}}]} for name, made in artifacts.items()},
            "parameters": {name: {"outputFile": str(path)} for name, path in parameters.items()},
            "outputFile": str(output),
        },
    }
    executor.Executor(executor_input=given, function_to_execute=component.python_func).execute()
    written = json.loads(output.read_text()).get("artifacts", {}) if output.exists() else {}
    found = {name: {**made, **(written.get(name, {}).get("artifacts") or [{}])[0]} for name, made in artifacts.items()}
    # The launcher fails a step without the file of an output parameter.
    return found, {name: path.read_text() for name, path in parameters.items()}


@pytest.mark.parametrize(
    ("uri", "accepted"),
    [
        (f"{ROOT}/model", True),
        ("/data/runs/r/export/59", True),
        ("oci://registry/model:1", True),
        ("gs://acme-train/runs/r/export/59", False),
        ("minio://mlpipeline/v2/artifacts/train-export-evaluate/another-run/model", False),
        (ROOT, False),
    ],
)
def test_what_the_launcher_uploads(uri: str, accepted: bool) -> None:
    assert (refusal(uri) == "") is accepted


def test_the_launcher_takes_every_artifact_of_a_pipeline(
    make_case: Callable[..., Case], gcs_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a backend the run is in a bucket, so what lies in its directory is outside the pipeline root."""
    monkeypatch.setattr("kfp.dsl.types.artifact_types._MINIO_LOCAL_MOUNT_PREFIX", f"{tmp_path}/minio/")
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    output = f"gs://{gcs_bucket}/runs"
    case = make_case(
        run={"output": output},
        export={},
        evaluate={"gate": ["heldout.loss <= 1.5"]},
        data={"eval": "valid.parquet"},
        train={"steps": 5},
        checkpoint={"every": 5},
    )
    made: dict[str, Any] = {}
    parameters: dict[str, str] = {}
    for name in describe.NAMES:
        artifacts, texts = executed(describe.component(name), str(case.spec), tmp_path / f"{name}.json")
        made, parameters = made | artifacts, parameters | texts
        assert {key: why for key, value in made.items() if (why := refusal(value["uri"]))} == {}
    assert made["model"]["metadata"]["model"] == f"{output}/r/export/4"
    pinned = open_run(f"{output}/r").spec_hash
    # The pipeline's importer makes an artifact of the URI.
    assert parameters == {"model_uri": f"{output}/r/export/4", "spec_hash": pinned}
    assert set(made) == {"model", "metrics", "report"}
    assert Path(f"{tmp_path}/minio", made["report"]["uri"].removeprefix("minio://")).stat().st_size > 1000


def test_an_export_that_the_spec_leaves_out_has_no_model(
    make_case: Callable[..., Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kfp.dsl.types.artifact_types._MINIO_LOCAL_MOUNT_PREFIX", f"{tmp_path}/minio/")
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    case = make_case(train={"steps": 5}, checkpoint={"every": 5})
    for name in ("provision_slices", "train_elastic", "release_slices"):
        executed(describe.component(name), str(case.spec), tmp_path / f"{name}.json")
    made, parameters = executed(describe.component("export_checkpoint"), str(case.spec), tmp_path / "export.json")
    assert parameters == {"model_uri": ""}
    assert "model" not in made["model"].get("metadata", {})
