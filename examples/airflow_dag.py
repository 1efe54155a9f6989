# airflow dag: without these two words Airflow does not read the file, and shows no import error
"""An Airflow DAG to copy into your DAG folder: set the spec and, if you like, a schedule."""

from elastic_tpu.dags.train_export_evaluate import train_export_evaluate

dag = train_export_evaluate(
    "gs://acme-train/specs/qwen3-8b.yaml",  # run: {name: "{run}", ...} makes every DAG run a new run
    dag_id="train_qwen3_8b",
    # Who triggers the DAG may give another spec, of the same bucket; `specs=["gs://acme-train/specs/"]` narrows that.
    # Specs of platform `local`, or with a kubeconfig, run programs on the workers: `allow_local=True` allows them.
    tags=["tpu"],
)
