"""A lost slice comes back at once and by itself; without the right to delete its Job, after the Job's own back-off."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_tpu.tests.controlplane.losing import losing, wait
from elastic_tpu.tests.controlplane.plane import ControlPlane


def test_a_lost_slice_is_back_in_seconds_every_time(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    with losing(plane, namespace, tmp_path) as run:
        wait(run.all_up)
        head, other = run.head(), {pod.metadata.uid for pod in run.pods(0)}
        run.slices.hold({0, 1})
        for pods in (4, 1):
            # 3 s on an idle machine (benchmarks/slice_return.py); the Job's own back-off would begin at 10.
            assert run.seconds_to_return(1, pods) < 10
            assert run.slices.lost() == {1}
        wait(lambda: run.changes[1:] == [("lost", 1), ("back", 1)] * 2)
        assert run.changes[0] == ("ready", None)
        assert (run.head(), run.restarts()) == (head, 0)
        assert {pod.metadata.uid for pod in run.pods(0)} == other


def test_without_the_right_to_delete_the_back_off_brings_it_back(
    plane: ControlPlane, namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    may_look(plane, namespace)
    with losing(plane, namespace, tmp_path, account="looks-only") as run:
        wait(run.all_up)
        head, kept = run.head(), {pod.metadata.uid for pod in run.pods(1)[1:]}
        assert run.seconds_to_return(1, 1) > 5  # 10 s of back-off by index
        wait(lambda: run.changes == [("ready", None), ("lost", 1), ("back", 1)])
        assert (run.head(), run.restarts()) == (head, 0)
        assert kept < {pod.metadata.uid for pod in run.pods(1)}  # nobody touched the slice's other pods
        assert caplog.text.count("deploy/rbac.yaml") == 1
        assert 'cannot delete resource "jobs"' in caplog.text


def may_look(plane: ControlPlane, namespace: str) -> None:
    """A service account that may get Jobs, and no more."""
    name, group = {"name": "looks-only", "namespace": namespace}, "rbac.authorization.k8s.io"
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]}]
    plane.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name})
    plane.apply({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": name, "rules": rules})
    plane.apply(
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": name,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "looks-only"},
            "subjects": [{"kind": "ServiceAccount", **name}],
        }
    )
