"""What an answer of the Kubernetes API means: pure, from status and body to the error that names who must act.

Only an answer that says that an object is gone means that it is gone. What cannot be understood, an expired login and
every 5xx are "unknown, not lost" (`Unreachable`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ....runs.errors import BadInput, Changed, ElasticTPUError, Exists, NotFound, Problem, Unreachable

RBAC_CURE = "have an administrator apply deploy/rbac.yaml there, and act as its service account elastic-tpu-launcher"
LONGEST = 600  # characters of the server's own text: a refused change prints the whole object

_LOGIN = "log in to the cluster again"
_USER = re.compile(r'User "([^"]*)" cannot ')


class BeingDeleted(Exists):
    """The name is still taken by an object that is being deleted: wait until it is gone, it cannot be adopted."""


class Expired(Unreachable):
    """A listing took so long that its next page is gone (410): it has to begin again."""


@dataclass(frozen=True)
class Asked:
    """What was asked of the API: an RBAC verb on a resource (`jobsets.jobset.x-k8s.io`) in a namespace."""

    verb: str
    resource: str
    namespace: str
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}/{self.name}" if self.name else self.resource
        return f"{self.verb} {what} in namespace {self.namespace}"


def without_middle(text: str, longest: int = LONGEST) -> str:
    """The text without its middle: a refusal says at its beginning what is wrong, and at its end why."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    head = longest * 2 // 3
    return f"{text[:head]} [...] {text[head - longest :]}"


def message_of(body: bytes) -> str:
    """What the server said, cut to what matters."""
    message = _status_of(body).get("message")
    return without_middle(message if isinstance(message, str) else body.decode(errors="replace"))


def error_of(status: int, body: bytes, asked: Asked, login: str = "") -> ElasticTPUError:
    """The error for an answer that is no success.

    Args:
      login: where the credentials came from and how to renew them, for the user.
    """
    said, answer = message_of(body), _status_of(body)
    reason = answer.get("reason", "")
    if is_refused_login(status, body):
        # Nothing is known of the run, and nothing is lost.
        refused = f"the cluster does not accept these credentials ({said or 'Unauthorized'})"
        return Unreachable(f"{refused}; {login or _LOGIN}")
    if status == 403:
        return _forbidden(said, asked)
    if status == 404:
        return _not_found(said, answer, body, asked)
    if status == 409:
        if reason == "AlreadyExists":
            kind = BeingDeleted if "object is being deleted" in said else Exists
            return kind(f"{asked}: {said}")
        return Changed(f"{asked}: {said}")
    if status == 410:
        return Expired(f"{asked}: {said}")
    if 400 <= status < 500 and status not in (408, 429) and answer:
        return BadInput([Problem("gke", None, f"the cluster refuses to {asked}: {said}")])
    return Unreachable(f"the Kubernetes API did not {asked}: it answered {status} ({said})")


def is_refused_login(status: int, body: bytes) -> bool:
    """Whether the server does not know who asks: a new login may help."""
    return status == 401 or (status == 403 and b"system:anonymous" in body)


def is_missing_right(status: int, body: bytes) -> bool:
    """Whether an account that the server knows may not do this: it is what an API server says also while it starts."""
    return status == 403 and not is_refused_login(status, body) and _USER.search(message_of(body)) is not None


def no_login(error: Exception, login: str = "") -> Unreachable:
    """The credentials cannot be renewed now."""
    text = f"the credentials for the cluster cannot be renewed ({type(error).__name__}: {without_middle(str(error))})"
    return Unreachable(f"{text}; {login or _LOGIN}")


def _status_of(body: bytes) -> dict[str, Any]:
    """The body as the API's own Status object; empty when something else answered."""
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}


def _forbidden(said: str, asked: Asked) -> BadInput:
    user = _USER.search(said)
    if user or "is forbidden" not in said:
        may_not = f"{user[1] if user else 'this account'} may not {asked.verb} {asked.resource} there ({said})"
        return BadInput([Problem("gke.namespace", asked.namespace, f"{may_not}; {RBAC_CURE}")])
    # Quotas, admission policies and a namespace that is being terminated: the rights are there.
    return BadInput([Problem("gke.namespace", asked.namespace, f"the cluster refuses to {asked.verb} this: {said}")])


def _not_found(said: str, answer: dict[str, Any], body: bytes, asked: Asked) -> ElasticTPUError:
    details = answer.get("details") or {}
    if details.get("kind") == "namespaces":
        cure = f"there is no such namespace; create it (kubectl create namespace {asked.namespace}) or correct the name"
        return BadInput([Problem("gke.namespace", asked.namespace, cure)])
    if details.get("name"):
        return NotFound(f"{asked}: {said}")
    if answer or body.strip() == b"404 page not found":
        cure = f"the cluster does not know {asked.resource}: install JobSet 0.8 or newer there, or name another cluster"
        return BadInput([Problem("gke.cluster", None, cure)])
    return Unreachable(f"what answered is not the Kubernetes API (404: {said}); asked to {asked}")
