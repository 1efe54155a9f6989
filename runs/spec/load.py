"""From the YAML that a user wrote to a checked, resolved RunSpec: every problem at once, nothing created.

The file (yaml_file.py), merged over its profile, with absolute paths (local_paths.py). Then each field by itself
(pydantic; problems.py puts its errors into words), what fields mean together and what MaxText and the hardware know of
(rules.py), and whether local input files exist (input_files.py). A wrong field is replaced by a valid stand-in, so that
it hides no other problem.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import BadInput, Problem
from . import input_files, local_paths, maxtext_config, problems
from .local_paths import Layer
from .rules import contradictions
from .run_spec import LONGEST_NAME, NAME_TEMPLATES, SPEC_SUFFIXES, RunSpec, is_bucket

# Stand-ins for required fields that failed, while the others are checked; valid together.
_STAND_INS: Mapping[str, Any] = {
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
      with_inputs: whether the local files that it names must exist; a release needs none of them.

    Raises:
      BadInput: every problem found.
    """
    layers = [_read_layer(source)]
    document = layers[0].document
    if "profile" in document:
        layers.append(_profile(document["profile"], layers[0].folder, environ))
        document = _merge(layers[1].document, document)
    resolved, of_paths = local_paths.resolve(document, layers, environ)
    of_paths += _allowed_by_others(layers, environ)
    missing: list[Problem] = []
    if with_inputs:
        of_paths += local_paths.repositories(document, layers)
        missing = input_files.problems(resolved)
    try:
        spec, found = check(resolved), []
        found += input_files.machine_problems(spec) if with_inputs else []
    except BadInput as error:
        found = _others(error.problems, of_paths)
    found += of_paths
    found += _others(missing, found)
    if found:
        raise BadInput(found)
    return spec


def _others(found: Sequence[Problem], known: Sequence[Problem]) -> list[Problem]:
    """Those of fields that have no known problem."""
    fields = {problem.path for problem in known}
    return [problem for problem in found if problem.path not in fields]


def check(document: Mapping[str, Any]) -> RunSpec:
    """Validate a whole document.

    Raises:
      BadInput: every problem found, each with path, value and cure.
    """
    found: dict[str, Problem] = {}
    stand_ins: set[str] = set()
    meant: set[str] = set()
    patched = _normalised(copy.deepcopy(dict(document)))
    for _ in range(20):  # a repaired section may show problems that could not be seen before
        try:
            spec = RunSpec.model_validate(patched)
            break
        except ValidationError as error:
            told = problems.of(error)
            meant.update(path for problem in told for path in problem.meant)
            for problem in told:
                if problem.kind != "missing" or problem.path not in meant:
                    found.setdefault(problem.path, problem.problem)
                if problem.kind != "unknown":
                    stand_ins.add(problem.path)
                _repair(patched, problem.location)
    else:
        raise BadInput(list(found.values()))
    if together := [*found.values(), *contradictions(spec, stand_ins | meant)]:
        raise BadInput(together)
    return spec


def expand_name(spec: RunSpec, orchestrator_run: str, when: datetime | None = None) -> RunSpec:
    """Expand `{date}`, `{datetime}` and `{run}` in the run's name.

    Args:
      orchestrator_run: what `{run}` becomes, as far as it fits.
      when: what `{date}` and `{datetime}` become, in UTC: the logical date of an orchestrator's run that has one; by
        default the present.

    Raises:
      BadInput: other braces, or a name that is too long.
    """
    when = (when or datetime.now(UTC)).astimezone(UTC)
    name = spec.run.name.replace("{datetime}", when.strftime("%Y%m%dT%H%M%S"))
    name = name.replace("{date}", when.strftime("%Y%m%d"))
    name = name.replace("{run}", _slug(orchestrator_run, LONGEST_NAME - len(name.replace("{run}", ""))))
    if "{" in name or "}" in name:
        raise BadInput([Problem("run.name", spec.run.name, f"only {', '.join(NAME_TEMPLATES)} may stand in braces")])
    if len(name) > LONGEST_NAME:
        raise BadInput([Problem("run.name", name, f"must be at most {LONGEST_NAME} characters once it is expanded")])
    return spec.model_copy(update={"run": spec.run.model_copy(update={"name": name})})


def _slug(text: str, room: int) -> str:
    """An orchestrator's run as part of a name of at most `room` characters; a cut one ends in a hash of the whole."""
    slug = re.sub(r"[^A-Za-z0-9._-]", "-", text).strip("-_.") or "run"
    if len(slug) <= room:
        return slug
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{slug[: max(0, room - 9)]}-{digest}".strip("-_.")


def has_template(spec: RunSpec) -> bool:
    """Whether the run's name is still to be expanded."""
    return "{" in spec.run.name


def _read_layer(source: str) -> Layer:
    """A spec or profile, without the keys that begin with `x-`: they hold anchors."""
    from . import yaml_file  # here: most importers of this module read no file

    document = yaml_file.parse(yaml_file.read_file(source), source)
    fields = {key: value for key, value in document.items() if not str(key).startswith("x-")}
    return Layer(fields, Path.cwd() if is_bucket(source) else Path(source).expanduser().resolve().parent)


def _profile(name: object, folder: Path, environ: Mapping[str, str]) -> Layer:
    folders = [Path(environ["ELASTIC_TPU_PROFILES"])] if environ.get("ELASTIC_TPU_PROFILES") else []
    folders += [folder / "profiles", folder]
    candidates = [place / f"{name}{suffix}" for place in folders for suffix in SPEC_SUFFIXES]
    for candidate in candidates:
        if isinstance(name, str) and _is_file(candidate):
            return _read_layer(str(candidate))
    tried = ", ".join(f"{place / str(name)[:80]}.yaml" for place in folders)
    cure = (
        f"no such profile; looked for {tried} (or .yml); correct the name, or name the folder in $ELASTIC_TPU_PROFILES"
    )
    raise BadInput([Problem("profile", name, cure)])


def _allowed_by_others(layers: Sequence[Layer], environ: Mapping[str, str]) -> list[Problem]:
    """`gke.allow` where it does not count: who writes a spec, or a profile beside it, does not allow it rights."""
    folder = environ.get("ELASTIC_TPU_PROFILES")
    teams = Path(folder).expanduser().resolve() if folder else None
    cure = "is the platform team's to say: put it into a profile in the folder that $ELASTIC_TPU_PROFILES names"
    for place, layer in enumerate(layers):
        gke = layer.document.get("gke")
        if isinstance(gke, dict) and gke.get("allow") and (place == 0 or layer.folder != teams):
            return [Problem("gke.allow", gke["allow"], cure)]
    return []


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


def _normalised(document: dict[str, Any]) -> dict[str, Any]:
    train = document.get("train")
    if isinstance(train, dict) and isinstance(train.get("maxtext"), dict):
        train["maxtext"] = maxtext_config.normalised(train["maxtext"])
    return document


def _repair(document: dict[str, Any], location: tuple[Any, ...]) -> None:
    """Put a stand-in where validation failed; where there is none, remove the value, or the list that it is in."""
    stand_in: Any = _STAND_INS
    for part in location:
        stand_in = stand_in.get(part) if isinstance(stand_in, Mapping) else None
    target: Any = document
    for part in location[:-1]:
        inner = target.get(part) if stand_in is None else target.setdefault(part, {})
        if isinstance(inner, list):
            del target[part]  # not one item: the others would change their numbers
        if not isinstance(inner, dict):
            return
        target = inner
    if not location:
        return
    if stand_in is None:
        target.pop(location[-1], None)
    else:
        target[location[-1]] = copy.deepcopy(stand_in)
