"""The frame around the code: set-up, what imports load, what the wheel holds, CI, and the closing lines of pytest."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path, PurePath

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
ROOMS = sorted(
    path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in {"tests", "benchmarks"}
)
JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "maxtext", "pathwaysutils", "torch"}
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in {"CI", "PYTHON", "PYTHONPATH", "VIRTUAL_ENV"} and not name.startswith("PYTEST_")
}


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def copy_of_the_package(target: Path) -> Path:
    """What belongs to the package, without tests, caches and environments."""
    target.mkdir(parents=True)
    for name in ["__init__.py", "__main__.py", "py.typed", "setup.py", "pyproject.toml", "LICENSE"]:
        shutil.copy(ROOT / name, target)
    for room in ROOMS:
        shutil.copytree(ROOT / room, target / room, ignore=shutil.ignore_patterns("__pycache__"))
    return target


# ---- what imports load


def loaded_by(modules: list[str], cwd: Path) -> dict[str, str]:
    """Top-level third-party packages that a fresh interpreter loads for these modules: name -> its file."""
    code = (
        "import importlib, json, sys\n"
        "before = set(sys.modules)\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "new = {name: getattr(sys.modules[name], '__file__', None) for name in set(sys.modules) - before}\n"
        "print(json.dumps({n.partition('.')[0]: f for n, f in new.items() if f and 'site-packages' in f}))\n"
    )
    done = run(sys.executable, "-c", code, *modules, cwd=cwd, AIRFLOW_HOME=str(cwd))
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


def modules_by_orchestrator() -> dict[str, list[str]]:
    """Modules outside the trainer, by the orchestrator that they may import: kfp, airflow or none."""
    groups: dict[str, list[str]] = {"none": [], "kfp": [], "airflow": []}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            relative = path.relative_to(ROOT).with_suffix("")
            if room == "trainer" or relative.name == "__main__":
                continue
            parts = [part for part in relative.parts if part != "__init__"]
            in_components = room == "components"
            if room == "pipelines" or (in_components and relative.name in {"kfp", "kfp_step", "component"}):
                group = "kfp"
            elif room == "dags" or (in_components and relative.name.startswith(("airflow", "operator"))):
                group = "airflow"
            else:
                group = "none"
            groups[group].append(".".join(["elastic_tpu", *parts]))
    return {name: modules for name, modules in groups.items() if modules}


def test_importing_components_loads_nothing_of_others(tmp_path: Path) -> None:
    assert loaded_by(["elastic_tpu.components"], tmp_path) == {}


def test_importing_the_stages_loads_the_standard_library_only(tmp_path: Path) -> None:
    modules = [f"elastic_tpu.stages.{path.stem}" for path in (ROOT / "stages").glob("[a-z]*.py")]
    assert loaded_by(modules, tmp_path) == {}


@pytest.mark.parametrize("orchestrator", modules_by_orchestrator())
def test_outside_the_trainer_nothing_loads_jax_or_a_foreign_orchestrator(orchestrator: str, tmp_path: Path) -> None:
    loaded = loaded_by(modules_by_orchestrator()[orchestrator], tmp_path)
    assert loaded.keys() & (JAX | ({"kfp", "airflow"} - {orchestrator})) == set()


def test_imports_between_rooms_that_are_not_allowed_are_found(tmp_path: Path) -> None:
    package = copy_of_the_package(tmp_path / "elastic_tpu")
    (package / "platforms" / "probe").mkdir()
    wrong = {
        "runs/probe1.py": "from ..platforms import probe",
        "platforms/probe/__init__.py": "from ... import components",
        "platforms/probe/slices.py": "",
        "components/probe2.py": "import torch",
        "components/probe3.py": "import kfp.dsl",
        "cli/probe4.py": "from ..trainer import probe5",
        "trainer/probe5.py": "from ..platforms import probe",
        "cli/probe6.py": "import airflow",
        "runs/probe7.py": "from orbax import checkpoint",
    }
    right = {"trainer/export/right.py": "import jax\nfrom ...platforms.probe import slices"}
    for name, text in {**wrong, **right}.items():
        (package / name).write_text(text + "\n")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    linter = Path(sys.executable).with_name("lint-imports")
    done = run(linter, "--no-logo", cwd=tmp_path, PYTHONPATH=str(tmp_path), COLUMNS="200")
    assert done.returncode == 1
    for importer, imported in [
        ("runs.probe1", "elastic_tpu.platforms.probe"),
        ("platforms.probe", "elastic_tpu.components"),
        ("components.probe2", "torch"),
        ("components.probe3", "kfp"),
        ("cli.probe4", "elastic_tpu.trainer.probe5"),
        ("trainer.probe5", "elastic_tpu.platforms.probe"),
        ("cli.probe6", "airflow"),
        ("runs.probe7", "orbax"),
    ]:
        assert f"elastic_tpu.{importer} -> {imported} (l.1)" in done.stdout
    assert "export.right" not in done.stdout


# ---- packaging


def test_the_wheel_holds_the_rooms_and_their_data_and_nothing_else(tmp_path: Path) -> None:
    source = copy_of_the_package(tmp_path / "source")
    for stray in ["tests", "examples", "benchmarks"]:
        (source / stray).mkdir()
        (source / stray / "__init__.py").touch()
    uv = Path(sys.executable).with_name("uv")
    options = ["--wheel", "--no-build-isolation", "--offline", "--python", sys.executable, "--out-dir", str(tmp_path)]
    done = run(uv, "build", *options, cwd=source)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = {PurePath(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        assert "License-Expression: Apache-2.0\n" in archive.read(about["METADATA"]).decode()
        assert archive.read(about["LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    on_disk = {path.relative_to(source) for room in ROOMS for path in (source / room).rglob("*")}
    wanted = {f"elastic_tpu/{path}" for path in on_disk if path.suffix in {".py", ".yaml", ".html", ".css"}}
    assert names == wanted | {f"elastic_tpu/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    assert "elastic_tpu/runs/spec/tpu_table.yaml" in names


def locked(name: str = "requirements.lock") -> dict[str, list[str]]:
    """Hashes by requirement."""
    whole = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in whole.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {line.partition("--hash")[0].strip(): re.findall(r"--hash=(\S+)", line) for line in lines}


def test_what_only_a_tpu_needs_is_locked_to_the_same_versions() -> None:
    lock, tpu = locked(), locked("deploy/tpu.lock")
    (libtpu,) = (need for need in tpu if need.startswith("libtpu=="))
    assert {need: tpu[need] for need in tpu if need != libtpu}.items() <= lock.items()


@pytest.mark.parametrize(
    ("name", "least"), [("requirements.lock", 100), ("deploy/tpu.lock", 5), ("tests/torch.lock", 20)]
)
def test_the_lock_names_versions_and_hashes_only(name: str, least: int) -> None:
    lock = locked(name)
    assert len(lock) > least
    assert [need for need in lock if "==" not in need or "://" in need or need.startswith("-")] == []
    sha256 = re.compile("sha256:[0-9a-f]{64}")
    assert [need for need, hashes in lock.items() if not hashes or not all(map(sha256.fullmatch, hashes))] == []


def test_what_is_installed_is_what_the_lock_says() -> None:
    wanted = [Requirement(line) for line in locked()]
    here = [need for need in wanted if need.marker is None or need.marker.evaluate()]
    wrong = [f"{need}, installed: {version(need.name)}" for need in here if version(need.name) not in need.specifier]
    assert wrong == []


# ---- images


def test_an_image_gets_what_the_package_is_made_of_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    files = {"__init__.py", "__main__.py", "py.typed", "LICENSE", "README.md"}
    locks = {"requirements.lock", "deploy/tpu.lock"}
    assert allowed == {*ROOMS, *files, *locks, "setup.py", "pyproject.toml"}


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").glob("*.Dockerfile")), ids=lambda path: path.name)
def test_an_image_is_small_checks_hashes_and_runs_as_nobody(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    steps = [line.split() for line in text.splitlines() if line[:1].isalpha()]
    bases = [step[1:] for step in steps if step[0] == "FROM"]
    assert bases == [["${BASE}", "AS", "build"], ["${BASE}"]]  # the digest is given at the build
    last = steps[len(steps) - next(i for i, step in enumerate(reversed(steps)) if step[0] == "FROM") :]
    assert [step for step in last if step[0] in ("RUN", "ADD")] == []  # no source, compiler or cache is left in it
    assert last[-1] == ["USER", "65532:65532"]
    installs = re.findall(r"(?:uv )?pip install[^&]*", text)
    assert installs
    checked = ("--require-hashes", "-c requirements.lock -c deploy/tpu.lock -b requirements.lock")
    assert [run for run in installs if not any(option in " ".join(run.split()) for option in checked)] == []


# ---- set-up and CI


def shim(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_python_below_pyenv_is_found_when_its_shim_refuses_to_run(tmp_path: Path) -> None:
    for name in ["python3", "python3.12", "python3.13"]:
        shim(tmp_path / "bin" / name, 'echo "pyenv: command not found" >&2; exit 127')
    shim(tmp_path / "bin" / "uv", f'echo "{tmp_path}/bin/python3.12"')
    interpreter = Path(sys.executable).resolve()
    shim(tmp_path / ".pyenv/versions/3.12.9/bin/python3", f'exec "{interpreter}" "$@"')
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "PYENV_ROOT": ""}
    done = run("/bin/sh", ".ci/find-python", cwd=ROOT, **environment)
    assert (done.returncode, Path(done.stdout.strip()).resolve()) == (0, interpreter)


def test_a_missing_python_is_named_with_the_ways_to_get_it(tmp_path: Path) -> None:
    shim(tmp_path / "bin" / "python3", "exit 1")  # as a Python that is too old answers the check
    done = run("/bin/sh", ".ci/find-python", cwd=ROOT, PATH=str(tmp_path / "bin"), HOME=str(tmp_path), PYENV_ROOT="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Missing: Python 3.12 or newer" in done.stderr
    assert "apt-get install python3.12 python3.12-venv" in done.stderr


def test_make_lists_its_targets(tmp_path: Path) -> None:
    done = run("make", "-s", "-f", ROOT / "Makefile", cwd=tmp_path)
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    assert listed >= {"setup", "demo", "test", "test-full", "soak", "lint", "lock", "format", "bench", "clean", "help"}
    assert listed >= {"controlplane", "test-controlplane", "test-fast"}


def test_ci_ends_at_the_first_failure_and_says_which_phase_failed(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text("setup:\n\t@echo CI is $$CI\nlint:\n\t@exit 1\ntest:\n\t@echo too far\n")
    done = run("bash", ".ci/run", cwd=tmp_path)
    assert done.returncode != 0
    assert "CI is true" in done.stdout
    assert "too far" not in done.stdout
    summary = {line.split()[0]: line for line in done.stdout.splitlines() if " of " in line}
    assert "FAILED" in summary["lint"]
    assert "FAILED" not in summary["setup"]


# ---- the closing lines

SAMPLE = """
import pytest
needs_go = pytest.mark.skipif(True, reason="go is not installed")
def test_runs(): pass
@needs_go
@pytest.mark.parametrize("n", [1, 2])
def test_skips(n): pass
"""
WHOLE_FILE = "import pytest\npytest.importorskip('no_such_module', reason='no_such_module is missing')\n"


def closing_lines(folder: Path, *options: str, **environment: str) -> tuple[int, list[str]]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    names = ["elastic_tpu.tests.fast", "elastic_tpu.tests.reporting", "elastic_tpu.tests.ordering", "no:cacheprovider"]
    plugins = [f"-p{name}" for name in names]
    done = run(sys.executable, "-m", "pytest", "-q", *plugins, *options, cwd=folder, **environment)
    return done.returncode, done.stdout.splitlines()[-4:]


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [((), {}, 0), ((), {"CI": "true"}, 1), (("-n", "2"), {"CI": "true"}, 1)],
    ids=["at home", "in CI", "in CI with two workers"],
)
def test_skipped_tests_are_counted_by_reason_and_fail_ci(
    options: tuple[str, ...], environment: dict[str, str], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    (tmp_path / "test_whole_file.py").write_text(WHOLE_FILE)
    status, lines = closing_lines(tmp_path, *options, **environment)
    assert status == expected
    first = lines.index("Not run here: 2 tests: go is not installed")
    assert lines[first + 1] == "Not run here: 1 test: no_such_module is missing"


def test_a_suite_that_ran_whole_says_nothing_and_passes_ci(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("def test_runs(): pass\n")
    status, lines = closing_lines(tmp_path, CI="true")
    assert status == 0
    assert "Not run here" not in "".join(lines)


@pytest.mark.parametrize(("ci", "expected"), [("false", 0), ("true", 1)])
def test_without_go_the_tests_that_it_leaves_out_are_named_and_fail_ci(ci: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("def test_runs(): pass\n")
    (tmp_path / "bin").mkdir()
    without_go = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path), "CI": ci}
    status, lines = closing_lines(tmp_path, "-m", "not controlplane", **without_go)
    assert status == expected
    reason = "Go is not installed (https://go.dev/dl)"
    assert f"Not run here: the tests on a Kubernetes control plane: {reason}" in lines


def test_a_target_of_their_own_is_named_for_the_tests_on_a_control_plane(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("def test_runs(): pass\n")
    shim(tmp_path / "bin" / "go", "exit 1")
    with_go = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path), "CI": "true"}
    status, lines = closing_lines(tmp_path, "-m", "not airflow and not controlplane", **with_go)
    assert status == 0
    assert "Not among these: the tests in an Airflow: make test-airflow" in lines
    assert "Not among these: the tests on a Kubernetes control plane: make test-controlplane" in lines


@pytest.mark.parametrize(("ci", "expected"), [("false", 0), ("true", 1)])
def test_a_control_plane_that_is_not_built_skips_its_tests_and_fails_ci(ci: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("def test_needs_it(namespace): pass\n")
    fixtures = ("-p", "elastic_tpu.tests.controlplane.fixtures")
    status, lines = closing_lines(tmp_path, *fixtures, XDG_CACHE_HOME=str(tmp_path), CI=ci)
    assert status == expected
    assert "there is no control plane: `make controlplane` builds it (needs Go)" in "".join(lines)


# ---- the fast suite

SLOW_AND_FAST = """
import subprocess, sys
import pytest
@pytest.fixture
def server():
    subprocess.Popen(["sleep", "9"])
