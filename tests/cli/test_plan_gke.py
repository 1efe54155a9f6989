"""`elastic-tpu plan` of the GKE example: what is shown, and the objects as YAML, with nothing created."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.runs.spec.run_spec import run_id
from elastic_tpu.tests.support import command
from elastic_tpu.tests.tools.small import gke, inputs_in

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "gke.yaml")


def test_the_example_is_planned() -> None:
    done = command("plan", EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line[:14].strip(): line[14:] for line in done.stdout.splitlines()}
    assert rows["slices"] == "4 x v6e-16, 3 at least, spot"
    assert rows["cluster"] == "acme-ml/europe-west4/tpu-prod, namespace training"
    assert rows["persistence"].startswith("on: ")


def test_manifests_of_the_example() -> None:
    done = command("plan", EXAMPLE, "--manifests")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# The run's name is qwen3-8b-{date}: names and hash follow when it starts.\n")
    jobset, export, evaluate = yaml.safe_load_all(done.stdout)
    assert jobset["metadata"]["name"] == read_spec(EXAMPLE).run_id
    assert [document["kind"] for document in (jobset, export, evaluate)] == ["JobSet", "Job", "Job"]
    proxy = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["initContainers"][1]
    assert "--xla_tpu_enable_data_parallel_all_reduce_opt=true" in proxy["args"]


def test_long_lines_stay_whole(tmp_path: Path) -> None:
    """A YAML document that is folded at a terminal's width is another document."""
    long = "gs://bucket/" + "a-long-folder/" * 30
    document = gke(
        run={"name": "long", "output": long},
    )
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(document))
    done = command("plan", str(path), "--manifests", COLUMNS="40")
    jobset = next(yaml.safe_load_all(done.stdout))
    assert jobset["metadata"]["name"] == run_id(long, "long")
    assert jobset["metadata"]["annotations"]["elastic-tpu.dev/run-uri"] == f"{long}long"
    assert list(tmp_path.rglob("*.yaml")) == [path]


@pytest.mark.parametrize("arguments", [["--manifests"], ["--manifests", "--json"]])
def test_the_local_platform_has_none(arguments: list[str], tmp_path: Path) -> None:
    from elastic_tpu.tests.tools.small import document

    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(document(**inputs_in(tmp_path))))
    done = command("plan", str(path), *arguments)
    assert done.returncode == ExitCode.BAD_INPUT
    assert done.stderr == "error: platform: 'local', creates no Kubernetes objects; --manifests is for gke\n"
