"""The run directory: how it is created, and opened.

The directory holds all of a run: any process that has its URI can go on with it. Opening a run reads only `spec.yaml`.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import BadInput, Exists, NotFound, Problem
from ..spec.run_spec import RunSpec, is_bucket
from ..store import records
from ..store.base import Store
from ..store.open import open_store
from . import paths
from .events import EventLog, parse

_MOVED = "run.moved"


def attempts_of(opened: Run, job: str) -> list[int]:
    """Numbers of a job's attempts (process starts) so far, in order."""
    folder = paths.attempts(job) + "/"
    numbers = (entry.name.removeprefix(folder).partition("/")[0] for entry in opened.store.list(folder))
    return sorted({int(number) for number in numbers if number.isdigit()})


@dataclass(frozen=True)
class Run:
    """An opened run.

    Attributes:
      uri: of the directory that was opened.
      spec: as spec.yaml has it, except that `run` names this directory: nothing is read or written where a copied or
        moved directory came from.
      copied_from: URI of the directory in which the run was created, if that is not this one.
      own: this user wrote the spec: it was given to this process, or the file on this machine belongs to the user. Of a
        directory of others, or in a bucket, nobody can tell who wrote it.
    """

    uri: str
    store: Store
    spec: RunSpec
    copied_from: str = ""
    own: bool = False

    @property
    def run_id(self) -> str:
        """Short name (docs/contracts.md 1)."""
        return self.spec.run_id

    @cached_property
    def spec_hash(self) -> str:
        """Hash of the resolved spec, as it was written."""
        return self.spec.hash()

    def path(self, name: str) -> str:
        """The full URI of something below the run directory, for bulk data."""
        return f"{self.uri}/{name}"

    def read(self, name: str) -> dict[str, Any] | None:
        """A small JSON file of the run, or None if it is not there.

        Raises:
          BadInput: it is not a JSON object, or a newer version wrote it.
        """
        try:
            return records.load(self.store.read(name).data, self.path(name))
        except NotFound:
            return None


def open_run(uri: str) -> Run:
    """Open a run by its URI.

    Raises:
      BadInput: there is no run, or its spec is not readable.
    """
    from ..spec import yaml_file

    store = open_store(uri.rstrip("/"))
    uri = store.uri  # absolute, because it is handed to processes with other working directories
    try:
        data = store.read(paths.SPEC).data
    except NotFound:
        raise BadInput(
            f"{uri}: no run here ({paths.SPEC} is missing); give the run directory that `elastic-tpu run` printed"
        ) from None
    try:
        document = yaml_file.parse_stored(data, f"{uri}/{paths.SPEC}")
        if not isinstance(document, dict) or "schema" not in document:
            raise ValueError("not a run: elastic-tpu did not write this file; to start a run, give the spec's own path")
        records.check_schema(document.pop("schema", records.SCHEMA), f"{uri}/{paths.SPEC}")
        spec = RunSpec.model_validate(document)
        own = _belongs_to_this_user(uri)
        if _is_same_place(uri, spec.uri):
            return Run(uri, store, spec, own=own)
        # Resolved, so that the run's id does not depend on the symbolic links by which its directory was reached.
        here = uri if is_bucket(uri) else str(Path(uri).resolve())
        return Run(uri, store, spec.moved(here), copied_from=spec.uri, own=own)
    except ValueError as error:
        raise BadInput(f"{uri}/{paths.SPEC}: not readable: {' '.join(str(error).split())}") from error


def _belongs_to_this_user(uri: str) -> bool:
    try:
        return not is_bucket(uri) and Path(uri, paths.SPEC).lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _is_same_place(uri: str, other: str) -> bool:
    if uri == other or is_bucket(uri) or is_bucket(other):
        return uri == other
    try:
        return Path(uri).samefile(other)
    except OSError:
        return False


