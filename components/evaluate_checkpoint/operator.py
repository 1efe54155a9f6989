"""The step as an Airflow operator."""

from ...stages.steps import EVALUATE
from ..airflow import StageOperator


class EvaluateCheckpointOperator(StageOperator):
    """Evaluate the export on held-out data; a gate that does not pass fails the task for good."""

    step = EVALUATE
