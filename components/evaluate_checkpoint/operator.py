"""The step as an Airflow operator."""

from ..airflow import StageOperator
from .step import STEP


class EvaluateCheckpointOperator(StageOperator):
    """Evaluate the export on held-out data; a gate that does not pass fails the task for good."""

    step = STEP
