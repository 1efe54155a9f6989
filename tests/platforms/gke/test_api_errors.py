"""What an answer of the Kubernetes API means; the messages are those of Kubernetes 1.36 and JobSet 0.12."""

from __future__ import annotations

import json

import pytest
from elastic_tpu.platforms.gke.api.errors import BeingDeleted, ListingExpired, Operation, error_of
from elastic_tpu.runs.errors import BadInput, Changed, Exists, NotFound, Unreachable

JOBSETS = "jobsets.jobset.x-k8s.io"
OPERATION = Operation("create", JOBSETS, "team", "demo-1")
TAKEN = f'{JOBSETS} "demo-1" already exists'


def body(message: str, reason: str = "", **details: str) -> bytes:
    return json.dumps({"kind": "Status", "reason": reason, "message": message, "details": details}).encode()


FORBIDDEN = (
    f'{JOBSETS} "demo-1" is forbidden: User "system:serviceaccount:team:default" cannot create resource "jobsets" '
    'in API group "jobset.x-k8s.io" in the namespace "team"'
)
IMMUTABLE = (
    'admission webhook "vjobset.kb.io" denied the request: spec.replicatedJobs: Invalid value: '
    + '{"name": "pathways-head"} ' * 300
    + ": field is immutable"
)
UID = "the UID in the precondition (x) does not match the UID in record (y). The object might have been deleted"
ANONYMOUS = f'{JOBSETS} is forbidden: User "system:anonymous" cannot list resource "jobsets" at the cluster scope'

TABLE = [
    # who must act, and what the message has to say
    (401, body("Unauthorized", "Unauthorized"), Unreachable, ["credentials", "log in to it"]),
    (401, b"", Unreachable, ["credentials"]),
    (403, body(ANONYMOUS, "Forbidden"), Unreachable, ["credentials"]),
    (403, body(FORBIDDEN, "Forbidden"), BadInput, ["gke.namespace", "team", "create", JOBSETS, "deploy/rbac.yaml"]),
    (403, body(FORBIDDEN, "Forbidden"), BadInput, ["system:serviceaccount:team:default"]),
    (403, body('jobs "x" is forbidden: exceeded quota: q', "Forbidden"), BadInput, ["exceeded quota: q"]),
    (403, body("unable to create: it is being terminated", "Forbidden"), BadInput, ["being terminated"]),
    (404, body('namespaces "team" not found', "NotFound", name="team", kind="namespaces"), BadInput, ["gke.namespace"]),
    (404, body(f'{JOBSETS} "demo-1" not found', "NotFound", name="demo-1", kind="jobsets"), NotFound, ["demo-1"]),
    (404, body("the server could not find the requested resource", "NotFound"), BadInput, ["install JobSet"]),
    (404, b"404 page not found\n", BadInput, ["install JobSet", "gke.cluster"]),
    (404, b"<html>not here</html>", Unreachable, ["not the Kubernetes API"]),
    (409, body(TAKEN, "AlreadyExists"), Exists, ["demo-1"]),
    (409, body(f"object is being deleted: {TAKEN}", "AlreadyExists"), BeingDeleted, ["being deleted"]),
    (409, body(UID, "Conflict"), Changed, ["does not match"]),
    (410, body("The provided continue parameter is too old", "ListingExpired"), ListingExpired, ["too old"]),
    (422, body("name must be no more than 63 bytes", "Invalid"), BadInput, ["no more than 63 bytes"]),
    (400, body('strict decoding error: unknown field "spec.foo"', "BadRequest"), BadInput, ["spec.foo"]),
    (422, body(IMMUTABLE, "Invalid"), BadInput, ["vjobset.kb.io", "spec.replicatedJobs", "field is immutable"]),
    (400, b"Bad gateway configuration", Unreachable, ["400"]),
    (429, body("slow down", "TooManyRequests"), Unreachable, ["429", "slow down"]),
    (408, body("Timeout", "Timeout"), Unreachable, ["408"]),
    (500, body("failed calling webhook: connection refused", "InternalError"), Unreachable, ["failed calling webhook"]),
    (503, b"", Unreachable, ["503", "create jobsets.jobset.x-k8s.io/demo-1 in namespace team"]),
    (302, b"", Unreachable, ["302"]),
]


@pytest.mark.parametrize(("code", "answer", "kind", "says"), TABLE)
def test_each_answer_names_who_must_act_and_says_why(code: int, answer: bytes, kind: type, says: list[str]) -> None:
    error = error_of(code, answer, OPERATION, login="log in to it")
    assert type(error) is kind
    for text in says:
        assert text in str(error)
    assert len(str(error)) < 1000


def test_being_deleted_is_a_kind_of_exists_so_that_a_create_may_catch_both() -> None:
    assert issubclass(BeingDeleted, Exists)
