"""The rights that an account needs, in one place: deploy/rbac.yaml grants them, the preflight asks for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....runs.errors import Problem
from .errors import rbac_cure

JOBSET_GROUP = "jobset.x-k8s.io"


class Rule(NamedTuple):
    """A right: one verb on one resource (or subresource: `pods/log`) of an API group ("" = core)."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}.{self.group}".rstrip(".")


def _rules(group: str, resource: str, *verbs: str) -> tuple[Rule, ...]:
    return tuple(Rule(verb, group, resource) for verb in verbs)


LAUNCHER: tuple[Rule, ...] = (
    *_rules(JOBSET_GROUP, "jobsets", "create", "get", "list", "delete"),
    *_rules("batch", "jobs", "create", "get", "list", "delete"),
    *_rules("", "pods", "list", "delete"),
    *_rules("", "pods/log", "get"),
    *_rules("", "events", "list"),
    *_rules("", "serviceaccounts", "get"),
)
"""For processes that submit, watch, cancel and release."""

TRAINER: tuple[Rule, ...] = _rules("batch", "jobs", "get", "delete")
"""For the trainer's pod: it deletes the child Job of a lost slice, so that JobSet makes a new one at once."""


def problems(
    namespace: str,
    denied: Sequence[str],
    service_account: str | None,
    has_service_account: bool | None,
    user: str = "",
) -> list[Problem]:
    """What would keep a run from starting; empty if nothing is wrong.

    Args:
      denied: the rules of LAUNCHER that this login lacks, as text.
      service_account: `gke.service_account`.
      has_service_account: whether it exists; None if this login may not look.
      user: name of this login in the cluster; empty if unknown.
    """
    found = []
    if denied:
        # Without any right, only an administrator can tell a missing Role from a missing namespace.
        perhaps = " (or there is no such namespace)" if len(denied) == len(LAUNCHER) else ""
        cure = f"{user or 'this account'} may not {', '.join(denied)} there{perhaps}; {rbac_cure(user, namespace)}"
        found.append(Problem("gke.namespace", namespace, cure))
    if service_account and has_service_account is False:
        where = f"namespace {namespace} has no such service account, or does not exist"
        cure = f"{where}; create it, or apply deploy/rbac.yaml there"
        found.append(Problem("gke.service_account", service_account, cure))
    return found
