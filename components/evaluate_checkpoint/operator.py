"""The step as an Airflow operator."""

from ...stages.steps import EVALUATE
from ..airflow_operator import StageOperator


class EvaluateCheckpointOperator(StageOperator):
    """Evaluate the export on held-out data. If the gate does not pass, the task fails and is not retried."""

    step = EVALUATE
