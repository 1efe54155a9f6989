"""The step as an Airflow operator."""

from ...stages.steps import EXPORT
from ..airflow_operator import StageOperator


class ExportCheckpointOperator(StageOperator):
    """Export the final, proven checkpoint to a Hugging Face directory."""

    step = EXPORT
