"""Asks a cluster whether this login may run something in a namespace: the preflight's questions."""

from __future__ import annotations

from ....runs.errors import BadInput
from ....runs.spec.run_spec import Gke
from .cluster import Cluster
from .preflight import LAUNCHER, problems


def require_rights(cluster: Cluster, gke: Gke) -> None:
    """Refuse what the cluster would refuse later, or leave pending for ever without an error. Creates nothing.

    Raises:
      BadInput: a right, the service account or the namespace is missing.
    """
    denied = cluster.denied(LAUNCHER)
    has_account = cluster.has_service_account(gke.service_account)
    user = cluster.user() if denied else ""
    if found := problems(gke.namespace, denied, gke.service_account, has_account, user):
        raise BadInput(found)
