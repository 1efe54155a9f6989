"""The step as an Airflow operator."""

from ...stages.steps import RELEASE
from ..airflow import StageOperator


class ReleaseSlicesOperator(StageOperator):
    """Give every slice of a run back; idempotent, and a good teardown."""

    step = RELEASE
