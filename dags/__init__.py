"""Airflow DAGs made of the operators in `components`."""
