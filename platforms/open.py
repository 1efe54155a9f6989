"""Opens the platform that a run names."""

from __future__ import annotations

from ..runs.record.run import Run
from ..runs.spec.run_spec import RunSpec
from .base import Platform


def require_login(spec: RunSpec) -> None:
    """Check that this process can log in to the platform, before anything of a run is written.

    Raises:
      BadInput: it cannot; the message names the cure.
    """
    if spec.platform == "gke" and spec.gke is not None:
        from .gke.api.credentials import api_client

        api_client(spec.gke)


def open_platform(run: Run) -> Platform:
    """The platform that the run's spec names. Creates nothing.

    Raises:
      BadInput: this process cannot log in to it.
    """
    if run.spec.platform == "local":
        from .local.platform import LocalPlatform

        return LocalPlatform(run)
    from .gke.platform import open_gke

    return open_gke(run)
