"""Every stage's `collect` writes report.html, and training at each recovery and proven checkpoint; the last one wins.

It is written after a failure too, when it is needed most. If it cannot be written, the stage warns and goes on.
Standard library only at import, as all of this package.
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
    """Write the report after a stage's `collect`, also when it raises, unless somebody else drives the run."""

    @functools.wraps(collect)
    def wrapper(stage: S) -> R:
        try:
            result = collect(stage)
        except HeldByAnother:
            raise  # a stage whose claim is refused changes nothing
        except ElasticTPUError:
            write_report(stage)
            raise
        write_report(stage)
        return result

    return wrapper


def write_report(stage: Any) -> None:
    """Write the report of a stage's run; what stands in the way is told, and changes nothing for the stage."""
    run: Run = stage.run
    try:
        from ..report import report

        report.write_report(run)
    except Exception as error:  # whatever it is, the stage's result stands
        stage._tell(f"warning: report.html could not be written: {type(error).__name__}: {error}")
