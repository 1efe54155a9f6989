"""What a run directory of another user has a command do: nothing but show it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.tests.support import Case, command


@pytest.mark.skipif(os.getuid() != 0, reason="plays a second user, which only root can become")
def test_the_program_of_another_users_run_is_not_run(make_case: Callable[..., Case]) -> None:
    case = make_case()
    run = create_run(read_spec(str(case.spec)))
    spec = Path(run.uri, "spec.yaml")
    os.chown(spec, 65534, 65534)
    done = command("run", run.uri)
    assert done.returncode == 64
    assert "local.trainer: " in done.stderr
    assert "belongs to another user" in done.stderr
    assert case.attempts() == []
    assert command("status", run.uri).returncode == 0