@pytest.fixture
def home(): pytest.fail("was set up")
def test_unit(): pass
def test_unit_too(): pass
def test_starts(): subprocess.run([sys.executable, "-c", ""])
def test_is_served(server): pass
@pytest.mark.airflow
def test_scheduled(home): pass
@pytest.mark.maxtext
def test_trains(): pass
@pytest.mark.slow
def test_computes(): pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_the_fast_suite_leaves_out_slow_tests_and_says_which(workers: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SLOW_AND_FAST)
    status, lines = closing_lines(tmp_path, "--fast", *workers, CI="true")
    assert status == 0
    said = "\n".join(lines)
    assert "Left out, slow: 5 tests (2 start a process, 1 " in said
    assert "1 need an Airflow home" in said
    assert "1 import MaxText" in said
    assert "2 passed, 5 skipped" in said
    assert "Not run here" not in said


def test_without_the_option_slow_tests_run(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("import subprocess\ndef test_starts(): subprocess.run(['true'])\n")
    status, lines = closing_lines(tmp_path)
    assert status == 0
    assert "1 passed" in lines[-1]


# ---- how tests are named


def test_names_of_tests_have_80_characters_at_most() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > 80
    ]
    assert long == []


# ---- the order of the files


def files_run(folder: Path, *options: str) -> list[str]:
    """The test files of a folder in the order in which pytest ran them."""
    done = run(sys.executable, "-m", "pytest", "-v", "-p", "elastic_tpu.tests.ordering", *options, cwd=folder)
    assert done.returncode == 0, done.stdout
    ran = [line.partition("::")[0] for line in done.stdout.splitlines() if "PASSED" in line]
    assert len(ran) == 2 * len(set(ran)), "the tests of a file stay together"
    assert ran[::2] == ran[1::2]
    return ran[::2]


def test_files_run_in_the_order_of_a_seed_and_by_name_without_one(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    names = [f"test_{letter}.py" for letter in "abcdef"]
    for name in names:
        (tmp_path / name).write_text("def test_one(): pass\ndef test_two(): pass\n")
    assert files_run(tmp_path) == names
    orders = [files_run(tmp_path, "--order-seed", seed) for seed in ("1", "2", "1")]
    assert orders[0] == orders[2]
    assert len({tuple(names), *map(tuple, orders)}) == 3
    assert [sorted(order) for order in orders] == [names] * 3


# ---- what a test hears


@pytest.fixture(scope="module")
def silenced() -> Iterator[None]:
    """Logging as Airflow leaves it when a test of another file has imported it."""
    root, ours = logging.getLogger(), logging.getLogger("elastic_tpu.trainer")
    before = root.level, ours.disabled
    root.setLevel(logging.ERROR)
    ours.disabled = True
    yield
    root.level, ours.disabled = before


@pytest.mark.usefixtures("silenced")
def test_a_warning_is_heard_whatever_was_imported_before(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("elastic_tpu.trainer").warning("a slice is lost")
    assert "a slice is lost" in caplog.text
