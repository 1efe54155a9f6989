"""The steps as Airflow operators. Airflow reads a DAG file only where it finds the words airflow and dag in it.

from elastic_tpu.components.airflow import ProvisionSlicesOperator, ReleaseSlicesOperator, TrainElasticOperator
"""

from .evaluate_checkpoint.operator import EvaluateCheckpointOperator
from .export_checkpoint.operator import ExportCheckpointOperator
from .provision_slices.operator import ProvisionSlicesOperator
from .release_slices.operator import ReleaseSlicesOperator
from .train_elastic.operator import TrainElasticOperator

__all__ = [
    "EvaluateCheckpointOperator",
    "ExportCheckpointOperator",
    "ProvisionSlicesOperator",
    "ReleaseSlicesOperator",
    "TrainElasticOperator",
]
