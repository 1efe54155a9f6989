"""The run directory: how it is created, and opened.

A run is its directory; whoever has the URI has all there is. Opening one reads `spec.yaml`, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import BadInput, Exists, NotFound, Problem
from ..spec.run_spec import RunSpec, is_bucket
from ..store import records
from ..store.base import Store
from ..store.open import open_store
from . import paths
from .events import EventLog


def attempts_of(opened: Run, job: str) -> list[int]:
    """Numbers of a job's attempts so far, in order."""
    folder = paths.attempts(job) + "/"
    numbers = (entry.name.removeprefix(folder).partition("/")[0] for entry in opened.store.list(folder))
    return sorted({int(number) for number in numbers if number.isdigit()})


@dataclass(frozen=True)
class Run:
    """An opened run: its URI, its store and its resolved spec."""

    uri: str
    store: Store
    spec: RunSpec

    @property
    def run_id(self) -> str:
        """Short name (contracts.md 1)."""
        return self.spec.run_id

    @cached_property
    def spec_hash(self) -> str:
        """Hash of the resolved spec."""
        return self.spec.hash()

    def path(self, name: str) -> str:
        """The full URI of something below the run directory, for bulk data."""
        return f"{self.uri}/{name}"

    def read(self, name: str) -> dict[str, Any] | None:
        """A small JSON file of the run, or None if it is not there."""
        try:
            return records.load(self.store.read(name).data, self.path(name))
        except NotFound:
            return None


def open_run(uri: str) -> Run:
    """Open a run by its URI.

    Raises:
      BadInput: there is no run, or its spec is not readable.
    """
    import yaml

    store = open_store(uri.rstrip("/"))
    uri = store.uri  # absolute: other processes, with other working directories, get it from here
    try:
        data = store.read(paths.SPEC).data
    except NotFound:
        raise BadInput(
            f"{uri}: no run here ({paths.SPEC} is missing); give the run directory that `elastic-tpu run` printed"
        ) from None
    try:
        document = yaml.safe_load(data)
        if not isinstance(document, dict) or "schema" not in document:
            raise ValueError("not a run: elastic-tpu did not write this file; to start a run, give the spec's own path")
        records.check_schema(document.pop("schema", records.SCHEMA), f"{uri}/{paths.SPEC}")
        spec = RunSpec.model_validate(document)
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{uri}/{paths.SPEC}: not readable: {' '.join(str(error).split())}") from error
    return Run(uri, store, spec)


def create_run(spec: RunSpec) -> Run:
    """Write the resolved spec once; a run of the same spec is opened, another spec of that name is refused.

    Raises:
      BadInput: the name is taken by another spec; the fields that differ are listed.
    """
    import yaml

    store = open_store(spec.uri)
    # This leaves out fields that are not set; a null in `train.maxtext` or in a patch of the manifest stays.
    document = {"schema": records.SCHEMA, **spec.model_dump(mode="json", exclude_none=True)}
    _refuse_foreign(store)
    try:
        store.create(paths.SPEC, yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode())
    except Exists:
        there = open_run(spec.uri)
        if there.spec_hash != spec.hash():
            raise BadInput(
                [
                    Problem(
                        f"run.name ({path})", new, f"the run {spec.uri} was started with {old!r}; take another run.name"
                    )
                    for path, old, new in differences(there.spec, spec)
                ]
            ) from None
        return there
    created = Run(spec.uri, store, spec)
    EventLog(store, "run").write("run.created", spec_hash=created.spec_hash)
    return created


def _refuse_foreign(store: Store) -> None:
    """Checkpoints with no spec beside them are not ours: Orbax would take them for this run's own."""
    try:
        store.read(paths.SPEC)
    except NotFound:
        foreign = next((entry.name for entry in store.list("checkpoints/")), None)
        if foreign is not None:
            raise BadInput(
                f"{store.uri}: holds {foreign} but no {paths.SPEC}: "
                "checkpoints of something else; take another run.name"
            ) from None


def differences(old: RunSpec, new: RunSpec) -> list[tuple[str, object, object]]:
    """Fields in which two specs differ: (path, old value, new value)."""
    found: list[tuple[str, object, object]] = []

    def walk(path: str, a: Any, b: Any) -> None:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted({*a, *b}):
                walk(f"{path}.{key}" if path else key, a.get(key), b.get(key))
        elif a != b:
            found.append((path, a, b))

    walk("", old.model_dump(mode="json"), new.model_dump(mode="json"))
    return found


def local_folder(run: Run) -> str | None:
    """The run directory as a folder of this machine, or None for a bucket."""
    return None if is_bucket(run.uri) else run.uri
