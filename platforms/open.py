"""Opens the platform that a run names."""

from __future__ import annotations

import os

from ..runs.record.run import Run
from ..runs.spec.run_spec import RunSpec
from .base import Platform


def require_login(spec: RunSpec, own: bool = True) -> None:
    """Check that this process can log in to the platform, before anything of a run is written.

    Args:
      own: this process may use the kubeconfig and the context that the spec names.

    Raises:
      BadInput: it cannot; the message names the cure. `ForeignLogin`: only the spec says how.
    """
    if spec.platform == "gke" and spec.gke is not None:
        from .gke.api.choice import login_of
        from .gke.api.credentials import api_client

        api_client(login_of(spec.gke, os.environ, own=own))


def require_rights(spec: RunSpec, own: bool = True) -> None:
    """Check that the platform would not refuse a run of this spec, before anything of it is written.

    Args:
      own: as for `require_login`.

    Raises:
      BadInput: it would; each problem is named with its cure.
      Unreachable: the platform does not answer.
    """
    if spec.platform == "gke" and spec.gke is not None:
        from .gke.api.choice import login_of
        from .gke.api.cluster import Cluster
        from .gke.api.credentials import api_client
        from .gke.api.rights import require_rights as require

        gke = login_of(spec.gke, os.environ, own=own)
        require(Cluster(api_client(gke), gke.namespace), gke)


def open_platform(run: Run) -> Platform:
    """The platform that the run's spec names. Creates nothing.

    Raises:
      BadInput: this process cannot log in to it; `ForeignLogin`: it does not by the word of the run alone.
    """
    if run.spec.platform == "local":
        from .local.platform import LocalPlatform

        return LocalPlatform(run)
    from .gke.platform import open_gke

    return open_gke(run)
