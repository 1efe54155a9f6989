"""What an orchestrator's stage may do where it runs: decided by the pipeline's author and the machine's operator.

Whoever triggers a pipeline chooses its spec. A spec of platform `local` runs programs on the machine of the stage, and
one that names a kubeconfig may: neither follows from a trigger alone. Standard library only at import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..runs.errors import BadInput, Problem

if TYPE_CHECKING:
    from ..runs.spec.run_spec import RunSpec

ALLOW_LOCAL = "ELASTIC_TPU_ALLOW_LOCAL"
"""Environment variable of a pipeline's step: `1` = the runner of this machine allows platform `local`."""

SPECS = "ELASTIC_TPU_SPECS"
"""Environment variable: prefixes, apart by commas, one of which a pipeline's spec or run must lie under."""

_BUCKET = "gs://"
_BACKENDS = ("KFP_POD_NAME", "CLOUD_ML_PROJECT_ID")  # set in the steps of Kubeflow Pipelines, of Vertex AI


def refuse_local(spec: RunSpec) -> None:
    """Refuse a spec that runs programs on the machine of a stage.

    Raises:
      BadInput: each field that does, with who may allow it.
    """
    cure = (
        "a pipeline does not do that because it was triggered: run it with `elastic-tpu run`, or let the pipeline's "
        f"author allow it (allow_local=True in Airflow, ${ALLOW_LOCAL}=1 in the step of another, but not in "
        "a container that ends with its step: the slices would end with it)"
    )
    found = []
    if spec.platform == "local":
        found.append(Problem("platform", "local", f"would run the training on the machine of this stage; {cure}"))
    if spec.local.trainer:
        found.append(Problem("local.trainer", spec.local.trainer, f"would be run as a program; {cure}"))
    if found:
        raise BadInput(found)


def allows_local(environ: Mapping[str, str]) -> bool:
    """Whether a pipeline's step may run platform `local` here: the runner of this machine says so, and it can work.

    A backend gives each step a container of its own. The slices, processes of provision's, would end with that one.
    """
    return environ.get(ALLOW_LOCAL) == "1" and not any(name in environ for name in _BACKENDS)


def require_under(source: str, prefixes: Sequence[str]) -> None:
    """Check that a spec or a run lies under one of the prefixes; all do if there is none.

    Raises:
      BadInput: it does not; the prefixes are named.
    """
    if prefixes and not any(_is_under(source, prefix) for prefix in prefixes):
        raise BadInput(
            f"{source}: this pipeline may start only what lies under {', '.join(prefixes)}; give one of those, or let "
            f"the pipeline's author (`specs`) or the operator (${SPECS}) allow more"
        )


def prefixes_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The prefixes of the operator of this machine; empty if none are set."""
    return tuple(part for text in environ.get(SPECS, "").split(",") if (part := text.strip()))


def home_of(source: str) -> str:
    """The prefix that a pipeline has by default: the bucket of its own spec, on this machine the folder."""
    if source.startswith(_BUCKET):
        return _BUCKET + source.removeprefix(_BUCKET).partition("/")[0]
    return os.path.dirname(source) or "."  # noqa: PTH120 - text, resolved where it is compared


def _is_under(source: str, prefix: str) -> bool:
    if source.startswith(_BUCKET) != prefix.startswith(_BUCKET):
        return False
    if source.startswith(_BUCKET):
        if ".." in source.split("/"):
            return False
    else:  # by what it is, not by the links through which it is reached
        source, prefix = (os.path.realpath(os.path.expanduser(path)) for path in (source, prefix))  # noqa: PTH111
    prefix = prefix.rstrip("/")
    return source == prefix or source.startswith(f"{prefix}/")
