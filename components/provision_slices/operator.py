"""The step as an Airflow operator."""

from ...stages.steps import PROVISION
from ..airflow_operator import StageOperator


class ProvisionSlicesOperator(StageOperator):
    """Take the slices of a run and wait until they are ready."""

    step = PROVISION
