"""Metadata, packages and extras; tool settings live in pyproject.toml, locked versions in requirements.lock."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOMS = find_packages(exclude=["tests*", "benchmarks*", "examples*", "deploy*", "docs*"])
VERSION = re.search(r'__version__ = "(.+)"', Path("__init__.py").read_text(encoding="utf-8"))[1]

KFP = ["kfp>=2.17.3", "kfp-kubernetes>=2.17.3"]
AIRFLOW = [
    "apache-airflow>=3.3.2",
    "apache-airflow-providers-google",
    "apache-airflow-providers-cncf-kubernetes",
]
VERTEX = ["google-cloud-aiplatform"]
GKE = ["kubernetes", "google-cloud-container"]
TRAINER = [
    # maxtext declares its dependencies only in extras that pin hundreds of packages; these are what pre-training needs.
    "maxtext==0.2.5; python_version >= '3.12'",
    *(
        f"{name}; python_version >= '3.12'"
        for name in [
            "jax>=0.12.0.1",
            "flax",
            "optax",
            "grain",
            "orbax-checkpoint>=0.12.8",
            "pathwaysutils>=0.1.13",
            "transformers",
            "datasets",
            "tokenizers",
            "sentencepiece",
            "tiktoken",
            "aqtp",
            "qwix",
            "tokamax",
            "omegaconf",
            "drjax",
            "pillow",
            "sympy",
            "ml_collections",
            "ml-goodput-measurement",
            "safetensors",
            "tensorboardx",
            "google-cloud-mldiagnostics",
            "gcsfs",
            "pyarrow",
        ]
    ),
]
DEV = [
    *("pytest", "pytest-xdist", "pytest-timeout", "hypothesis"),
    *("ruff", "mypy", "import-linter", "types-PyYAML"),
    *("setuptools>=80", "uv"),  # what `make setup` and `make lock` work with
]


class BuildWithoutSetup(build_py):
    """The repository root is the package, so setup.py would land in the wheel; leave it out."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [m for m in modules if m[:2] != ("elastic_tpu", "setup")]


setup(
    name="elastic-tpu",
    version=VERSION,
    description="Your TPU slice dies; the training step doesn't: elastic MaxText training as reusable pipeline steps.",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=["elastic_tpu", *(f"elastic_tpu.{room}" for room in ROOMS)],
    package_dir={"elastic_tpu": "."},
    package_data={"": ["*.yaml", "*.html", "*.css"], "elastic_tpu": ["py.typed"]},
    cmdclass={"build_py": BuildWithoutSetup},
    install_requires=[
        *("pydantic>=2.10", "pyyaml", "typer", "rich", "tenacity", "google-cloud-storage>=3.0", "psutil"),
        *("jinja2>=3.1", "pygal>=3.1"),  # the report: both small and pure Python
    ],
    extras_require={
        "kfp": KFP,
        "airflow": AIRFLOW,
        "vertex": VERTEX,
        "gke": GKE,
        "trainer": TRAINER,
        "dev": DEV,
    },
    entry_points={"console_scripts": ["elastic-tpu=elastic_tpu.cli.main:main"]},
)
