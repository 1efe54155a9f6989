"""What an answer of the Kubernetes API means: from HTTP status and body to the error that names who must act. Pure.

An object is gone only if the API says so. A 5xx, an expired login and an answer that cannot be understood mean that
its state is unknown (`Unreachable`).
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

from ....runs.errors import BadInput, Changed, ElasticTPUError, Exists, NotFound, Problem, Unreachable
from ....runs.units import without_middle
from ..k8s_json import Json

ADDRESS_CURE = "check the cluster's address, and any proxy in between"

_LOGIN = "log in to the cluster again"
_SERVICE_ACCOUNT = "system:serviceaccount:"
_USER = re.compile(r'User "([^"]*)" cannot ')


class BeingDeleted(Exists):
    """The name is taken by an object that is being deleted: it cannot be adopted, wait until it is gone."""


class ListingExpired(Unreachable):
    """A listing took so long that its next page is gone (410): begin it again."""


@dataclass(frozen=True)
class Operation:
    """What a request does, for errors: an RBAC verb on a resource (`jobsets.jobset.x-k8s.io`) in a namespace.

    As text: "get jobsets.jobset.x-k8s.io/demo in namespace team".
    """

    verb: str
    resource: str
    namespace: str
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}/{self.name}" if self.name else self.resource
        return f"{self.verb} {what} in namespace {self.namespace}"


def message_of(body: bytes) -> str:
    """The message of the API's Status object, else the body itself; shortened."""
    message = _status_of(body).get("message")
    return without_middle(message if isinstance(message, str) else body.decode(errors="replace"))


def error_of(status: int, body: bytes, operation: Operation, login: str = "") -> ElasticTPUError:
    """The error for an answer whose status is not 2xx.

    Args:
      login: where the credentials came from and how to renew them, for people.

    Returns:
      NotFound, Exists or BeingDeleted (409 AlreadyExists), Changed (other 409), ListingExpired (410), BadInput (a 4xx
      that names what to change), Unreachable (all others).
    """
    said, answer = message_of(body), _status_of(body)
    reason = answer.get("reason", "")
    if is_refused_login(status, body):
        # The state of the run is unknown; a new login will tell.
        refused = f"the cluster does not accept these credentials ({said or 'Unauthorized'})"
        gone = f"an account of namespace {operation.namespace} is gone if that was deleted"
        return Unreachable(f"{refused}; {login or _LOGIN}; {gone}")
    if status == 403:
        return _forbidden(said, operation)
    if status == 404:
        return _not_found(said, answer, body, operation)
    if status == 409:
        if reason == "AlreadyExists":
            kind = BeingDeleted if "object is being deleted" in said else Exists
            return kind(f"{operation}: {said}")
        return Changed(f"{operation}: {said}")
    if status == 410:
        return ListingExpired(f"{operation}: {said}")
    if 400 <= status < 500 and status not in (408, 429) and answer:
        return BadInput([Problem("gke", None, f"the cluster refuses to {operation}: {said}")])
    return Unreachable(f"the Kubernetes API did not {operation}: it answered {status} ({said})")


def is_refused_login(status: int, body: bytes) -> bool:
    """Whether the server does not accept the credentials: a new login may help."""
    return status == 401 or (status == 403 and b"system:anonymous" in body)


def is_missing_right(status: int, body: bytes) -> bool:
    """Whether a known account lacks the right. An API server that is starting says so as well."""
    return status == 403 and not is_refused_login(status, body) and _USER.search(message_of(body)) is not None


def user_in(said: str) -> str:
    """The account that a refusal names, empty if it names none."""
    found = _USER.search(said)
    return found[1] if found else ""


def rbac_cure(user: str, namespace: str) -> str:
    """Who must do what, so that an account has a launcher's rights in a namespace; `user` is empty if it is unknown."""
    applied = "have an administrator apply deploy/rbac.yaml there"
    if not user:
        return f"{applied}, and act as its service account elastic-tpu-launcher"
    account = user.removeprefix(_SERVICE_ACCOUNT)
    flag = "--user" if account == user else "--serviceaccount"
    binding = "-".join(re.findall(r"[a-z0-9.]+", account.rpartition(":")[2].lower()))
    bind = f"kubectl create rolebinding elastic-tpu-{binding} --role=elastic-tpu-launcher"
    bind += f" {flag}={shlex.quote(account)} -n {shlex.quote(namespace)}"
    return f"{applied}, which makes the Role, and bind this account to it: {bind}"


def login_failed(error: Exception, login: str = "") -> Unreachable:
    """The error for credentials that cannot be renewed now; arguments as `error_of`."""
    text = f"the credentials for the cluster cannot be renewed ({type(error).__name__}: {without_middle(str(error))})"
    return Unreachable(f"{text}; {login or _LOGIN}")


def _status_of(body: bytes) -> Json:
    """The body as the API's Status object; empty if the body is something else."""
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}


def _forbidden(said: str, operation: Operation) -> BadInput:
    name = user_in(said)
    if name or "is forbidden" not in said:
        may_not = f"{name or 'this account'} may not {operation.verb} {operation.resource} there ({said})"
        cure = rbac_cure(name, operation.namespace)
        return BadInput([Problem("gke.namespace", operation.namespace, f"{may_not}; {cure}")])
    # A quota, an admission policy, or a namespace that is being terminated: no right is missing.
    refused = f"the cluster refuses to {operation.verb} this: {said}"
    return BadInput([Problem("gke.namespace", operation.namespace, refused)])


def _not_found(said: str, answer: Json, body: bytes, operation: Operation) -> ElasticTPUError:
    details = answer.get("details") or {}
    if details.get("kind") == "namespaces":
        namespace = operation.namespace
        cure = f"there is no such namespace; create it (kubectl create namespace {namespace}) or correct the name"
        return BadInput([Problem("gke.namespace", namespace, cure)])
    if details.get("name"):
        return NotFound(f"{operation}: {said}")
    if answer or body.strip() == b"404 page not found":
        unknown = f"the cluster does not know {operation.resource}"
        cure = f"{unknown}: install JobSet 0.8 or newer there, or name another cluster"
        return BadInput([Problem("gke.cluster", None, cure)])
    return Unreachable(f"what answered is not the Kubernetes API (404: {said}); asked to {operation}; {ADDRESS_CURE}")
