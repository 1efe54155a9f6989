"""Compile the pipeline to one YAML document.

    python -m elastic_tpu.pipelines.compile --target kfp    --image REGISTRY/elastic-tpu:0.1.0 -o pipeline.yaml
    python -m elastic_tpu.pipelines.compile --target vertex --image REGISTRY/elastic-tpu:0.1.0 -o pipeline.yaml

The image holds this package with its `kfp` extra. Pin it by a tag or a digest; `latest` is refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import yaml

from ..components.kfp_step import IMAGE
from ..runs.errors import BadInput, ElasticTPUError, Problem
from ..runs.extras import needed
from .step_settings import StepSettings, parse, refused_by_vertex
from .train_export_evaluate import for_backend

with needed("kfp", "compiling a pipeline"):
    from kfp import compiler

Target = Literal["kfp", "vertex"]


def compile_pipeline(target: Target, path: Path, image: str = IMAGE, settings: StepSettings | None = None) -> None:
    """Write the pipeline for a backend; every step gets the settings.

    Raises:
      BadInput: the image is not pinned, or Vertex AI could not pull it, or has not what the settings name.
    """
    settings = settings or StepSettings()
    _check_image(image, target)
    if target == "vertex" and (refused := refused_by_vertex(settings)):
        raise BadInput(refused)
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(for_backend(image, settings), str(path))
    documents = len(list(yaml.safe_load_all(path.read_text(encoding="utf-8"))))
    expected = 1 + settings.of_kubernetes  # a second one has Kubernetes settings, which Vertex AI's client refuses
    if documents != expected:
        raise ElasticTPUError(f"{path}: {documents} documents were compiled for {target}, expected: {expected}")


def _check_image(image: str, target: Target) -> None:
    registry, _, name = image.rpartition("/")
    tag = name.partition("@")[2] or name.partition(":")[2]
    if not tag or tag == "latest":
        raise BadInput([Problem("--image", image, "pin it by a tag other than latest, or by @sha256:<digest>")])
    if target == "vertex" and not registry:
        cure = "Vertex AI pulls from a registry: give LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/elastic-tpu:VERSION"
        raise BadInput([Problem("--image", image, cure)])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=["kfp", "vertex"], required=True)
    parser.add_argument("--image", default=IMAGE, help=f"image of every task (default: {IMAGE})")
    parser.add_argument("-o", "--output", type=Path, required=True)
    steps = parser.add_argument_group("every step's container", "the last four may be repeated")
    default = StepSettings()
    steps.add_argument("--cpu", default=default.cpu, help=f"CPUs requested (default: {default.cpu})")
    steps.add_argument("--memory", default=default.memory, help=f"memory requested (default: {default.memory})")
    for option, metavar, what in (
        ("--env", "NAME=VALUE", "a variable, e.g. ELASTIC_TPU_SPECS=gs://acme/specs"),
        ("--secret-env", "NAME=SECRET:KEY", "a variable from a Kubernetes Secret (kfp only)"),
        ("--secret", "SECRET=/PATH", "a Secret as a folder of files (kfp only)"),
        ("--volume", "CLAIM=/PATH", "a persistent volume claim (kfp only)"),
    ):
        steps.add_argument(option, action="append", default=[], metavar=metavar, help=what)
    options = parser.parse_args(arguments)
    try:
        settings = parse(options.cpu, options.memory, options.env, options.secret_env, options.secret, options.volume)
        compile_pipeline(options.target, options.output, options.image, settings)
    except ElasticTPUError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
