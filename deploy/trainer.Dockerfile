# The trainer's image: `python -m elastic_tpu.trainer`, for the head of a run and for its export and evaluation.
#   docker build -f deploy/trainer.Dockerfile -t REGISTRY/elastic-tpu-trainer:0.1.0 .
#   docker push REGISTRY/elastic-tpu-trainer:0.1.0
# Its JAX is that of requirements.lock; the tag of `gke.pathways` in a spec must name the same one.
FROM python:3.12-slim
WORKDIR /src
COPY . .
# The lock holds every extra's versions; only what the trainer needs is installed.
RUN grep -vE '^(#|-)' requirements.lock | sed 's/ *#.*//' > /tmp/constraints.txt \
    && pip install --no-cache-dir uv \
    # jax[tpu]: libtpu, for an evaluation on a TPU host; under Pathways the trainer needs none.
    && uv pip install --system --no-cache -c /tmp/constraints.txt '.[trainer]' 'jax[tpu]' \
    && rm -rf /src /tmp/constraints.txt
WORKDIR /
