"""Runs `elastic-tpu` in processes that are forked from one which has its libraries loaded: a tenth of their CPU time.

Each command still is a process of its own, with its own outputs, environment, folder and exit code. A test that changes
how Python starts (an environment with PYTHON... in it) gets a whole new interpreter.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# What `plan`, `run` and `status` load on their way, as far as it starts no threads.
_LOADED = (
    "elastic_tpu.tests.forks",
    "elastic_tpu.cli.main",
    "elastic_tpu.cli.act",
    "elastic_tpu.cli.follow",
    "elastic_tpu.cli.show",
    "elastic_tpu.cli.status",
    "pyarrow.parquet",
    "tokenizers",
)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(_LOADED))


def run(
    arguments: Sequence[str], cwd: Path | None, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run `elastic-tpu` to its end.

    Raises:
      subprocess.TimeoutExpired: it did not end within `seconds`; it is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        process = _CONTEXT.Process(
            target=_command, args=(list(arguments), str(cwd or Path.cwd()), dict(environment), [*map(str, outputs)])
        )
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), seconds)
        stdout, stderr = (path.read_text(encoding="utf-8") if path.exists() else "" for path in outputs)
        return subprocess.CompletedProcess(list(arguments), process.exitcode, stdout, stderr)


def _command(arguments: list[str], cwd: str, environment: dict[str, str], outputs: list[str]) -> None:
    for number, path in zip((1, 2), outputs, strict=True):
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    from elastic_tpu.cli.main import main

    sys.argv = ["elastic-tpu", *arguments]
    main()
