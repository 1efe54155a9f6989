"""Real Pathways: connects this process to the proxy in its pod, after checking that their JAX versions agree."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping

from ...runs.errors import BadInput, Problem

_JAX_OF_IMAGES = "ELASTIC_TPU_PATHWAYS_JAX"  # set by the manifest: the JAX version in the tags of the Pathways images


def connect(environ: Mapping[str, str] = os.environ) -> None:
    """Make Pathways the backend of JAX. Call it before any backend of JAX is used.

    Raises:
      BadInput: this process is not in a head pod, or the Pathways images are made for another JAX.
    """
    check(environ, importlib.metadata.version("jax"))
    import pathwaysutils

    pathwaysutils.initialize()


def check(environ: Mapping[str, str], jax: str) -> None:
    """Refuse an environment that cannot work.

    Args:
      environ: of the process.
      jax: installed version.
    Raises:
      BadInput: see `connect`.
    """
    platforms = environ.get("JAX_PLATFORMS", "")
    if "proxy" not in platforms.split(","):
        cure = "must contain proxy: on GKE the trainer runs in the head pod of the run's JobSet, which sets it"
        raise BadInput([Problem("JAX_PLATFORMS", platforms or None, cure)])
    wanted = environ.get(_JAX_OF_IMAGES, "")
    # A tag says 0.12.0 where the package says 0.12.0.1: as many numbers as the tag has must be equal.
    if wanted and jax.split(".")[: wanted.count(".") + 1] != wanted.split("."):
        cure = f"the Pathways images are for this JAX, but the trainer image has {jax}; choose images that agree"
        raise BadInput([Problem(_JAX_OF_IMAGES, wanted, cure)])
