"""Output that nobody reads or that cannot be written, `python -m elastic_tpu`, and completion in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.tests.support import COMMAND

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "gke.yaml")
LINES = [["plan", EXAMPLE], ["plan", EXAMPLE, "--json"], ["plan", EXAMPLE, "--manifests"], ["schema"], ["--help"]]


@pytest.mark.parametrize("line", LINES, ids=["plan", "plan --json", "plan --manifests", "schema", "--help"])
def test_a_full_disk_is_a_sentence(line: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, *line], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (ExitCode.INFRASTRUCTURE, said)


@pytest.mark.parametrize("line", LINES[:4], ids=["plan", "plan --json", "plan --manifests", "schema"])
def test_a_reader_that_has_gone_is_no_error(line: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` has, by the time of the next line
    try:
        done = subprocess.run([*COMMAND, *line], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "elastic_tpu", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "elastic-tpu", "")


@pytest.mark.parametrize(
    ("line", "offered"), [("elastic-tpu st", "status"), ("elastic-tpu logs x --job e", "evaluate")]
)
def test_a_shell_completes(line: str, offered: str) -> None:
    words = {"_ELASTIC_TPU_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(COMMAND, env={**os.environ, **words}, capture_output=True, text=True, check=False)
    assert offered in done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str) -> None:
    asked = {"_ELASTIC_TPU_COMPLETE": f"source_{shell}"}
    done = subprocess.run(COMMAND, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "_ELASTIC_TPU_COMPLETE=complete_" in done.stdout.replace("env ", "")
