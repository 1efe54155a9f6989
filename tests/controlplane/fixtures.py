"""Fixtures of tests that need a real Kubernetes; a test that uses one of them has the marker `controlplane`.

One control plane serves all tests of a pytest process; each test has a namespace of its own in it, with the service
accounts and Roles of deploy/rbac.yaml. Loaded by tests/conftest.py, so that any room's tests can use them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elastic_tpu.tests.controlplane.binaries import missing

if TYPE_CHECKING:  # importing the client takes seconds, which tests of other things are not to pay
    from elastic_tpu.tests.controlplane.cases import ClusterCase
    from elastic_tpu.tests.controlplane.plane import ControlPlane
    from elastic_tpu.tests.controlplane.proxy import ApiProxy

MARKER = "controlplane"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` selects."""
    for item in items:
        if "plane" in getattr(item, "fixturenames", ()):
            item.add_marker(MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    plane = getattr(item, "funcargs", {}).get("plane")
    if report.failed and plane is not None:
        report.sections.append(("Control plane", f"logs in {plane.logs}"))
    return report


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with kwok; skipped where it is not built, failed in CI."""
    if reason := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from elastic_tpu.tests.controlplane.plane import ControlPlane

    with ControlPlane(tmp_path_factory.mktemp("plane") / "control") as plane:
        yield plane


@pytest.fixture
def namespace(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new namespace; it and the nodes that the test made are deleted afterwards, which nobody waits for."""
    import kubernetes
    from elastic_tpu.platforms.gke.api.choice import KUBECONFIG

    monkeypatch.setenv(KUBECONFIG, "")  # a case of the namespace sets it
    before = set(plane.nodes)
    name = plane.namespace(f"t-{uuid.uuid4().hex[:8]}")
    yield name
    core = kubernetes.client.CoreV1Api(plane.admin)
    with suppress(kubernetes.client.ApiException):  # a test may have deleted it
        # In this order no pod can be bound to a node of the next test: none is made in a namespace that is going, and
        # one that is going is not scheduled.
        core.delete_namespace(name)
        core.delete_collection_namespaced_pod(name, grace_period_seconds=0)
    for node in set(plane.nodes) - before:
        plane.remove(node)


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[ApiProxy]:
    """A proxy that fails on request in front of the API server."""
    from elastic_tpu.tests.controlplane.proxy import ApiProxy

    with ApiProxy(plane.url, certificate=plane.certificate, key=plane.key) as proxy:
        yield proxy


@pytest.fixture
def case(plane: ControlPlane, namespace: str, gcs_bucket: str, tmp_path: Path) -> ClusterCase:
    """A run in a namespace and a bucket of its own; a test gives it hardware."""
    from elastic_tpu.tests.controlplane.cases import ClusterCase

    return ClusterCase(plane, namespace, gcs_bucket, tmp_path / "case")
