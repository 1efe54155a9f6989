"""Whose login a run is reached with: the reader's, not one that whoever wrote the run directory chose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_tpu.cli.login import settled
from elastic_tpu.platforms.gke.api.choice import CONTEXT, KUBECONFIG, ForeignLogin, login_of
from elastic_tpu.platforms.open import open_platform
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record.run import Run, create_run, open_run
from elastic_tpu.runs.spec.run_spec import Gke, RunSpec
from elastic_tpu.stages.open import open_stage
from elastic_tpu.stages.steps import PROVISION
from elastic_tpu.tests.support import COMMAND, command
from elastic_tpu.tests.tools import small


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who has named no login."""
    for variable in (KUBECONFIG, CONTEXT, "KUBECONFIG"):
        monkeypatch.delenv(variable, raising=False)


def plugin_config(folder: Path) -> tuple[Path, Path]:
    """A kubeconfig whose login plugin leaves a file, and that file."""
    ran, config = folder / "ran", folder / "config"
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"open({str(ran)!r}, 'w')"],
        "interactiveMode": "Never",
    }
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "me", "user": {"exec": plugin}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            }
        )
    )
    return config, ran


def written(bucket: str, **gke: Any) -> Run:
    """A run as its writer left it: slices are said to be there, so that a look asks the cluster."""
    run = create_run(RunSpec.model_validate(small.gke(run={"name": "r", "output": f"gs://{bucket}/runs"}, gke=gke)))
    record = {"run_id": run.run_id, "platform": "gke", "state": "created", "slices": []}
    run.store.put("slices.json", json.dumps(record).encode())
    return run


@pytest.fixture
def foreign(tmp_path: Path, gcs_bucket: str) -> tuple[Run, Path]:
    """A run that anybody may have written, whose kubeconfig runs a program; and the file that the program leaves."""
    config, ran = plugin_config(tmp_path)
    return written(gcs_bucket, kubeconfig=str(config)), ran


@pytest.mark.parametrize(
    ("args", "code"),
    [(["status"], 0), (["status", "--json"], 0), (["kill-slice"], 64), (["release"], 64), (["run"], 64)],
)
def test_the_kubeconfig_of_a_stored_spec_runs_nothing(foreign: tuple[Run, Path], args: list[str], code: int) -> None:
    run, ran = foreign
    ended = command(*args, run.uri, *(["0"] if args == ["kill-slice"] else []))
    assert not ran.exists()
    said = ended.stdout + ended.stderr
    assert ended.returncode == code, said
    assert "--kubeconfig" in said
    assert "gke.kubeconfig" in said


def test_the_reader_may_name_the_kubeconfig(foreign: tuple[Run, Path]) -> None:
    run, ran = foreign
    command("--kubeconfig", str(ran.with_name("config")), "status", run.uri)
    assert ran.exists()


@pytest.mark.parametrize(("answer", "runs"), [(b"n\n", False), (b"\n", False), (b"y\n", True)])
def test_a_person_is_asked(foreign: tuple[Run, Path], answer: bytes, runs: bool) -> None:
    run, ran = foreign
    terminal, there = os.openpty()
    try:
        os.write(terminal, answer)
        ended = subprocess.run([*COMMAND, "status", run.uri], stdin=there, stdout=subprocess.PIPE, stderr=there)
        asked = os.read(terminal, 65536).decode()
    finally:
        os.close(terminal)
        os.close(there)
    assert ended.returncode == 0
    assert f"names kubeconfig {ran.with_name('config')}" in " ".join(asked.split())
    assert "[y/N]" in asked
    assert ran.exists() == runs


def test_a_context_of_a_stored_spec_is_not_used(gcs_bucket: str) -> None:
    run = written(gcs_bucket, context="production")
    with pytest.raises(ForeignLogin, match=r"gke\.context: 'production'.*--context"):
        open_platform(open_run(run.uri))


@pytest.mark.parametrize(("pinned", "logs_in"), [(True, True), (False, False)])
def test_an_own_spec_goes_on_in_a_bucket_by_its_hash(gcs_bucket: str, pinned: bool, logs_in: bool) -> None:
    given = settled(written(gcs_bucket, kubeconfig="/nowhere"))
    spec_hash = given.spec_hash if pinned else ""  # as `run` and kfp.local's steps have it, and who knows only the URI
    with pytest.raises(BadInput, match="there is no such file" if logs_in else "others may have written"):
        open_stage(PROVISION, given.uri, "ann@host", allow_local=True, spec_hash=spec_hash)


@pytest.mark.parametrize(
    ("environ", "stored", "used"),
    [
        ({KUBECONFIG: "mine"}, Gke(kubeconfig="theirs", context="theirs"), ("mine", None)),
        ({CONTEXT: "mine"}, Gke(kubeconfig="theirs", context="theirs"), (None, "mine")),
        ({KUBECONFIG: "mine", CONTEXT: "c"}, Gke(cluster="tpus"), ("mine", "c")),
        ({"KUBECONFIG": "mine"}, Gke(kubeconfig="mine"), ("mine", None)),  # it would be used without a word as well
        ({KUBECONFIG: ""}, Gke(cluster="tpus", location="l", project="p"), (None, None)),
    ],
)
def test_what_the_reader_names_replaces_what_is_stored(
    environ: dict[str, str], stored: Gke, used: tuple[str | None, str | None]
) -> None:
    for own in (True, False):
        found = login_of(stored, environ, own=own)
        assert (found.kubeconfig, found.context) == used
