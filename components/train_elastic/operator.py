"""The step as an Airflow operator."""

from ...stages.steps import TRAIN
from ..airflow_operator import StageOperator


class TrainElasticOperator(StageOperator):
    """Train on the slices. The trainer recovers from lost slices by itself; this task only watches."""

    step = TRAIN
