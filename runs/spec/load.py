"""From the YAML that a user wrote to a checked, resolved RunSpec: all problems at once, nothing created.

First the shape (pydantic, in the words of spec_problems.py), then the contradictions between fields and with what
MaxText and the hardware say. A field of a wrong shape is replaced by a harmless value, so that it hides nothing else.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import BadInput, NotFound, Problem
from ..store.open import open_store
from . import input_files, maxtext_config
from . import problems as spec_problems
from .plan import NOT_FILES
from .rules import contradictions
from .run_spec import LONGEST_NAME, NAME_TEMPLATES, RunSpec, absolute, is_bucket

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


def read_spec(source: str, environ: Mapping[str, str] = os.environ, *, with_inputs: bool = True) -> RunSpec:
    """Read and check a spec (local path or bucket URI); local paths in it become absolute.

    Args:
      with_inputs: whether the files that it names must be there; a release needs none of them.

    Raises:
      BadInput: everything that is wrong with it.
    """
    document = _read_yaml(source)
    folder = Path.cwd() if is_bucket(source) else Path(source).expanduser().resolve().parent
    if "profile" in document:
        document = _under_profile(document, folder, environ)
    document = _absolute_paths(document, folder)
    missing = input_files.problems(document) if with_inputs else []
    try:
        spec = check(document)
    except BadInput as error:
        told = {problem.path for problem in error.problems}
        raise BadInput([*error.problems, *(p for p in missing if p.path not in told)]) from None
    if missing:
        raise BadInput(missing)
    return spec


def check(document: Mapping[str, Any]) -> RunSpec:
    """Validate a whole document.

    Raises:
      BadInput: every problem found, each with path, value and cure.
    """
    problems: dict[str, Problem] = {}
    stand_ins: set[str] = set()
    meant: set[str] = set()
    patched = _normalised(copy.deepcopy(dict(document)))
    for _ in range(20):  # each pass repairs what the one before it found
        try:
            spec = RunSpec.model_validate(patched)
            break
        except ValidationError as error:
            told = spec_problems.of(error)
            meant.update(path for problem in told for path in problem.meant)
            for problem in told:
                if problem.kind != "missing" or problem.path not in meant:
                    problems.setdefault(problem.path, problem.problem)
                if problem.kind != "unknown":
                    stand_ins.add(problem.path)
                _repair(patched, problem.location)
    else:
        raise BadInput(list(problems.values()))
    found = [*problems.values(), *contradictions(spec, stand_ins | meant)]
    if found:
        raise BadInput(found)
    return spec


def expand_name(spec: RunSpec, orchestrator_run: str, now: datetime | None = None) -> RunSpec:
    """Expand `{date}`, `{datetime}` and `{run}` in the run's name."""
    now = now or datetime.now(UTC)
    name = spec.run.name.replace("{datetime}", now.strftime("%Y%m%dT%H%M%S")).replace("{date}", now.strftime("%Y%m%d"))
    name = name.replace("{run}", _slug(orchestrator_run, LONGEST_NAME - len(name.replace("{run}", ""))))
    if "{" in name or "}" in name:
        raise BadInput([Problem("run.name", spec.run.name, f"only {', '.join(NAME_TEMPLATES)} may stand in braces")])
    if len(name) > LONGEST_NAME:
        raise BadInput([Problem("run.name", name, f"must be at most {LONGEST_NAME} characters once it is expanded")])
    return spec.model_copy(update={"run": spec.run.model_copy(update={"name": name})})


def _slug(text: str, room: int) -> str:
    """An orchestrator's run as part of a name; one that is too long keeps a hash, so that it stays its own."""
    slug = re.sub(r"[^A-Za-z0-9._-]", "-", text).strip("-_.") or "run"
    if len(slug) <= room:
        return slug
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{slug[: max(0, room - 9)]}-{digest}".strip("-_.")


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
    except (OSError, NotFound, ValueError, RuntimeError) as error:  # the last two: no path at all, no such user
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"{source}: cannot read this spec ({why}); give the path of a YAML file") from error
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # PyYAML raises its own errors for syntax, and whatever comes for a value that its tag does not fit.
        raise BadInput(f"{source}: not readable as YAML: {' '.join(str(error).split())}") from error
    if document is None:
        raise BadInput(f"{source}: is empty; write the sections of a run spec (run, platform, slices, ...)")
    if not isinstance(document, dict):
        what = "a list" if isinstance(document, list) else f"only {str(document)[:40]!r}"
        raise BadInput(f"{source}: holds {what}; a mapping of sections (run, platform, slices, ...) was expected")
    return document


def _under_profile(document: dict[str, Any], folder: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    name = document["profile"]
    folders = [Path(environ["ELASTIC_TPU_PROFILES"])] if environ.get("ELASTIC_TPU_PROFILES") else []
    folders += [folder / "profiles", folder]
    candidates = [place / f"{name}.yaml" for place in folders]
    for candidate in candidates:
        if isinstance(name, str) and _is_file(candidate):
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


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for this filesystem
        return False


def _absolute_paths(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    document = copy.deepcopy(document)
    for section, field in (("run", "output"), ("model", "tokenizer"), ("data", "train"), ("data", "eval")):
        part = document.get(section)
        if isinstance(part, dict) and isinstance(part.get(field), str) and part[field].strip() not in ("", *NOT_FILES):
            try:
                part[field] = absolute(part[field].strip(), folder)
            except (ValueError, RuntimeError, OSError) as error:
                cure = f"is not a path of this machine ({error}); give a path or gs://bucket/..."
                raise BadInput([Problem(f"{section}.{field}", part[field], cure)]) from error
    return document


def _normalised(document: dict[str, Any]) -> dict[str, Any]:
    train = document.get("train")
    if isinstance(train, dict) and isinstance(train.get("maxtext"), dict):
        train["maxtext"] = maxtext_config.normalised(train["maxtext"])
    return document


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