def open_for_work(uri: str, moved: bool = False) -> Run:
    """Open a run to go on with it, where it was started, with the spec that it was started with.

    Args:
      moved: a person says that the directory was moved here for good. It is recorded, so that every later opening of
        this place goes on with it too.

    Raises:
      BadInput: of `open_run`; it is a copy; or spec.yaml was changed since: the fields are listed, or both hashes.
    """
    opened = open_run(uri)
    if opened.copied_from:
        _require_moved(opened, moved)
    created = _newest(opened.store, "run.created")
    started = created.get("spec_hash")
    if not isinstance(started, str) or started == opened.spec_hash:
        return opened
    cure = f"put {paths.SPEC} back as it was, or start the changed spec under another run.name"
    try:
        before = RunSpec.model_validate(created["spec"]).moved(opened.spec.uri)
    except (KeyError, ValueError):  # an older version recorded the hash only
        raise BadInput(
            f"{opened.path(paths.SPEC)} was changed after the run was started (its hash is {opened.spec_hash}, the "
            f"run's is {started}); {cure}"
        ) from None
    changed = differences(before, opened.spec)
    if not changed:  # both mean the same to this version: another version computed the hash
        return opened
    raise BadInput(
        [
            Problem(f"{opened.path(paths.SPEC)} ({path})", new, f"the run was started with {old!r}; {cure}")
            for path, old, new in changed
        ]
    )


def _require_moved(copy: Run, moved: bool) -> None:
    """A copy is looked at, never acted on: two directories of one run would each be taken for the run."""
    recorded = _newest(copy.store, _MOVED).get("to")
    if isinstance(recorded, str) and _is_same_place(copy.uri, recorded):
        return
    if not moved:
        raise BadInput(
            f"{copy.uri} is a copy of the run {copy.copied_from}, or was moved from there, so it is only "
            f"looked at; go on with the original, or, if this is its place now: "
            f"elastic-tpu run --moved {shlex.quote(copy.uri)}"
        )
    EventLog(copy.store, "run").write(_MOVED, to=copy.uri)


def _newest(store: Store, kind: str) -> dict[str, Any]:
    """The data of the newest event of a kind of the run's own; empty if there is none that can be read."""
    for entry in reversed(store.list("events/")):
        if "-run-" in entry.name:
            try:
                event = parse(store.read(entry.name).data, entry.name)
            except (BadInput, NotFound):
                continue
            if event.kind == kind:
                return dict(event.data)
    return {}


def create_run(spec: RunSpec) -> Run:
    """Create the run of a resolved spec, or open it if a run of the same spec is there.

    Raises:
      BadInput: the name is taken, by another spec (the fields that differ are listed) or by files with no spec; or
        spec.yaml was changed since the run was started.
    """
    import yaml

    store = open_store(spec.uri)
    # `exclude_none` leaves out fields that are not set; a null in `train.maxtext` or in a manifest's patch stays.
    document = {"schema": records.SCHEMA, **spec.model_dump(mode="json", exclude_none=True)}
    _refuse_foreign(store)
    try:
        store.create(paths.SPEC, yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode())
    except Exists:
        there = open_for_work(spec.uri, moved=True)  # the spec says that this is the run's place
        if changed := differences(there.spec, spec):
            raise BadInput(
                [
                    Problem(
                        f"run.name ({path})", new, f"the run {spec.uri} was started with {old!r}; take another run.name"
                    )
                    for path, old, new in changed
                ]
            ) from None
        return replace(there, own=True)
    created = Run(spec.uri, store, spec, own=True)
    # The spec itself as well: should spec.yaml be changed, the fields can be named.
    document.pop("schema")
    EventLog(store, "run").write("run.created", spec_hash=created.spec_hash, spec=document)
    return created


# What a run writes: found without a spec, it belongs to somebody. Orbax would take checkpoints for the new run's own.
_OF_A_RUN = (
    *("checkpoints/", "checkpoints-rejected/", "proofs/", "export/", "evaluation/", "attempts/", "jobs/"),
    *(paths.RESULT, paths.CLAIM, paths.STATUS, paths.SLICES),
)


def has_spec(store: Store) -> bool:
    """Whether a run was created in this directory."""
    try:
        store.read(paths.SPEC)
    except NotFound:
        return False
    return True


def _refuse_foreign(store: Store) -> None:
    """Refuse a directory that holds files of a run and no spec: they would be taken for the new run's, or replaced."""
    if has_spec(store):
        return
    foreign = next((entry.name for entry in store.list() if entry.name.startswith(_OF_A_RUN)), None)
    if foreign is not None and not has_spec(store):  # another process may have created the run meanwhile
        raise BadInput(
            f"{store.uri}: holds {foreign} but no {paths.SPEC}, so it is of an unknown run; put that run's "
            f"{paths.SPEC} back, or take another run.name"
        )


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
