"""The step as an Airflow operator."""

from ...stages.steps import TRAIN
from ..airflow import StageOperator


class TrainElasticOperator(StageOperator):
    """Train on the slices; losses of slices are recovered from inside, and this task only watches."""

    step = TRAIN
