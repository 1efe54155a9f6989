"""What a spec may not have the run's pods do unless the platform team allows it by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.spec.images import TRAINER_JAX
from elastic_tpu.runs.spec.load import check, read_spec
from elastic_tpu.runs.spec.pod_rights import RIGHTS
from elastic_tpu.tests.tools.small import gke

TRAINER = "gke.head.spec.containers.trainer"
WIDER: list[tuple[dict[str, Any], str, str]] = [
    ({"head": {"spec": {"hostPID": True}}}, "gke.head.spec.hostPID", "hostPID"),
    ({"worker": {"spec": {"hostIPC": True}}}, "gke.worker.spec.hostIPC", "hostIPC"),
    ({"head": {"spec": {"nodeName": "n"}}}, "gke.head.spec.nodeName", "nodeName"),
    (
        {"worker": {"spec": {"automountServiceAccountToken": True}}},
        "gke.worker.spec.automountServiceAccountToken",
        "apiToken",
    ),
    ({"head": {"spec": {"securityContext": {"runAsUser": 0}}}}, "gke.head.spec.securityContext.runAsUser", "root"),
    (
        {"head": {"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}},
        "gke.head.spec.securityContext.seccompProfile.type",
        "unconfined",
    ),
    (
        {"worker": {"spec": {"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}}},
        "gke.worker.spec.securityContext.sysctls",
        "sysctl:net.core.somaxconn",
    ),
    (
        {"head": {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}},
        "gke.head.spec.volumes.v.hostPath.path",
        "hostPath:/",
    ),
    (
        {"head": {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/mnt/data/../../etc"}}]}}},
        "gke.head.spec.volumes.v.hostPath.path",
        "hostPath:/etc",
    ),
    (
        {"head": {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "theirs"}}]}}},
        "gke.head.spec.volumes.v",
        "secret:theirs",
    ),
    (
        {
            "jobs": {
                "export": {
                    "patch": {
                        "spec": {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "theirs"}}]}}]}
                    }
                }
            }
        },
        "gke.jobs.export.patch.spec.volumes.v",
        "secret:theirs",
    ),
    (
        {"jobs": {"evaluate": {"patch": {"spec": {"hostNetwork": True}}}}},
        "gke.jobs.evaluate.patch.spec.hostNetwork",
        "hostNetwork",
    ),
    *(
        ({"head": {"spec": {"containers": [{"name": "trainer", **part}]}}}, f"{TRAINER}.{path}", right)
        for part, path, right in (
            ({"securityContext": {"privileged": True}}, "securityContext.privileged", "privileged"),
            (
                {"securityContext": {"allowPrivilegeEscalation": True}},
                "securityContext.allowPrivilegeEscalation",
                "allowPrivilegeEscalation",
            ),
            (
                {"securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}},
                "securityContext.capabilities.add",
                "capability:SYS_ADMIN",
            ),
            ({"envFrom": [{"secretRef": {"name": "theirs"}}]}, "envFrom", "secret:theirs"),
        )
    ),
    (
        {"jobs": {"export": {"patch": {"spec": {"containers": [{"name": "trainer", "ports": [{"hostPort": 80}]}]}}}}},
        "gke.jobs.export.patch.spec.containers.trainer.ports",
        "hostPort",
    ),
    ({"service_account": "admin"}, "gke.service_account", "serviceAccount:admin"),
    (
        {"pathways": {"tag": f"20260510-jax_{TRAINER_JAX}", "server": "evil.example/server"}},
        "gke.pathways.server",
        "registry:evil.example/server",
    ),
]


@pytest.mark.parametrize(("sections", "path", "right"), WIDER, ids=[right for _, _, right in WIDER])
def test_a_wider_right_is_refused_by_field_and_allowed_by_name(sections: dict[str, Any], path: str, right: str) -> None:
    with pytest.raises(BadInput) as raised:
        check(gke(gke=sections))
    assert [problem.path for problem in raised.value.problems] == [path]
    assert f"allow: [{right!r}]" in str(raised.value)
    check(gke(gke={**sections, "allow": [right]}))
    another = {kind: f"{kind}:other" for kind in RIGHTS if right.startswith(f"{kind}:")} or {"": "capability:OTHER"}
    with pytest.raises(BadInput):
        check(gke(gke={**sections, "allow": list(another.values())}))


def test_a_folder_and_a_registry_are_allowed_with_what_lies_below() -> None:
    volumes = [{"name": "v", "hostPath": {"path": "/mnt/data/set"}}]
    for allowed, fine in (("hostPath:/mnt/data", True), ("hostPath:/mnt/dat", False), ("hostPath:/", True)):
        sections = {"head": {"spec": {"volumes": volumes}}, "allow": [allowed]}
        if fine:
            check(gke(gke=sections))
        else:
            with pytest.raises(BadInput, match="hostPath:/mnt/data/set"):
                check(gke(gke=sections))


def test_what_takes_rights_away_and_single_keys_of_a_secret_are_fine() -> None:
    container = {
        "name": "trainer",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "privileged": False},
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    }
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "w", "emptyDir": {}}]
    check(gke(gke={"head": {"spec": {"containers": [container], "volumes": volumes}}}))


@pytest.mark.parametrize(
    ("name", "said"),
    [("root:me", "takes no value"), ("hostPath", "write `hostPath:WHICH`"), ("everything", "is no right; there are")],
)
def test_a_name_that_allows_nothing_is_refused(name: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        check(gke(gke={"allow": [name]}))


def test_only_a_profile_of_the_platform_team_allows(tmp_path: Path) -> None:
    document = gke(gke={"head": {"spec": {"hostPID": True}}}, profile="team")
    team, beside = tmp_path / "team", tmp_path / "specs"
    for folder in (team, beside):
        folder.mkdir()
    spec = beside / "spec.yaml"
    spec.write_text(yaml.safe_dump(document))
    profile = yaml.safe_dump({"gke": {"allow": ["hostPID"]}})
    (team / "team.yaml").write_text(profile)
    (beside / "team.yaml").write_text(profile)
    environ = {"ELASTIC_TPU_PROFILES": str(team)}
    allowed = read_spec(str(spec), environ, with_inputs=False).gke
    assert allowed is not None
    assert allowed.allow == ["hostPID"]
    with pytest.raises(BadInput, match=r"gke\.allow: .*platform team's to say"):
        read_spec(str(spec), {}, with_inputs=False)
    document["gke"]["allow"] = ["hostPID", "hostIPC"]
    spec.write_text(yaml.safe_dump(document))
    with pytest.raises(BadInput, match=r"gke\.allow: .*platform team's to say"):
        read_spec(str(spec), environ, with_inputs=False)
