"""What an account must be allowed to do, in one place: deploy/rbac.yaml grants this, the preflight asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....runs.errors import Problem
from .errors import RBAC_CURE

JOBSET_GROUP = "jobset.x-k8s.io"


class Rule(NamedTuple):
    """One verb on one resource (with its subresource: `pods/log`) of an API group ("" = core)."""

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
"""Whoever submits, watches, cancels and releases."""

TRAINER: tuple[Rule, ...] = _rules("batch", "jobs", "get", "delete")
"""The trainer's pod: it deletes the child Job of a lost slice, so that JobSet makes a new one at once."""


def problems(
    namespace: str, denied: Sequence[str], service_account: str | None, has_service_account: bool | None
) -> list[Problem]:
    """What would keep a run from starting.

    Args:
      denied: rules that the API denies, as text.
      has_service_account: None when this account may not look.
    """
    found = []
    if denied:
        # A namespace that is not there has no Roles either, and nobody but an administrator can tell the two apart.
        perhaps = " (or there is no such namespace)" if len(denied) == len(LAUNCHER) else ""
        cure = f"this account may not {', '.join(denied)} there{perhaps}; {RBAC_CURE}"
        found.append(Problem("gke.namespace", namespace, cure))
    if service_account and has_service_account is False:
        where = f"namespace {namespace} has no such service account, or is not there itself"
        cure = f"{where}; create it, or apply deploy/rbac.yaml there"
        found.append(Problem("gke.service_account", service_account, cure))
    return found
