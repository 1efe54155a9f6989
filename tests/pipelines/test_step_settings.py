"""What the containers of a compiled pipeline's steps get: CPU and memory, variables, secrets and volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_tpu.pipelines.compile import main
from elastic_tpu.runs.errors import ExitCode

IMAGE = "registry/elastic-tpu:0.1.0"


def compiled(folder: Path, *options: str, target: str = "kfp") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The containers of all steps, and what Kubernetes is told of each of them."""
    path = folder / "pipeline.yaml"
    assert main(["--target", target, "--image", IMAGE, "-o", str(path), *options]) == 0
    document, *more = yaml.safe_load_all(path.read_text())
    executors = document["deploymentSpec"]["executors"]
    containers = {name: value["container"] for name, value in executors.items() if "container" in value}
    assert len(containers) == 6  # five steps, and the release at the end
    if not more:
        return list(containers.values()), []
    (platform,) = more
    told = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert set(told) == set(containers)
    return list(containers.values()), list(told.values())


@pytest.mark.parametrize("target", ["kfp", "vertex"])
def test_every_step_asks_for_cpu_and_memory_so_its_pod_is_not_evicted_first(tmp_path: Path, target: str) -> None:
    for container in compiled(tmp_path, target=target)[0]:
        asked = container["resources"]
        assert (asked["resourceCpuRequest"], asked["resourceMemoryRequest"]) == ("100m", "512Mi")
        assert "resourceMemoryLimit" not in asked  # a step that is killed for its memory stops nothing in order
    for container in compiled(tmp_path, "--cpu", "0.5", "--memory", "1Gi", target=target)[0]:
        asked = container["resources"]
        assert (asked["resourceCpuRequest"], asked["resourceMemoryRequest"]) == ("0.5", "1Gi")


@pytest.mark.parametrize("target", ["kfp", "vertex"])
def test_variables_reach_every_step(tmp_path: Path, target: str) -> None:
    options = ["--env", "ELASTIC_TPU_SPECS=gs://acme/specs,gs://acme/more", "--env", "EMPTY="]
    for container in compiled(tmp_path, *options, target=target)[0]:
        found = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        assert found == {"ELASTIC_TPU_SPECS": "gs://acme/specs,gs://acme/more", "EMPTY": ""}


def test_secrets_and_volumes_reach_every_step_and_hold_no_value(tmp_path: Path) -> None:
    options = [
        "--secret-env",
        "HF_TOKEN=hugging-face:token",
        "--secret",
        "gcs-key=/secrets/gcs",
        "--volume",
        "runs=/runs",
    ]
    told = compiled(tmp_path, *options)[1]
    assert len(told) == 6
    for step in told:
        (variable,), (secret,), (volume,) = step["secretAsEnv"], step["secretAsVolume"], step["pvcMount"]
        assert variable["secretName"] == "hugging-face"
        assert variable["keyToEnv"] == [{"envVar": "HF_TOKEN", "secretKey": "token"}]
        assert (secret["secretName"], secret["mountPath"]) == ("gcs-key", "/secrets/gcs")
        assert (volume["constant"], volume["mountPath"]) == ("runs", "/runs")


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("kfp", ["--env", "SPECS"], "--env: 'SPECS', write NAME=VALUE"),
        ("kfp", ["--env", "9A=x"], "--env: '9A=x', write NAME=VALUE"),
        ("kfp", ["--env", "HF_TOKEN=abcdefgh"], "--env: 'HF_TOKEN', a document is no place for a credential"),
        ("kfp", ["--secret-env", "HF_TOKEN=hugging-face"], "write NAME=SECRET:KEY"),
        ("kfp", ["--secret", "gcs-key=relative"], "--secret: 'gcs-key=relative', write SECRET=/PATH"),
        ("kfp", ["--volume", "runs"], "--volume: 'runs', write CLAIM=/PATH"),
        ("kfp", ["--cpu", "lots"], "--cpu: 'lots', is no number of CPUs"),
        ("kfp", ["--memory", "1GB"], "--memory: '1GB', is no size in Kubernetes' units"),
        ("vertex", ["--volume", "runs=/runs"], "--volume: 'runs=/runs', Vertex AI has no"),
        ("vertex", ["--secret-env", "A=b:c"], "--secret-env: 'A=b:c', Vertex AI has no"),
    ],
)
def test_what_is_wrong_is_named_with_its_cure_and_nothing_is_written(
    target: str, options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipeline.yaml"
    assert main(["--target", target, "--image", IMAGE, "-o", str(path), *options]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert says in said
    assert "abcdefgh" not in said
    assert not path.exists()
