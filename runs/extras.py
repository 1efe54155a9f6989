"""The extras of this package: whether one is installed, and the one sentence that says how to install it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from .errors import BadInput

Extra = Literal["airflow", "gke", "kfp", "trainer"]

# Modules by which an extra is known to be there.
_MODULES: Mapping[Extra, tuple[str, ...]] = {
    "airflow": ("airflow",),
    "gke": ("kubernetes",),
    "kfp": ("kfp",),
    "trainer": ("jax", "maxtext", "pathwaysutils", "grain", "orbax", "transformers", "tokenizers", "pyarrow"),
}
_TRAINER_PYTHON = (3, 12)  # MaxText's; on an older Python the extra `trainer` is empty


class MissingExtra(BadInput, ImportError):
    """A library is missing that an extra installs. An ImportError too, since imports raise it."""


def installed(module: str) -> bool:
    """Whether a top-level module can be found; does not import it."""
    return importlib.util.find_spec(module) is not None


def missing(extra: Extra) -> str:
    """Which module of an extra is not installed; empty if all are."""
    return next((f"No module named {module!r}" for module in _MODULES[extra] if not installed(module)), "")


def cure(extra: Extra, why: str, python: tuple[int, ...] = sys.version_info[:2]) -> str:
    """How to install an extra; `why` says how it is known to be missing."""
    line = f"needs `pip install 'elastic-tpu[{extra}]'` ({why})"
    if extra == "trainer" and python < _TRAINER_PYTHON:
        now, least = (".".join(map(str, version)) for version in (python, _TRAINER_PYTHON))
        line += f" with Python {least} or newer: on {now}, which this is, that extra installs nothing"
    return line


def require(extra: Extra, who: str) -> None:
    """Refuse if an extra is not installed.

    Args:
      who: what needs it; begins the message.

    Raises:
      MissingExtra: a module of it is not installed; names the module and the pip line.
    """
    if why := missing(extra):
        raise MissingExtra(f"{who} {cure(extra, why)}")


@contextmanager
def needed(extra: Extra, who: str) -> Iterator[None]:
    """Around imports of an extra's libraries: an ImportError becomes MissingExtra.

    Args:
      who: what needs it; begins the message.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{who} {cure(extra, str(error))}") from error
