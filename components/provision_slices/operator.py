"""The step as an Airflow operator."""

from ..airflow import StageOperator
from .step import STEP


class ProvisionSlicesOperator(StageOperator):
    """Take the slices of a run and wait until they are ready."""

    step = STEP
