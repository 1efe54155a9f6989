"""The rights that are asked for are those that deploy/rbac.yaml grants, no more and no less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import elastic_tpu
import pytest
import yaml
from elastic_tpu.platforms.gke.api.errors import Operation, error_of
from elastic_tpu.platforms.gke.api.preflight import LAUNCHER, TRAINER, Rule, problems

RBAC = Path(elastic_tpu.__file__).parent / "deploy" / "rbac.yaml"


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(RBAC.read_text()))


@pytest.mark.parametrize(("name", "rules"), [("elastic-tpu-launcher", LAUNCHER), ("elastic-tpu-trainer", TRAINER)])
def test_rbac_grants_what_is_asked_for_and_nothing_else(
    documents: list[dict[str, Any]], name: str, rules: tuple[Rule, ...]
) -> None:
    (role,) = (d for d in documents if d["kind"] == "Role" and d["metadata"]["name"] == name)
    granted = [
        Rule(verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert sorted(granted) == sorted(rules)


def test_every_role_is_bound_to_the_account_of_its_name(documents: list[dict[str, Any]]) -> None:
    made = {(d["kind"], d["metadata"]["name"]) for d in documents}
    names = ("elastic-tpu-launcher", "elastic-tpu-trainer")
    assert made == {(kind, name) for kind in ("ServiceAccount", "Role", "RoleBinding") for name in names}
    for binding in (d for d in documents if d["kind"] == "RoleBinding"):
        name = binding["metadata"]["name"]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", name)
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]


def test_all_that_would_keep_a_run_from_starting_is_named() -> None:
    found = "\n".join(map(str, problems("team", ["create jobs.batch", "get pods/log"], "robot", False)))
    for text in ("gke.namespace: 'team'", "create jobs.batch, get pods/log", "deploy/rbac.yaml", "'robot'"):
        assert text in found


@pytest.mark.parametrize(
    ("user", "bound"),
    [
        (
            "system:serviceaccount:kubeflow:pipeline-runner",
            "kubectl create rolebinding elastic-tpu-pipeline-runner --role=elastic-tpu-launcher "
            "--serviceaccount=kubeflow:pipeline-runner -n team",
        ),
        (
            "Ann@example.com",
            "kubectl create rolebinding elastic-tpu-ann-example.com --role=elastic-tpu-launcher "
            "--user=Ann@example.com -n team",
        ),
        (
            "an 'odd' one",
            "kubectl create rolebinding elastic-tpu-an-odd-one --role=elastic-tpu-launcher "
            """--user='an '"'"'odd'"'"' one' -n team""",
        ),
    ],
)
def test_the_account_that_was_refused_is_named_with_the_command_that_cures_it(user: str, bound: str) -> None:
    (problem,) = problems("team", ["create jobs.batch"], None, None, user)
    assert f"'team', {user} may not create jobs.batch there" in str(problem)
    assert str(problem).endswith(bound)
    assert "deploy/rbac.yaml" in str(problem)  # the Role itself may be missing as well
    refused = f'jobs.batch is forbidden: User "{user}" cannot create resource "jobs"'
    answer = {"kind": "Status", "status": "Failure", "message": refused, "reason": "Forbidden", "code": 403}
    error = error_of(403, json.dumps(answer).encode(), Operation("create", "jobs.batch", "team"))
    assert str(error).endswith(bound)


@pytest.mark.parametrize("has", [True, None])
def test_an_account_that_is_there_or_cannot_be_looked_for_is_no_problem(has: bool | None) -> None:
    assert problems("team", [], "robot", has) == []
