"""Fixtures that more than one room's tests use: a real bucket server on loopback, and where a store may be."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_tpu.tests.tools.fault_proxy import FaultProxy

pytest_plugins = ["elastic_tpu.tests.controlplane.fixtures"]
TOOLS = Path(__file__).parent / "tools"


def tools_directory() -> Path:
    """Where tests/tools/build.sh puts what it builds."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "elastic-tpu" / hashlib.sha256((TOOLS / "go.sum").read_bytes()).hexdigest()[:16]


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a library did to logging when an earlier test imported it, so that caplog gets every warning.

    Airflow sets the root logger's level to ERROR; others disable loggers that were there before them.
    """
    root = logging.getLogger()
    monkeypatch.setattr(root.manager, "disable", logging.NOTSET)
    monkeypatch.setattr(root, "level", logging.WARNING)
    for name, logger in root.manager.loggerDict.items():
        if name.partition(".")[0] == "elastic_tpu" and isinstance(logger, logging.Logger):
            monkeypatch.setattr(logger, "disabled", False)
            monkeypatch.setattr(logger, "propagate", True)
            monkeypatch.setattr(logger, "level", logging.NOTSET)
    root.manager._clear_cache()  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[str]:
    """Address of a fake-gcs-server that this session started; skipped where it is not built, failed in CI."""
    binary = tools_directory() / "fake-gcs-server"
    if not binary.exists():
        reason = f"{binary} is missing: run tests/tools/build.sh (needs Go)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    host, _, port = address.partition(":")
    options = ["-backend", "memory", "-scheme", "http", "-host", host, "-port", port, "-public-host", address]
    server = subprocess.Popen([binary, *options, "-log-level", "error"])
    try:
        _wait_until_answers(f"http://{address}/storage/v1/b?project=test", server)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(timeout=10)


@pytest.fixture
def gcs_environment(gcs_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Point google-cloud-storage, gcsfs and tensorstore at the server; its address."""
    for name, value in {
        "STORAGE_EMULATOR_HOST": gcs_server,
        "TENSORSTORE_GCS_HTTP_URL": gcs_server,
        "NO_GCE_CHECK": "true",
        "GOOGLE_CLOUD_PROJECT": "test",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }.items():
        monkeypatch.setenv(name, value)
    return gcs_server


@pytest.fixture
def gcs_bucket(gcs_environment: str) -> str:
    """Name of a new, empty bucket on the server."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    body = json.dumps({"name": name}).encode()
    request = urllib.request.Request(f"{gcs_environment}/storage/v1/b?project=test", data=body)
    urllib.request.urlopen(request).close()
    return name


@pytest.fixture
def gcs_proxy(gcs_bucket: str, gcs_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy that fails on request between the clients and the server of `gcs_bucket`."""
    del gcs_bucket  # made before the clients are pointed at the proxy
    with FaultProxy(gcs_server) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        yield proxy


@pytest.fixture(params=["folder", "bucket"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a run may be: a folder that does not exist yet, and a prefix in an empty bucket."""
    if request.param == "folder":
        return str(tmp_path / "runs" / "a run")
    return f"gs://{request.getfixturevalue('gcs_bucket')}/runs/a run"


def _wait_until_answers(url: str, server: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError as error:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{url} does not answer; the server's exit code is {server.poll()}") from error
            time.sleep(0.02)
