"""The step as an Airflow operator."""

from ..airflow import StageOperator
from .step import STEP


class ReleaseSlicesOperator(StageOperator):
    """Give every slice of a run back; idempotent, and a good teardown."""

    step = STEP
