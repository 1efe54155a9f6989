"""`elastic-tpu report`: writes the page of a run into the run directory, a file or stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from ..report.report import NAME, render, write_report
from ..runs.errors import BadInput, Problem
from ..runs.record.run import local_folder
from .given import open_given


def report(uri: str, output: str | None, show: bool) -> None:
    """Write the page and print where it is.

    Args:
      output: a file, a folder, or `-` for stdout; None: report.html in the run directory.
      show: open it in a browser.
    """
    run = open_given(uri)
    if show and output is None and local_folder(run) is None:
        raise BadInput(f"--open: {run.uri} is in a bucket, which a browser cannot open; add --output FILE")
    if output is None:
        where = write_report(run)
    elif output == "-":
        sys.stdout.write(render(run))
        return
    else:
        where = str(_write(Path(output).expanduser().absolute(), render(run)))
    print(where)  # noqa: T201 - a command's own output
    if show:
        typer.launch(where)


def _write(path: Path, page: str) -> Path:
    path = path / NAME if path.is_dir() else path
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadInput([Problem("--output", str(path), f"cannot be written ({error.strerror})")]) from error
    return path
