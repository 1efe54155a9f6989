"""Write the README of each component from its docstring, its interface and its metadata.yaml.

    python -m elastic_tpu.pipelines.describe            write them
    python -m elastic_tpu.pipelines.describe --check    name those that are stale, and fail

The interface is described in component.py only, the side effects in metadata.yaml only.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docstring_parser
import yaml

COMPONENTS = Path(__file__).resolve().parents[1] / "components"
NAMES = ("provision_slices", "train_elastic", "release_slices", "export_checkpoint", "evaluate_checkpoint")


def component(name: str) -> Any:
    """The KFP component of a folder."""
    return getattr(importlib.import_module(f"..components.{name}.component", __package__), name)


def metadata(name: str) -> Mapping[str, Any]:
    """The content of the folder's metadata.yaml."""
    loaded: Mapping[str, Any] = yaml.safe_load((COMPONENTS / name / "metadata.yaml").read_text(encoding="utf-8"))
    return loaded


def readme(name: str) -> str:
    """The README that the folder should have."""
    made, about = component(name), metadata(name)
    spec = made.component_spec
    said = {entry.arg_name: entry.description for entry in docstring_parser.parse(made.python_func.__doc__).params}
    inputs = {key: (_type(value.type), said[key]) for key, value in spec.inputs.items()}
    outputs = {key: (_type(value.type), said[key]) for key, value in (spec.outputs or {}).items()}
    lines = [
        f"# {name}",
        "",
        spec.description.strip(),
        "",
        "<!-- Written by `python -m elastic_tpu.pipelines.describe`; change component.py or metadata.yaml instead. -->",
        "",
        *_table("Input", inputs),
        *_table("Output", outputs),
        "## In a pipeline",
        "",
        "```python",
        f"from elastic_tpu.components.kfp import {name}",
        "",
        f"task = {name}(run=run, holder=dsl.PIPELINE_JOB_ID_PLACEHOLDER).set_caching_options(False)",
        "```",
        "",
        "The whole pipeline: `pipelines/train_export_evaluate.py`. In Airflow: "
        f"`from elastic_tpu.components.airflow import {_operator(name)}`.",
        "",
        "## Behaviour",
        "",
        *(f"- {title}: {about[key]}" for key, title in _BEHAVIOUR.items()),
        "- Where that is said: in the last line of the step's log, with exit code, reason, run and report. KFP shows "
        "no exit code of a step",
        "",
        f"Runs from {', '.join(about['targets'])}, on the platforms {' and '.join(about['platforms'])}; "
        f"stability: {about['stability']}. "
        f"Needs Kubeflow Pipelines {about['dependencies']['kubeflow_pipelines']} there.",
        "",
    ]
    return "\n".join(lines)


def _operator(name: str) -> str:
    """Name of the step's operator in Airflow."""
    return "".join(word.capitalize() for word in name.split("_")) + "Operator"


_TYPES = {"String": "str", "Boolean": "bool"}  # KFP's types as Python's
_BEHAVIOUR = {
    "comes_after": "Comes after",
    "side_effects": "Side effects",
    "idempotency": "Called again",
    "cancel": "Told to end",
    "failure": "When it fails",
}


def _type(kfp_type: str) -> str:
    """A parameter's type as Python's, an artifact's without its version."""
    return _TYPES.get(kfp_type) or kfp_type.partition("@")[0]


def _table(title: str, rows: Mapping[str, tuple[str, str | None]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| `{key}` | `{kind}` | {' '.join((text or '').split())} |" for key, (kind, text) in rows.items()]
    return [f"| {title} | Type | What |", "| --- | --- | --- |", *lines, ""]


def main(arguments: list[str]) -> int:
    """The command; returns its exit code."""
    stale = 0
    for name in NAMES:
        path, text = COMPONENTS / name / "README.md", readme(name)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if "--check" in arguments:
            sys.stderr.write(f"{path} is stale; write it with python -m elastic_tpu.pipelines.describe\n")
        else:
            path.write_text(text, encoding="utf-8")
    return int(stale > 0 and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
