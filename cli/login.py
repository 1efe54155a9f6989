"""What a stored spec may have a person's command do: its login, and its program on this machine, only if they agree."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from dataclasses import replace

import typer

from ..platforms.base import Platform
from ..platforms.gke.api.choice import CONTEXT, KUBECONFIG, ForeignLogin, login_of
from ..platforms.open import open_platform
from ..runs.errors import BadInput, Problem
from ..runs.record.run import Run
from .display import plain


def name(kubeconfig: str | None, context: str | None) -> None:
    """Let this process and the steps that it starts use these in place of what any spec names."""
    for variable, value in ((KUBECONFIG, kubeconfig), (CONTEXT, context)):
        os.environ[variable] = value or ""


def open_as_reader(run: Run) -> Platform:
    """The platform of `settled`. Raises what that raises, and `open_platform`."""
    return open_platform(settled(run))


def settled(run: Run) -> Run:
    """The run as this process may act on it, after a question where its login is only the stored spec's word.

    Raises:
      ForeignLogin: the answer is no, or nobody can be asked.
    """
    gke = run.spec.gke
    if run.spec.platform != "gke" or gke is None:
        return run
    try:
        login_of(gke, os.environ, own=run.own)
    except ForeignLogin:
        named = (("kubeconfig", gke.kubeconfig), ("context", gke.context))
        if not _agrees(run.uri, " and ".join(f"{name} {value}" for name, value in named if value)):
            raise
        return replace(run, own=True)
    return run


def settled_to_run(run: Run) -> Run:
    """`settled`, for a command that starts the run's jobs: on this machine with the program that its spec names.

    Raises:
      ForeignLogin: of `settled`.
      BadInput: the spec names a trainer, the user did not write it, and does not agree or cannot be asked.
    """
    program = run.spec.local.trainer if run.spec.platform == "local" else None
    if program and not run.own and not _agrees(run.uri, f"the program {shlex.join(program)}"):
        raise BadInput(
            [
                Problem(
                    "local.trainer",
                    program,
                    "is named by a spec that belongs to another user, and would run as you; look at it, and go on from "
                    "a terminal, or start a run of your own with it",
                )
            ]
        )
    return settled(run)


@functools.cache  # `status --watch` asks once
def _agrees(uri: str, named: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    question = f"The run {uri} names {named}. You may not have written that, and it may run programs as you. Use it?"
    return typer.confirm(plain(question), default=False, err=True)
