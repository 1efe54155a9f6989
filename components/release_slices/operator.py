"""The step as an Airflow operator."""

from typing import Any

from ...stages.steps import RELEASE, RELEASE_AT_END
from ..airflow_operator import StageOperator


class ReleaseSlicesOperator(StageOperator):
    """Give back every slice of a run and wait until it is gone. Idempotent: use it as a teardown."""

    step = RELEASE

    def __init__(self, *, run: str, last: bool = False, **kwargs: Any) -> None:
        """Args:
        run: URI of the run directory, or of a spec.
        last: no other task of the DAG run follows: the claim is given up, unless a job still runs.
        kwargs: of `StageOperator`.
        """
        super().__init__(run=run, **kwargs)
        if last:
            self.step = RELEASE_AT_END
