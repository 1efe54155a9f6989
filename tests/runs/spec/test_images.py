"""Which images are refused, and that the JAX they are compared with is the trainer's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elastic_tpu.runs.spec.images import (
    TRAINER_JAX,
    image_problem,
    pathways_image,
    pathways_repository_problem,
    pathways_tag_problem,
    split,
)

DIGEST = f"sha256:{'0' * 64}"


def test_the_trainers_jax_is_that_of_the_lock() -> None:
    lock = (Path(__file__).parents[3] / "requirements.lock").read_text()
    (locked,) = re.findall(r"^jax==(\S+)", lock, re.MULTILINE)
    assert ".".join(locked.split(".")[:3]) == TRAINER_JAX


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("a/b:1", ("a/b", "1", "")),
        ("localhost:5000/b", ("localhost:5000/b", "", "")),  # a port is no tag
        (f"r.io:80/b:1@{DIGEST}", ("r.io:80/b", "1", DIGEST)),
    ],
)
def test_split(image: str, parts: tuple[str, str, str]) -> None:
    assert split(image) == parts


@pytest.mark.parametrize(
    "image",
    [
        "eu.gcr.io/acme/elastic-tpu:0.1.0",
        "europe-west4-docker.pkg.dev/acme/train/elastic_tpu:main-7f3a9c",
        f"eu.gcr.io/acme/elastic-tpu@{DIGEST}",
        f"localhost:5000/elastic-tpu:1@{DIGEST}",
        "busybox:1.36",
    ],
)
def test_images_that_stay(image: str) -> None:
    assert image_problem(image) == ""


@pytest.mark.parametrize(
    ("image", "cure"),
    [
        ("eu.gcr.io/acme/elastic-tpu:latest", "`latest` may name another image tomorrow"),
        ("eu.gcr.io/acme/elastic-tpu", "has no tag, which means `latest`"),
        ("localhost:5000/elastic-tpu", "has no tag"),
        ("eu.gcr.io/acme/elastic-tpu@sha256:abc", "its digest must be"),
        ("eu.gcr.io/Acme/elastic-tpu:1", "must be an image reference"),
        ("https://eu.gcr.io/acme/x:1", "must be an image reference"),
        ("x y:1", "must be an image reference"),
    ],
)
def test_images_that_are_refused(image: str, cure: str) -> None:
    assert image_problem(image).startswith(cure)


@pytest.mark.parametrize(
    ("tag", "cure"),
    [
        (f"20260510-jax_{TRAINER_JAX}", ""),
        ("20260128-jax_0.9.0", f"is for JAX 0.9.0, the trainer has {TRAINER_JAX}; take a tag that ends in"),
        (f"20260510-jax_{TRAINER_JAX}.1", f"is for JAX {TRAINER_JAX}.1, the trainer has"),
        ("latest", "must be a release that names its JAX: <yyyymmdd>-jax_"),
        ("20260510", "must be a release that names its JAX"),
    ],
)
def test_pathways_tags(tag: str, cure: str) -> None:
    found = pathways_tag_problem(tag)
    assert found.startswith(cure)
    assert bool(found) is bool(cure)


def test_a_pathways_repository_has_no_tag_of_its_own() -> None:
    assert pathways_repository_problem("eu.gcr.io/acme/server") == ""
    assert pathways_repository_problem(f"eu.gcr.io/acme/server@{DIGEST}") == ""
    assert "write 'eu.gcr.io/acme/server' here and '7' in gke.pathways.tag" in pathways_repository_problem(
        "eu.gcr.io/acme/server:7"
    )
    assert pathways_repository_problem("no such").startswith("must be an image reference")


def test_a_digest_decides_over_the_tag() -> None:
    assert pathways_image("r/server", "t") == "r/server:t"
    assert pathways_image(f"r/server@{DIGEST}", "t") == f"r/server@{DIGEST}"
