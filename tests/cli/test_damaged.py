"""Every small file of a run x every way to be damaged: no traceback, and a resume wherever it can be rebuilt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.cli.main import app
from elastic_tpu.tests.support import Case, command, expected_state
from typer.testing import CliRunner, Result

STEPS = 30
REBUILT = ("status.json", "attempts/1/started.json", "attempts/1/exit.json", "slices.json")
SKIPPED = ("events/*-trainer1-0000.json",)
REFUSED = ("spec.yaml", "claim.json")
COMPLETE = (
    *("result.json", "proofs/29.json", "export/29/manifest.json", "evaluation/*.json"),
    *("jobs/export/1/exit.json", "metrics/losses-1.json"),
)


def _wrong(value: Any) -> Any:
    return ["x"] if isinstance(value, str) else "x"


def _wrong_types(data: bytes) -> bytes:
    record = json.loads(data)
    return json.dumps({key: 1 if key == "schema" else _wrong(value) for key, value in record.items()}).encode()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "not JSON": lambda data: b"\xff{: ]",
    "a list": lambda data: b"[1]",
    "wrong types": _wrong_types,
}


def _newer(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "schema": 2}).encode()


class Template:
    """A run that was interrupted after a proven checkpoint, or is complete; `new` puts its directory back."""

    def __init__(self, folder: Path, complete: bool) -> None:
        stages: dict[str, Any] = {"export": {}, "evaluate": {}, "data": {"eval": "valid.parquet"}} if complete else {}
        options = () if complete else ("--exit-at", "25:75", "--exit-times", "1")
        more = {"train": {"steps": STEPS}, "recovery": {"head_restarts": 0}, **stages}
        self.case = Case(folder, *options, **more)
        done = command("run", str(self.case.spec))
        assert done.returncode == (0 if complete else 77), done.stdout + done.stderr
        self._kept = folder / "kept"
        shutil.copytree(self.case.uri, self._kept)

    def new(self) -> Path:
        shutil.rmtree(self.case.uri)
        shutil.copytree(self._kept, self.case.uri)
        return Path(self.case.uri)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    template = Template(tmp_path_factory.mktemp("interrupted"), complete=False)
    yield template
    template.case.end()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    template = Template(tmp_path_factory.mktemp("finished"), complete=True)
    yield template
    template.case.end()


def elastic_tpu(*args: str) -> Result:
    """A command in this process; what it raises on purpose it reports itself."""
    result = CliRunner().invoke(app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


def damage(folder: Path, pattern: str, how: Callable[[bytes], bytes]) -> tuple[Path, bytes]:
    path = next(iter(sorted(folder.glob(pattern))))
    data = how(path.read_bytes()) if path.suffix == ".json" else b"{: ]"
    path.write_bytes(data)
    return path, data


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", [*REBUILT, *SKIPPED, *REFUSED])
def test_status_and_release_of_a_damaged_run(interrupted: Template, name: str, how: str) -> None:
    path, _ = damage(interrupted.new(), name, DAMAGES[how])
    shown = elastic_tpu("status", interrupted.case.uri)
    assert shown.exit_code == (64 if name == "spec.yaml" else 0), shown.output
    if name in ("status.json", "claim.json", "slices.json", "spec.yaml"):
        assert path.name in shown.output
    released = elastic_tpu("release", interrupted.case.uri)
    assert released.exit_code == (64 if name == "spec.yaml" else 0), released.output
    interrupted.case.nothing_left()


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", COMPLETE)
def test_status_and_release_of_a_damaged_complete_run(finished: Template, name: str, how: str) -> None:
    path, _ = damage(finished.new(), name, DAMAGES[how])
    shown = elastic_tpu("status", finished.case.uri)
    assert shown.exit_code == 0, shown.output
    assert (path.name in shown.output) == (name == "result.json")
    assert elastic_tpu("release", finished.case.uri).exit_code == 0


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize(("name", "cure"), [("claim.json", "delete it if nobody drives the run"), ("spec.yaml", "")])
def test_what_cannot_be_rebuilt_is_named_with_its_cure(interrupted: Template, name: str, cure: str, how: str) -> None:
    path, data = damage(interrupted.new(), name, DAMAGES[how])
    refused = elastic_tpu("run", interrupted.case.uri)
    assert refused.exit_code == 64
    assert name in refused.output
    assert cure in refused.output
    assert path.read_bytes() == data


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_result_is_named_with_its_cure(finished: Template, how: str) -> None:
    path, data = damage(finished.new(), "result.json", DAMAGES[how])
    refused = elastic_tpu("run", finished.case.uri)
    assert refused.exit_code == 64
    assert "result.json" in refused.output
    assert "move it aside: running again writes it anew" in " ".join(refused.output.split())
    assert path.read_bytes() == data


def test_a_result_that_was_moved_aside_is_written_anew(finished: Template) -> None:
    path, _ = damage(finished.new(), "result.json", DAMAGES["cut"])
    path.rename(path.with_suffix(".aside"))
    assert elastic_tpu("run", finished.case.uri).exit_code == 0
    assert finished.case.final_state() == expected_state(STEPS)


@pytest.mark.parametrize(
    ("names", "how"),
    [*(((name,), "wrong types") for name in (*REBUILT, *SKIPPED)), *(((*REBUILT, *SKIPPED), how) for how in DAMAGES)],
)
def test_a_run_goes_on_after_damage(interrupted: Template, names: tuple[str, ...], how: str) -> None:
    folder = interrupted.new()
    damaged = {name: damage(folder, name, DAMAGES[how]) for name in names}
    gone_on = elastic_tpu("run", interrupted.case.uri)
    assert gone_on.exit_code == 0, gone_on.output
    assert interrupted.case.final_state() == expected_state(STEPS)
    assert interrupted.case.attempts() == [1, 2]
    said = {event.data["file"]: event.data["aside"] for event in interrupted.case.events("record.rebuilt")}
    assert set(said) == {name for name in names if name in REBUILT}
    for name, aside in said.items():
        assert (folder / aside).read_bytes() == damaged[name][1]


@pytest.mark.parametrize("name", ["status.json", "attempts/1/started.json", "attempts/1/exit.json", "claim.json"])
def test_what_a_newer_version_wrote_is_left_alone(interrupted: Template, name: str) -> None:
    path, data = damage(interrupted.new(), name, _newer)
    refused = elastic_tpu("run", interrupted.case.uri)
    assert refused.exit_code == 64
    assert "schema 2 is newer than 1" in " ".join(refused.output.split())
    assert path.read_bytes() == data
    elastic_tpu("status", interrupted.case.uri)
    assert elastic_tpu("release", interrupted.case.uri).exit_code == 0
