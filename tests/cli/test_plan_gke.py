"""`elastic-tpu plan` of the GKE example: what is shown, and the objects as YAML, with nothing created."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from elastic_tpu.cli.kubectl_yaml import dump_all
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.spec.load import expand_name, read_spec
from elastic_tpu.runs.spec.plan import make_plan
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


def test_the_json_has_the_manifests_in_it() -> None:
    done = command("plan", EXAMPLE, "--manifests", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    machine = json.loads(done.stdout)
    assert machine.keys() == {"plan", "provisional", "spec", "manifests"}
    # What another day's run has as well is not among them.
    yaml_too = list(yaml.safe_load_all(command("plan", EXAMPLE, "--manifests").stdout))
    assert machine["manifests"] == yaml_too


def test_the_json_names_what_is_provisional() -> None:
    machine = json.loads(command("plan", EXAMPLE, "--json").stdout)
    planned, started = machine["plan"], make_plan(expand_name(read_spec(EXAMPLE), "")).record()
    assert planned["uri"].endswith("/qwen3-8b-{date}")
    for field in machine["provisional"]:
        section, _, key = field.partition(".")
        for plan in (planned, started):
            del (plan[section] if key else plan)[key or section]
    assert planned == json.loads(json.dumps(started)) | {"notes": planned["notes"]}  # the rest is the run's


NUMBERS = ["089", "3e-5", "010", "0x1f", "0o17", "0b1", "1_000", "1:30", "+1", "-5", ".5", ".inf", ".NaN", "2026-12-01"]
WORDS = ["y", "N", "yes", "off", "True", "null", "~", "", "<<", "=", "a: b", "a #b", "two\nlines", "--flag=1", "/path"]


@pytest.mark.parametrize("version", [(1, 1), (1, 2)])
def test_text_is_text_to_every_version_of_yaml(version: tuple[int, int]) -> None:
    from ruamel.yaml import YAML

    document = {"args": [*NUMBERS, *WORDS], **dict.fromkeys(NUMBERS, 1), "number": 89, "rate": 3e-5}
    text = dump_all([document])
    reader = YAML(typ="safe", pure=True)
    reader.version = version
    assert reader.load(text) == document
    assert yaml.safe_load(text) == document
    plain = [line for line in text.splitlines() if line.removeprefix("- ") in (*NUMBERS, "y", "N")]
    assert plain == []  # kubectl's reader follows neither version to the letter


def test_limits_are_not_told_as_an_estimate(tmp_path: Path) -> None:
    from elastic_tpu.tests.tools.small import document

    path = tmp_path / "spec.yaml"
    run = {"name": "demo-{datetime}", "output": str(tmp_path / "out")}
    short = {"train": {"steps": 3}, "checkpoint": {"every": 2}, "slices": {"type": "sim-1x1", "count": 1}}
    path.write_text(yaml.safe_dump(document(**inputs_in(tmp_path) | {"run": run} | short)))
    done = command("plan", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line[:14].strip(): line[14:] for line in done.stdout.splitlines()}
    assert rows["slice-hours"].startswith("at most 504 by limits.total (21d), a limit and no estimate")
    assert rows["each slice"] == "topology 1x1, 1 VM, 1 chip, 1 device"
    assert rows["run"] == f"{tmp_path}/out/demo-{{datetime}}"  # and no id: the one of a template is of no run
    assert "note: the braces in run.name are filled in when the run starts: id and hash follow" in done.stdout
    assert "note: 596,049,920 parameters are many" in done.stdout


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

    tiny = {"base_emb_dim": 64, "base_num_decoder_layers": 1, "max_target_length": 64}  # fits into any machine
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(document(**inputs_in(tmp_path), train={"steps": 10, "maxtext": tiny})))
    done = command("plan", str(path), *arguments)
    assert done.returncode == ExitCode.BAD_INPUT
    assert done.stderr == "error: platform: 'local', creates no Kubernetes objects; --manifests is for gke\n"
