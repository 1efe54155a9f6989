"""The run directory: where each file of a run lives, and how a run is started and opened.

A run is its directory; whoever has the URI has all there is. Opening one reads `spec.yaml`, nothing else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from . import load, records
from .errors import BadInput, Exists, NotFound, Problem
from .events import EventLog
from .spec import RunSpec, is_bucket
from .store import Store, open_store

SPEC = "spec.yaml"
CLAIM = "claim.json"
SLICES = "slices.json"
STATUS = "status.json"
RESULT = "result.json"


def attempts(job: str) -> str:
    """Folder of a job's attempts; training's stand at the top of the run directory."""
    return "attempts" if job == "train" else f"jobs/{job}"


def checkpoint(step: int) -> str:
    """Folder of a checkpoint, below the run."""
    return f"checkpoints/{step}"


def proof(step: int) -> str:
    """Proof of a checkpoint."""
    return f"proofs/{step}.json"


def export(step: int) -> str:
    """Folder of an exported model."""
    return f"export/{step}"


def attempts_of(opened: Run, job: str) -> list[int]:
    """Numbers of a job's attempts so far, in order."""
    folder = attempts(job) + "/"
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
        data = store.read(SPEC).data
    except NotFound:
        raise BadInput(
            f"{uri}: no run here ({SPEC} is missing); give the run directory that `elastic-tpu run` printed"
        ) from None
    try:
        document = yaml.safe_load(data)
        if not isinstance(document, dict) or "schema" not in document:
            raise ValueError("not a run: elastic-tpu did not write this file; to start a run, give the spec's own path")
        records.check_schema(document.pop("schema", records.SCHEMA), f"{uri}/{SPEC}")
        spec = RunSpec.model_validate(document)
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{uri}/{SPEC}: not readable: {' '.join(str(error).split())}") from error
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
        store.create(SPEC, yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode())
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
        store.read(SPEC)
    except NotFound:
        foreign = next((entry.name for entry in store.list("checkpoints/")), None)
        if foreign is not None:
            raise BadInput(
                f"{store.uri}: holds {foreign} but no {SPEC}: checkpoints of something else; take another run.name"
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


def start_record(who: str) -> str:
    """Where, below the output, it is on record which run somebody started from a name with a template."""
    return f".starts/{hashlib.sha256(who.encode()).hexdigest()[:16]}.json"


def start_run(source: str, holder: str) -> Run:
    """From a spec to its run, the same one for every caller with this holder (contracts.md 2).

    A name with a template is expanded once per holder: whoever comes first leaves a record under `.starts`.
    """
    spec = load.read_spec(source)
    if not load.has_template(spec):
        return create_run(spec)
    starts = open_store(spec.run.output)
    record = start_record(holder)
    expanded = load.expand_name(spec, holder)
    try:
        starts.create(record, records.dump({"run": expanded.uri, "holder": holder}))
    except Exists:
        uri = records.load(starts.read(record).data, record)["run"]
        expanded = spec.model_copy(update={"run": spec.run.model_copy(update={"name": uri.rpartition("/")[2]})})
    return create_run(expanded)


def find_run(source: str, holder: str) -> Run | None:
    """The run behind a stage's `run` parameter: a run directory, or a spec that was started by this holder.

    None when the spec was never started: nothing to release. A run of that name that was started from another spec is
    somebody else's, unless this holder drives it and the spec was edited meanwhile.
    """
    if not source.endswith((".yaml", ".yml")):
        return open_run(source)
    spec = load.read_spec(source, with_inputs=False)
    if load.has_template(spec):
        record = start_record(holder)
        try:
            uri = str(records.load(open_store(spec.run.output).read(record).data, record)["run"])
        except NotFound:
            return None
        return open_run(uri) if _is_there(uri) else None  # whoever wrote the record may have got no further
    if not _is_there(spec.uri):
        return None
    found = open_run(spec.uri)
    return found if found.spec_hash == spec.hash() or (found.read(CLAIM) or {}).get("holder") == holder else None


def _is_there(uri: str) -> bool:
    try:
        open_store(uri).read(SPEC)
    except NotFound:
        return False
    return True


def local_folder(run: Run) -> str | None:
    """The run directory as a folder of this machine, or None for a bucket."""
    return None if is_bucket(run.uri) else run.uri
