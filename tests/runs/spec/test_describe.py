"""What explains a spec to people and editors: descriptions, docs/spec.md, the JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_tpu.runs.spec import describe, gke_spec, run_spec
from elastic_tpu.runs.spec.fields import Section
from elastic_tpu.runs.spec.schema import json_schema
from elastic_tpu.tests.tools.small import document, gke

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def sections(of: type[Section] = Section) -> Iterator[type[Section]]:
    for section in of.__subclasses__():
        yield section
        yield from sections(section)


FIELDS = [(section, name) for section in sections() for name in section.model_fields]
current = cache(describe.page)


def test_each_field_has_a_description() -> None:
    told = {f"{section.__name__}.{name}": section.model_fields[name].description or "" for section, name in FIELDS}
    assert len(told) > 70
    # Sentences, in a table: a bar would end its cell.
    assert {field: text for field, text in told.items() if not re.fullmatch(r"[A-Z`][^|]*\.", text)} == {}


def test_the_page_is_current() -> None:
    assert describe.PAGE.read_text(encoding="utf-8") == current(), "python -m elastic_tpu.runs.spec.describe"


def test_the_page_has_a_row_for_each_field_and_a_section_for_each_link() -> None:
    page = current()
    rows = re.findall(r"^\| `(\w+)` \| ", page, re.M)
    assert sorted(rows) == sorted(name for section, name in FIELDS)
    anchors = {describe._anchor(heading) for heading in re.findall(r"^## (.+)$", page, re.M)}
    assert set(re.findall(r"\(#(.*?)\)", page)) <= anchors


@pytest.mark.parametrize(
    "row",
    [
        "| `name` | text | required | Name of the run",
        "| `platform` | `local`, `gke` | required | ",
        "| `wait_for_slices` | duration such as 4h | `4h` | ",
        "| `recovery` | [mapping](#recovery) or `false` | see there | ",
        "| `count` | whole number, at least 1, at most 10000 | required | ",
        "| `gate` | list of texts | empty | ",
        "| `secrets` | mapping of names to [mappings](#secretsname) | empty | ",
        "| `faults` | list of [mappings](#localfaultsn) | empty | ",
        "| `down` | duration such as 4h or `forever` | `3s` | ",
        "| `memory` | number, above 0, at most 65536 | `32` | Memory in GiB",
        "| `namespace` | Kubernetes name | `default` | ",
        "| `min` | whole number, at least 1 | none | ",
    ],
)
def test_types_and_defaults_are_in_the_words_of_a_user(row: str) -> None:
    assert f"\n{row}" in current()


def test_a_stale_page_is_named_and_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs" / "spec.md"
    monkeypatch.setattr(describe, "PAGE", page)
    assert describe.main(["--check"]) == 1
    assert not page.exists()
    assert str(page) in capsys.readouterr().err
    assert describe.main([]) == 0
    assert describe.main(["--check"]) == 0
    page.write_text(page.read_text().replace("4h", "5h"))
    assert describe.main(["--check"]) == 1


@pytest.mark.parametrize("module", ["elastic_tpu.pipelines.describe", "elastic_tpu.runs.spec.describe"])
def test_lint_checks_the_generated_pages(module: str) -> None:
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\nformat:")[0]
    assert f"'python -m {module} --check'" in lint


# -- the JSON Schema ----------------------------------------------------------------------------------------------


def mistakes(spec: dict[str, Any]) -> list[str]:
    """Paths that an editor would underline."""
    found = list(pytest.importorskip("jsonschema").Draft202012Validator(json_schema()).iter_errors(spec))
    for error in found:
        found.extend(error.context)  # of each branch, where a field may be several things
    return [".".join(map(str, error.absolute_path)) for error in found]


def test_the_schema_is_one() -> None:
    pytest.importorskip("jsonschema").Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_editor_accepts_the_examples(path: Path) -> None:
    assert mistakes(yaml.safe_load(path.read_text())) == []


@pytest.mark.parametrize(
    "spec",
    [
        yaml.safe_load(describe.EXAMPLE),
        document(),
        gke(),
        document(recovery=False, export=False, evaluate=False, gke=None),
        document(run={"labels": {"team": "nlp", "example.com/cost": "42"}}, secrets={"A": {"env": "A"}}),
        document(local={"faults": [{"slice": 1, "after_step": 3, "down": "forever"}]}, profile="team"),
        *(document(limits={"total": total}) for total in ("4h", "20m", "250ms", "1.5d", " 3 s ", "20", 20, 0.5)),
        document(limits={"total": "1h30m", "queue": " 1d 12h "}, **{"x-anchors": {"any": ["thing"]}}),
    ],
)
def test_an_editor_accepts_what_a_user_may_write(spec: dict[str, Any]) -> None:
    assert mistakes(spec) == []


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (document(recovery={"wait_for_slices": "soon"}), "recovery.wait_for_slices"),
        (document(limits={"total": "4 hours"}), "limits.total"),
        (document(limits={"total": 0}), "limits.total"),
        (document(limits={"total": "1h30"}), "limits.total"),
        (document(limits={"total": ""}), "limits.total"),
        (document(limits={"x-a": 1}), "limits"),
        (document(limits={"totl": "4h"}), "limits"),
        (document(slices={"count": 0}), "slices.count"),
        (document(slices={"min": 0}), "slices.min"),
        (document(platform="gpc"), "platform"),
        (document(run={"name": "a b"}), "run.name"),
        (document(run={"labels": {"team": "no way"}}), "run.labels.team"),
        (document(train={"steps": "many"}), "train.steps"),
        (document(local={"faults": [{"slice": 1}]}), "local.faults.0"),
        (gke(gke={"namespace": "Training"}), "gke.namespace"),
        ({"platform": "local"}, ""),
    ],
)
def test_an_editor_underlines_a_mistake(spec: dict[str, Any], path: str) -> None:
    assert path in mistakes(spec)


def test_each_field_of_the_schema_explains_itself() -> None:
    schema = json_schema()
    for model in (schema, *schema["$defs"].values()):
        assert model["description"]
        assert [name for name, shape in model["properties"].items() if not shape.get("description")] == []


SMALLEST: list[Section] = [
    *(section() for section in (run_spec.Recovery, run_spec.Limits, run_spec.Export, run_spec.Evaluate)),
    *(section() for section in (run_spec.Secret, run_spec.Local, gke_spec.Gke, gke_spec.GkeJob, gke_spec.GkeJobs)),
    run_spec.Fault(slice=0, after_step=0),
    run_spec.Slices(count=1),
    run_spec.Checkpoint(every=1),
    run_spec.Data(train="x"),
    gke_spec.Pathways(tag="x"),
    run_spec.RunSpec.model_validate(document()),
]


@pytest.mark.parametrize("section", SMALLEST, ids=lambda section: type(section).__name__)
def test_defaults_of_the_schema_are_those_of_a_resolved_spec(section: Section) -> None:
    schema = json_schema()
    shapes = schema["$defs"].get(type(section).__name__, schema)["properties"]
    written = section.model_dump(mode="json")
    told = {name: shape["default"] for name, shape in shapes.items() if "default" in shape}
    assert told == {name: written[name] for name in told}
