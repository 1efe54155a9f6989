"""Every stage's `collect` leaves report.html behind; the last one wins.

The report of a stage that failed is the one that is wanted most, so it is written then as well. One that cannot be
written is said and fails nothing. Standard library only at import, as all of this package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..runs.errors import ElasticTPUError, HeldByAnother

if TYPE_CHECKING:
    from ..runs.record.run import Run

S = TypeVar("S")
R = TypeVar("R")


def reported(collect: Callable[[S], R]) -> Callable[[S], R]:
    """Write the report after a stage's `collect`, whatever it came to, unless somebody else drives the run."""

    @functools.wraps(collect)
    def wrapper(stage: S) -> R:
        try:
            result = collect(stage)
        except HeldByAnother:
            raise  # a stage that was refused changes nothing
        except ElasticTPUError:
            _write(stage)
            raise
        _write(stage)
        return result

    return wrapper


def _write(stage: Any) -> None:
    run: Run = stage.run
    try:
        from ..report.report import write_report

        write_report(run)
    except Exception as error:  # not the stage's own matter, whatever it is
        stage._tell(f"warning: report.html could not be written: {type(error).__name__}: {error}")
