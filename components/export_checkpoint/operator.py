"""The step as an Airflow operator."""

from ..airflow import StageOperator
from .step import STEP


class ExportCheckpointOperator(StageOperator):
    """Export the final, proven checkpoint to a Hugging Face directory."""

    step = STEP
