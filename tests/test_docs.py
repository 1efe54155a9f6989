"""The documents name what is there: links, paths, functions, exit codes, event kinds, sections that the code cites."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.record.events import KINDS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PACKAGE = [
    path
    for room in sorted(path.parent for path in ROOT.glob("*/__init__.py"))
    if room.name not in {"tests", "benchmarks"}
    for path in sorted(room.rglob("*.py"))
]
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))}
FOLDERS -= {"build", "runs-demo"}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?P<path>[\w.*<>/-]+?)(?::(?P<name>[A-Za-z_][\w.]*))?")


def text_of(document: Path) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors_of(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text_of(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


@cache
def names_in(module: Path) -> set[str]:
    """Dotted names that a module or its classes define: functions, classes, and what is assigned."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))

    return set(walk(tree_of(module).body, ""))


def repository_paths(document: Path) -> Iterator[tuple[str, str | None]]:
    """Paths in backticks whose first folder is one of this repository's, `path:name` with the name apart."""
    for token in CODE.findall(text_of(document)):
        match = PATH.fullmatch(token)
        if match and "/" in token and match["path"].partition("/")[0] in FOLDERS:
            yield match["path"], match["name"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    wrong = []
    for target in LINK.findall(text_of(document)):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        there = document if not path else document.parent / path
        if not there.exists() or (anchor and anchor not in anchors_of(there)):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_and_names_exist(document: Path) -> None:
    wrong = []
    for path, name in repository_paths(document):
        found = list(ROOT.glob(re.sub(r"<[^>]*>", "*", path).rstrip("/")))
        if not found or (name is not None and not any(name in names_in(file) for file in found)):
            wrong.append(path if name is None else f"{path}:{name}")
    assert wrong == []


def rows(document: str, title: str) -> list[str]:
    """First cells of the tables below a heading."""
    section = text_of(ROOT / "docs" / document).partition(f"\n## {title}")[2].partition("\n## ")[0]
    return [cell.strip() for cell in re.findall(r"^\|([^|]+)\|", section, flags=re.MULTILINE)]


def test_messages_are_the_codes_own() -> None:
    """Every message in troubleshooting.md, `...` standing for what differs, is in a text of the package."""
    nodes = (node for path in PACKAGE for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant))
    said = "\n".join(node.value for node in nodes if isinstance(node.value, str))
    messages = CODE.findall("\n".join(rows("troubleshooting.md", "By message")))
    assert len(messages) > 30
    assert [m for m in messages if not all(part.strip() in said for part in m.split("..."))] == []


def test_every_exit_code_is_explained() -> None:
    codes = {str(int(code)) for code in ExitCode}
    assert codes <= set(rows("troubleshooting.md", "By exit code"))
    assert codes <= set(rows("contracts.md", "8."))


WRITERS = {"write", "event", "_tell"}


def kinds_written() -> set[str]:
    """Event kinds in the package's calls: `write("slice.ready", ...)`, `_tell(on_event, "claim.done", ...)`."""
    found = set()
    for path in PACKAGE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in WRITERS:
                found |= {a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return {text for text in found if re.fullmatch(r"[a-z]+\.[a-z_]+", text)}


def test_every_event_kind_is_described() -> None:
    described = {row.strip("`") for row in rows("contracts.md", "9.") if "." in row}
    assert described == KINDS
    assert "checkpoint.saved" in kinds_written() <= described


CITATION = re.compile(r"(?:docs/)?contracts\.md \d+(?:(?:, | and )\d+)*")


def test_the_code_cites_sections_that_are_there() -> None:
    sections = set(re.findall(r"^## (\d+)\.", text_of(ROOT / "docs" / "contracts.md"), flags=re.MULTILINE))
    citations = [
        (path, cited)
        for path in [*PACKAGE, *sorted((ROOT / "tests").rglob("*.py"))]
        for cited in CITATION.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(citations) > 20
    assert [c for c in citations if not c[1].startswith("docs/") or not set(re.findall(r"\d+", c[1])) <= sections] == []
