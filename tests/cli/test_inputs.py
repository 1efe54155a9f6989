"""What a user may get wrong: one clear error on stderr, exit code 64, no traceback, nothing created."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import elastic_tpu
import pytest
import yaml
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.tests.support import Case, command
from elastic_tpu.tests.tools import small

MakeCase = Callable[..., Case]
TINY = {"base_emb_dim": 64, "base_num_decoder_layers": 1, "max_target_length": 64}  # fits into any machine
COMMANDS = ["plan", "run", "status", "logs", "cancel", "release", "verify", "kill-slice"]


@pytest.mark.parametrize("name", [*COMMANDS, "report", "schema"])
def test_help_of_each_command_has_an_example(name: str) -> None:
    done = command(name, "--help", COLUMNS="200")
    assert done.returncode == 0
    assert f"elastic-tpu {name} " in done.stdout.partition("Example")[2]


def test_the_schema_is_printed_as_json() -> None:
    done = command("schema")
    assert (done.returncode, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    assert printed["title"] == "elastic-tpu run spec"
    assert printed["$defs"]["Limits"]["properties"]["total"]["default"] == "21d"


def test_the_version_is_printed() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"elastic-tpu {elastic_tpu.__version__}\n")


def test_help_teaches_a_first_run() -> None:
    shown = command("--help", COLUMNS="200").stdout
    assert command(COLUMNS="200").stdout.split() == shown.split()
    order = ["A spec is", "A run is", "Exit codes:", "Before a run", "Start and end a run", "Look at a run", "Examples"]
    places = [shown.index(text) for text in order]
    assert places == sorted(places)
    for example in ("plan examples/local.yaml", "run examples/local.yaml", "status runs-demo/my-run --watch"):
        assert f"elastic-tpu {example}" in shown.partition("Examples")[2]


def test_help_lists_the_commands_and_the_exit_codes() -> None:
    done = command("--help", COLUMNS="200")
    assert done.returncode == 0
    assert all(f" {name} " in done.stdout for name in COMMANDS)
    assert "77 a limit of the spec is spent" in " ".join(done.stdout.split())


def _refused(done: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert done.returncode == ExitCode.BAD_INPUT, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    for text in texts:
        assert text in done.stderr


@pytest.mark.parametrize("name", ["plan", "run"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run: {name: [", ["spec.yaml", "not readable as YAML"]),
        ("- a list", ["spec.yaml", "a mapping of sections"]),
        ("\x00\x01", ["spec.yaml", "not readable as YAML"]),
        ("", ["spec.yaml", "is empty; write the sections of a run spec"]),
    ],
    ids=["unfinished", "a list", "binary", "empty"],
)
def test_a_file_that_is_no_spec(tmp_path: Path, name: str, text: str, expected: list[str]) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    _refused(command(name, str(path)), *expected)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["plan", "run"])
def test_an_error_of_yaml_is_one_problem_and_shows_its_place(tmp_path: Path, name: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("run:\n  name: a\n  name: b\n")
    done = command(name, str(path))
    _refused(
        done, "the key 'name' stands twice", "line 2, column 3", "line 3, column 3:\n          name: b\n          ^"
    )
    assert done.stderr.startswith(f"error: {path}: not readable as YAML:\n")


@pytest.mark.parametrize("name", ["plan", "run"])
def test_plan_and_run_agree_on_what_a_spec_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "spec.txt").write_text("run: {}\n")
    os.mkfifo(tmp_path / "fifo.yaml")
    _refused(command(name, str(tmp_path / "spec.txt")), "ends in .yaml or .yml; rename it")
    _refused(command(name, str(tmp_path / "fifo.yaml")), "not a regular file")


@pytest.mark.parametrize("name", ["plan", "run"])
def test_wrong_fields_are_named_all_at_once(make_case: MakeCase, name: str) -> None:
    case = make_case(train={"steps": "many"}, slices={"type": "v6e-17"}, checkpoint={"evry": 5})
    done = command(name, str(case.spec))
    _refused(done, "train.steps", "'many'", "checkpoint.evry", "slices.type", "v6e-17")
    assert not case.output.exists()


@pytest.mark.parametrize("name", ["plan", "run"])
def test_a_spec_that_is_not_there(tmp_path: Path, name: str) -> None:
    _refused(command(name, str(tmp_path / "no.yaml")), "no.yaml", "No such file", "give the path of a YAML file")


@pytest.mark.parametrize("name", [c for c in COMMANDS if c != "plan"])
def test_a_run_that_is_not_there(tmp_path: Path, name: str) -> None:
    more = ["0"] if name == "kill-slice" else []
    _refused(command(name, str(tmp_path / "no-run"), *more), "no-run", "no run here")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["run", "status", "release"])
def test_a_foreign_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "spec.yaml").write_text("kind: something else\n")
    before = sorted(tmp_path.rglob("*"))
    _refused(command(name, str(tmp_path)), "spec.yaml", "not a run")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_spec_whose_name_has_no_suffix(tmp_path: Path) -> None:
    (tmp_path / "spec").write_text("run: {}\n")
    _refused(command("run", str(tmp_path / "spec")), "ends in .yaml")


def test_a_run_without_a_login_to_its_cluster_writes_nothing(tmp_path: Path, gcs_bucket: str) -> None:
    path = tmp_path / "spec.yaml"
    run = {"name": "small-{datetime}", "output": f"gs://{gcs_bucket}/runs"}
    path.write_text(yaml.safe_dump(small.gke(run=run, gke={"kubeconfig": str(tmp_path / "config")})))
    _refused(command("run", str(path)), "gke.kubeconfig", "there is no such file")
    assert open_store(f"gs://{gcs_bucket}/runs").list() == []


def test_data_in_a_bucket_that_cannot_be_used(tmp_path: Path, gcs_bucket: str) -> None:
    at = f"gs://{gcs_bucket}"
    inputs = small.inputs_in(tmp_path)
    open_store(at).put("train.parquet", small.write_parquet(tmp_path / "x", body=["a"]).read_bytes())
    path = tmp_path / "spec.yaml"
    sections = {**inputs, "data": {**inputs["data"], "train": f"{at}/train.parquet"}}
    path.write_text(yaml.safe_dump(small.document(**sections, train={"steps": 10, "maxtext": TINY})))
    for line in ("plan", "run"):
        _refused(command(line, str(path)), "data.train", f"{at}/train.parquet", "has no column 'text', only body")
    assert not (tmp_path / "out").exists()
    open_store(at).put("train.array_record", b"something")
    path.write_text(path.read_text().replace("train.parquet", "train.array_record"))
    planned = command("plan", str(path))
    assert (planned.returncode, planned.stderr) == (0, "")
    assert "note: data.train: its files are there, but are not looked into: " in planned.stdout


def test_an_output_that_cannot_be_written(make_case: MakeCase) -> None:
    case = make_case()
    case.output.write_text("a file where the folder should be")
    _refused(command("run", str(case.spec)), str(case.output), "is a file; give a folder")
    assert not case.processes()


def test_acting_on_a_run_that_nobody_has_driven(make_case: MakeCase) -> None:
    case = make_case()
    case.output.mkdir()
    Path(case.uri).mkdir()
    created = command("plan", str(case.spec), "--json")
    assert created.returncode == 0
    from elastic_tpu.runs.record.run import create_run
    from elastic_tpu.runs.spec.load import read_spec

    create_run(read_spec(str(case.spec)))
    _refused(command("cancel", case.uri), "nobody has driven this run")
    released = command("release", case.uri)
    assert (released.returncode, released.stdout) == (0, "nothing was held; nothing to release\n")
    _refused(command("logs", case.uri), "train has no attempt yet")
    verified = command("verify", case.uri)
    assert verified.returncode == 0
    assert verified.stdout == "     no checkpoint is proven yet, so there is nothing to verify\n"


@pytest.mark.parametrize("name", [c for c in COMMANDS if c not in ("plan", "run")])
def test_a_spec_in_place_of_a_run(make_case: MakeCase, name: str) -> None:
    more = ["0"] if name == "kill-slice" else []
    case = make_case()
    _refused(command(name, str(case.spec), *more), "is a spec", f"wants the directory of its run: {case.uri}")
    assert not case.output.exists()


def test_a_spec_with_a_template_in_place_of_a_run(make_case: MakeCase) -> None:
    case = make_case(run={"name": "r-{datetime}"}, train={"steps": 2}, checkpoint={"every": 2})
    _refused(command("status", str(case.spec)), f"below {case.output}, where `elastic-tpu run", "named r-{datetime}")
    assert command("run", str(case.spec)).returncode == 0
    (run,) = case.output.glob("r-*")
    _refused(command("status", str(case.spec)), f"the directory of its run: {run}")


def test_paths_in_a_spec_are_relative_to_it_and_a_run_to_the_user(make_case: MakeCase, tmp_path: Path) -> None:
    case = make_case(train={"steps": 5}, checkpoint={"every": 5}, run={"output": "out"})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = command("run", str(case.spec), cwd=elsewhere)
    assert done.returncode == 0, done.stdout
    assert list(elsewhere.iterdir()) == []
    assert case.json("result.json")
    shown = command("status", "out/r", cwd=case.folder)
    assert shown.stdout.splitlines()[0].split() == ["run", case.uri, f"({case.run_id})"]


@pytest.mark.parametrize("name", ["plan", "run", "status", "verify"])
def test_the_command_never_imports_jax(make_case: MakeCase, name: str) -> None:
    case = make_case(train={"steps": 2}, checkpoint={"every": 2})
    if name in ("status", "verify"):
        assert command("run", str(case.spec)).returncode == 0
    code = (
        "import sys\n"
        "from elastic_tpu.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "heavy = {'jax', 'maxtext', 'orbax', 'pathwaysutils', 'torch', 'flax', 'tensorflow'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    source = str(case.spec) if name in ("plan", "run") else case.uri
    done = subprocess.run([sys.executable, "-c", code, name, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
