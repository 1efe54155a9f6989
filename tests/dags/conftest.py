"""Fixtures of Airflow, and of runs."""

from elastic_tpu.tests.dags.airflow_home import airflow, run_dag
from elastic_tpu.tests.support import make_case

__all__ = ["airflow", "make_case", "run_dag"]
