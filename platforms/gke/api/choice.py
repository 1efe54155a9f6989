"""Chooses whose words say where to connect: the reader's, never those of whoever wrote the run directory.

A kubeconfig may name a program that is executed to log in, and a context any cluster of the reader's. In a bucket
nobody can tell who wrote a spec, so those of a stored one are not used: the reader names a kubeconfig or a context.
Project, location and cluster name no file and run nothing: they count as they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....runs.errors import BadInput, Problem
from ....runs.spec.run_spec import Gke

KUBECONFIG = "ELASTIC_TPU_KUBECONFIG"
"""Environment variable: the kubeconfig to use in place of the one that a spec names."""

CONTEXT = "ELASTIC_TPU_CONTEXT"
"""Environment variable: the context to use in place of the one that a spec names."""


class ForeignLogin(BadInput):
    """The run names a kubeconfig or a context, and nothing tells that the user of this process wrote that."""


def login_of(gke: Gke, environ: Mapping[str, str], *, own: bool) -> Gke:
    """The section with the kubeconfig and the context that may be used.

    Args:
      environ: the reader's environment, whose two variables win over the spec, each for both fields.
      own: the spec was given to this process by its user (`Run.own`), or the user agreed.

    Raises:
      ForeignLogin: only a spec that is not the user's names them.
    """
    kubeconfig, context = environ.get(KUBECONFIG) or None, environ.get(CONTEXT) or None
    if kubeconfig or context:
        return gke.model_copy(update={"kubeconfig": kubeconfig, "context": context})
    if own or (gke.kubeconfig == environ.get("KUBECONFIG") and not gke.context):
        return gke
    told = [
        Problem(
            f"gke.{field}",
            value,
            f"is named by a spec that others may have written, and {danger}; name your own with "
            f"`elastic-tpu --{field} {what} ...` or ${variable}",
        )
        for field, value, danger, what, variable in (
            ("kubeconfig", gke.kubeconfig, "a kubeconfig may run programs as you", "FILE", KUBECONFIG),
            ("context", gke.context, "a context may be any of your clusters", "NAME", CONTEXT),
        )
        if value
    ]
    if told:
        raise ForeignLogin(told)
    return gke
