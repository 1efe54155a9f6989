# The trainer's image: `python -m elastic_tpu.trainer`, for the head of a run and for its export and evaluation.
#   docker build -f deploy/trainer.Dockerfile -t REGISTRY/elastic-tpu-trainer:0.1.0 \
#     --build-arg BASE=python@sha256:DIGEST .
#   docker push REGISTRY/elastic-tpu-trainer:0.1.0
# Its JAX is that of requirements.lock; the tag of `gke.pathways` in a spec must name the same one.
# A tag may move: give the base image by the digest that you have looked at (`docker buildx imagetools inspect
# python:3.12-slim` prints it).
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
COPY . .
# Packages are checked against the hashes of the lock, uv first. Only what the trainer needs is installed.
RUN sed -n '/^uv==/,/^ *#/p' requirements.lock > /tmp/uv.txt \
    && pip install --no-cache-dir --no-deps --require-hashes -r /tmp/uv.txt \
    && python -m venv /opt/trainer \
    # jax[tpu]: libtpu, for an evaluation on a TPU host; under Pathways the trainer needs none. `-b`: for what builds.
    && uv pip install --python /opt/trainer/bin/python --no-cache \
        -c requirements.lock -c deploy/tpu.lock -b requirements.lock '.[trainer]' 'jax[tpu]'

FROM ${BASE}
COPY --from=build /opt/trainer /opt/trainer
ENV PATH=/opt/trainer/bin:$PATH HOME=/tmp
WORKDIR /tmp
USER 65532:65532
