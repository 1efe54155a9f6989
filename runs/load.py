"""From the YAML that a user wrote to a checked, resolved RunSpec: all problems at once, nothing created.

Three passes find problems: the shape (pydantic), the contradictions between fields, and what MaxText and the
hardware say. A field that fails one pass is replaced by a harmless value so that it hides no other problem.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from . import maxtext_config, plan
from .errors import BadInput, NotFound, Problem
from .spec import RunSpec, absolute, is_bucket
from .store import open_store

_TEMPLATES = ("{date}", "{datetime}", "{run}")

# A spec that is valid whatever platform: stand-ins for fields that failed, while the others are checked.
_HARMLESS: Mapping[str, Any] = {
    "run": {"name": "r", "output": "/nowhere"},
    "platform": "local",
    "slices": {"type": "sim-1x1", "count": 1},
    "model": {"name": "default", "tokenizer": "/nowhere"},
    "data": {"train": "/nowhere/x.parquet", "eval": "/nowhere/x.parquet"},
    "train": {"steps": 1},
    "checkpoint": {"every": 1},
}


def read_spec(source: str, environ: Mapping[str, str] = os.environ) -> RunSpec:
    """Read and check a spec (local path or bucket URI); local paths in it become absolute.

    Raises:
      BadInput: everything that is wrong with it.
    """
    document = _read_yaml(source)
    folder = Path.cwd() if is_bucket(source) else Path(source).expanduser().resolve().parent
    if "profile" in document:
        document = _under_profile(document, folder, environ)
    return check(_absolute_paths(document, folder))


def check(document: Mapping[str, Any]) -> RunSpec:
    """Validate a whole document.

    Raises:
      BadInput: every problem found, each with path, value and cure.
    """
    problems: list[Problem] = []
    failed: set[str] = set()
    patched = copy.deepcopy(dict(document))
    for _ in range(20):  # each pass repairs what the one before it found
        try:
            spec = RunSpec.model_validate(patched)
            break
        except ValidationError as error:
            for problem, location in _shape_problems(error):
                if problem.path not in failed:
                    problems.append(problem)
                failed.add(problem.path)
                _repair(patched, location)
    else:
        raise BadInput(problems)
    problems += [p for p in plan.contradictions(spec) if not any(_touches(p.path, f) for f in failed)]
    if problems:
        raise BadInput(problems)
    return spec


def expand_name(spec: RunSpec, orchestrator_run: str, now: datetime | None = None) -> RunSpec:
    """Expand `{date}`, `{datetime}` and `{run}` in the run's name."""
    now = now or datetime.now(UTC)
    slug = "".join(c if c.isalnum() or c in "-_." else "-" for c in orchestrator_run)
    name = (
        spec.run.name.replace("{datetime}", now.strftime("%Y%m%dT%H%M%S"))
        .replace("{date}", now.strftime("%Y%m%d"))
        .replace("{run}", slug)
    )
    if "{" in name or "}" in name:
        raise BadInput([Problem("run.name", spec.run.name, f"only {', '.join(_TEMPLATES)} may stand in braces")])
    return spec.model_copy(update={"run": spec.run.model_copy(update={"name": name})})


def has_template(spec: RunSpec) -> bool:
    """Whether the run's name is still to be expanded."""
    return "{" in spec.run.name


def _read_yaml(source: str) -> dict[str, Any]:
    import yaml

    try:
        if is_bucket(source):
            folder, _, name = source.rpartition("/")
            data = open_store(folder).read(name).data
        else:
            data = Path(source).expanduser().read_bytes()
    except (OSError, NotFound) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"{source}: cannot read this spec ({why}); give the path of a YAML file") from error
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"{source}: not readable as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise BadInput(f"{source}: a mapping of sections (run, platform, slices, ...) was expected")
    return document


def _under_profile(document: dict[str, Any], folder: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    name = document["profile"]
    folders = [Path(environ["ELASTIC_TPU_PROFILES"])] if environ.get("ELASTIC_TPU_PROFILES") else []
    folders += [folder / "profiles", folder]
    candidates = [place / f"{name}.yaml" for place in folders]
    for candidate in candidates:
        if isinstance(name, str) and candidate.is_file():
            profile = _read_yaml(str(candidate))
            profile.pop("profile", None)
            return _merge(_absolute_paths(profile, candidate.parent), document)
    tried = ", ".join(str(c) for c in candidates)
    raise BadInput([Problem("profile", name, f"no such profile; looked for {tried} (set ELASTIC_TPU_PROFILES)")])


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _absolute_paths(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    document = copy.deepcopy(document)
    for section, field in (("run", "output"), ("model", "tokenizer"), ("data", "train"), ("data", "eval")):
        part = document.get(section)
        if isinstance(part, dict) and isinstance(part.get(field), str) and part[field] not in plan.NOT_FILES:
            part[field] = absolute(part[field], folder)
    return document


def _shape_problems(error: ValidationError) -> list[tuple[Problem, tuple[Any, ...]]]:
    found = []
    for detail in error.errors(include_url=False):
        location = tuple(part for part in detail["loc"] if part not in ("Recovery", "Export", "Evaluate", "float"))
        location = tuple(part for part in location if not str(part).startswith(("function-", "literal[")))
        path = ".".join(str(part) for part in location) or "spec"
        value: object = detail["input"]
        kind, message = detail["type"], detail["msg"]
        if kind == "missing":
            found.append((Problem(path, None, "is required"), location))
            continue
        if kind == "literal_error" and detail["ctx"].get("expected") == "False":
            continue  # the other branch of `section: false` says what is wrong
        if kind == "extra_forbidden":
            known = _fields_at(location[:-1])
            message = f"is not a field here{maxtext_config.nearest(str(location[-1]), known)}"
        elif kind.startswith(("greater_than", "less_than")):
            message = message.replace("Input should be greater than or equal to", "must be at least").replace(
                "Input should be less than or equal to", "must be at most"
            )
        else:
            message = message.removeprefix("Value error, ").replace("Input should be", "must be")
        if isinstance(value, (dict, list)):
            value = None
        found.append((Problem(path, value, message), location))
    return found


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    model: Any = RunSpec
    for part in location:
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            return []
        annotation = field.annotation
        options = getattr(annotation, "__args__", (annotation,))
        model = next((o for o in options if hasattr(o, "model_fields")), None)
    return list(getattr(model, "model_fields", {}))


def _repair(document: dict[str, Any], location: tuple[Any, ...]) -> None:
    """Put a harmless value where validation failed: the stand-in's if it has one, else nothing."""
    stand_in: Any = _HARMLESS
    for part in location:
        stand_in = stand_in.get(part) if isinstance(stand_in, dict | Mapping) else None
    target: Any = document
    for part in location[:-1]:
        if isinstance(target, dict):
            target = target.setdefault(part, {})
        elif isinstance(target, list) and isinstance(part, int) and part < len(target):
            target = target[part]
        else:
            return
    last = location[-1] if location else None
    if isinstance(target, dict):
        if stand_in is None:
            target.pop(last, None)
        else:
            target[last] = copy.deepcopy(stand_in)
    elif isinstance(target, list) and isinstance(last, int) and last < len(target):
        del target[last]


def _touches(path: str, failed: str) -> bool:
    return path == failed or path.startswith(f"{failed}.") or failed.startswith(f"{path}.")
