"""Write docs/spec.md, the reference of a spec, from the docstrings and descriptions of its models.

    python -m elastic_tpu.runs.spec.describe            write it
    python -m elastic_tpu.runs.spec.describe --check    name a stale page, and fail

The example on the page is checked, and the errors are those of a real check, whenever the page is made.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import BadInput
from .load import check
from .maxtext_config import OWNED
from .schema import json_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec.md"

EXAMPLE = """\
run: {name: "demo-{datetime}", output: ../runs-demo}
platform: local
slices: {type: sim-1x2, count: 3}
model: {name: qwen3-0.6b, tokenizer: ../runs-demo/data/tokenizer}
data: {train: ../runs-demo/data/train.parquet, eval: ../runs-demo/data/valid.parquet}
train: {steps: 120}
checkpoint: {every: 20}
"""

WRONG = """\
run: {name: "demo {datetime}", output: ../runs-demo}
platform: local
slices: {type: sim-1x2, count: 0}
model: {name: qwen3-0.6b, tokenizer: ../runs-demo/data/tokenizer}
data: {train: ../runs-demo/data/train.jsonl, eval: ../runs-demo/data/valid.parquet}
train: {steps: 120}
checkpoint: {evry: 20}
recovery: {wait_for_slices: 4 hours}
"""

_PREAMBLE = """\
# The run spec

<!-- Written by `python -m elastic_tpu.runs.spec.describe`; change the models in runs/spec/ instead. -->

One YAML file describes a run for every orchestrator. The shortest one, with simulated slices on this machine:

```yaml
{example}```

Whole ones: [examples/local.yaml](../examples/local.yaml) and [examples/gke.yaml](../examples/gke.yaml).
`elastic-tpu plan SPEC` checks a spec and shows what follows from it; nothing is created. An editor completes and checks
the fields with the JSON Schema that `elastic-tpu schema` prints: save it as `spec.schema.json`, and begin the spec with
`# yaml-language-server: $schema=spec.schema.json`.

## Errors

Everything that is wrong with a spec is said at once: field, value, cure. The exit code is 64, and nothing was created.

```
{errors}
```

## What holds for all fields

- A field that is not listed here is refused, and so is a key that stands twice. Where the default is none, `null` is
  the same as leaving the field out. Keys at the top that begin with `x-` are ignored: they may hold anchors.
- Values are read by the rules of YAML 1.2: `010` is 10, and `1:30`, `yes`, `no`, `on` and `off` are text. A file has at
  most 1 MiB and 10,000 values; an alias counts as what it stands for.
- A duration is a number and a unit, `ms`, `s`, `m`, `h` or `d` (`1.5h`), several of them (`1h30m`), or a number of
  seconds; from 1ms to 36500d.
- Sizes are in GiB.
- A local path is relative to the folder of the file that it stands in, the spec or its profile. `~`, `$NAME` and
  `${NAME}` are expanded in local paths; in the URI of a bucket, which other machines read too, they are refused.
- A credential is refused wherever it stands: name it under `secrets`.
- The resolved spec is `spec.yaml` in the run directory. It never changes: another spec needs another `run.name`.
"""

_OWNED = """\
## MaxText keys that the product sets

They are refused in `train.maxtext`. Use the field that stands beside them.

| Field | MaxText keys |
| --- | --- |
"""


def page() -> str:
    """What docs/spec.md should be."""
    schema = json_schema()
    sections = _sections(schema)
    check(yaml.safe_load(EXAMPLE))
    parts = [_PREAMBLE.replace("{example}", EXAMPLE).replace("{errors}", _errors())]
    parts.append(_section("Sections", schema, sections))
    for name, paths in sections.items():
        parts.append(_section(_heading(paths), schema["$defs"][name], sections))
    return "\n".join([*parts, _OWNED + _owned()])


def _errors() -> str:
    try:
        check(yaml.safe_load(WRONG))
    except BadInput as error:
        return "\n  ".join([f"error: {len(error.problems)} problems", *map(str, error.problems)])
    raise AssertionError("the wrong example is right")


def _owned() -> str:
    fields: dict[str, list[str]] = {}
    for key, field in OWNED.items():
        fields.setdefault(field, []).append(f"`{key}`")
    return "".join(f"| {field} | {', '.join(keys)} |\n" for field, keys in fields.items())


def _sections(schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """Each model, by its name in the schema, with the paths where it stands in a spec; in the order of a spec."""
    found: dict[str, list[str]] = {}

    def walk(model: Mapping[str, Any], at: str) -> None:
        for field, shape in model["properties"].items():
            for name, item in _references(shape):
                path = f"{at}{field}{item}"
                found.setdefault(name, []).append(path)
                walk(schema["$defs"][name], f"{path}.")

    walk(schema, "")
    return found


def _references(shape: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Models that a field may hold, and what its path has in addition when it holds many."""
    if "$ref" in shape:
        yield shape["$ref"].rpartition("/")[2], ""
    for branch in shape.get("anyOf", ()):
        yield from _references(branch)
    for key, item in (("items", ".<N>"), ("additionalProperties", ".<NAME>")):
        if isinstance(shape.get(key), Mapping):
            yield from ((name, item) for name, _ in _references(shape[key]))


def _heading(paths: Sequence[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def _anchor(heading: str) -> str:
    """The anchor that GitHub and most others make of a heading."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def _section(heading: str, model: Mapping[str, Any], sections: Mapping[str, list[str]]) -> str:
    lines = [f"## {heading}", "", model["description"], "", "| Field | Type | Default | What it is |"]
    lines.append("| --- | --- | --- | --- |")
    for field, shape in model["properties"].items():
        default = "required" if field in model.get("required", ()) else _default(shape)
        what = " ".join(shape["description"].split())
        lines.append(f"| `{field}` | {_words(shape, sections)} | {default} | {what} |")
    return "\n".join([*lines, ""])


def _default(shape: Mapping[str, Any]) -> str:
    if "default" not in shape:
        return "empty"  # a list or a mapping
    default = shape["default"]
    if isinstance(default, Mapping):
        return "see there"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return "none" if default is None else f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _words(shape: Mapping[str, Any], sections: Mapping[str, list[str]], many: str = "") -> str:
    """The type of a field in a user's words.

    Args:
      many: ``s`` where several such values are meant.
    """
    if "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        return f"[mapping{many}](#{_anchor(_heading(sections[name]))})"
    if "title" in shape:
        return str(shape["title"])
    if "anyOf" in shape:
        return " or ".join(_words(branch, sections) for branch in shape["anyOf"] if branch.get("type") != "null")
    if "const" in shape or "enum" in shape:
        values = shape.get("enum") or [shape["const"]]
        return ", ".join(f"`{value if isinstance(value, str) else json.dumps(value)}`" for value in values)
    if shape["type"] == "array":
        return f"list of {_words(shape['items'], sections, 's')}"
    if shape["type"] == "object":
        inner = [*shape.get("patternProperties", {}).values(), shape.get("additionalProperties")]
        values = [_words(item, sections, "s") for item in inner if isinstance(item, Mapping)]
        return f"mapping of names to {values[0]}" if values else "mapping"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    return words[shape["type"]] + many + _bounds(shape)


def _bounds(shape: Mapping[str, Any]) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    # 2**63 - 1 only says that a number has 64 bits.
    return "".join(f", {word} {shape[key]}" for key, word in words.items() if shape.get(key, 2**63) < 2**63 - 1)


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    text = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in arguments:
        sys.stderr.write(f"{PAGE} is stale; write it with python -m elastic_tpu.runs.spec.describe\n")
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
