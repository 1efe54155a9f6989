"""What makes an export published: a manifest, written last, with the size and sha256 of every file.

Readers rely on the manifest alone: a folder without one is an interrupted export, whatever else is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from etils import epath

from ...runs.errors import BadInput, Damaged, NotFound, Problem
from ...runs.store import records
from .tokenizer_files import NAMES

MANIFEST = "manifest.json"
_PARTIAL = ".manifest.json.part"
_OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json|(generation_)?config\.json")
_READ_BYTES = 4 * 2**20


@dataclass(frozen=True)
class FileEntry:
    """A file of an export: bytes, and sha256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Identity:
    """Which export it is: of which step, spec and proven checkpoint, in which type."""

    step: int
    spec_hash: str
    proof_digest: str
    dtype: str


@dataclass(frozen=True)
class ExportManifest:
    """A published export. `params` counts parameters; `ignored` names leaves that are no weights (rngs, aqt)."""

    step: int
    spec_hash: str
    proof_digest: str
    dtype: str
    files: Mapping[str, FileEntry]
    params: int
    ignored: tuple[str, ...] = ()

    @property
    def export_digest(self) -> str:
        """One digest for the whole export: the names, sizes and sha256 of its files."""
        return hashlib.sha256(records.canonical({name: asdict(f) for name, f in self.files.items()})).hexdigest()

    @property
    def identity(self) -> Identity:
        """Which export it is."""
        return Identity(self.step, self.spec_hash, self.proof_digest, self.dtype)


def read_manifest(out_dir: str) -> ExportManifest:
    """The manifest of a published export.

    Raises:
      NotFound: there is none, so nothing is published there.
      BadInput: it cannot be read, or contradicts one of its digests.
    """
    path = epath.Path(out_dir) / MANIFEST
    if not path.exists():
        raise NotFound(f"{out_dir}: no {MANIFEST}, so no finished export is there; export again")
    try:
        record = records.load(path.read_bytes(), str(path))
    except Damaged as error:
        raise Damaged(f"{error}; export again") from error
    try:
        manifest = ExportManifest(
            step=int(record["step"]),
            spec_hash=str(record["spec_hash"]),
            proof_digest=str(record["proof_digest"]),
            dtype=str(record["dtype"]),
            files={str(n): FileEntry(int(f["size"]), str(f["sha256"])) for n, f in record["files"].items()},
            params=int(record["params"]),
            ignored=tuple(str(name) for name in record.get("ignored", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{path}: not a manifest of an export ({error!r}); export again") from error
    if record.get("export_digest") != manifest.export_digest:
        raise BadInput(f"{path}: its digest is not that of its files; it was changed by hand, export again")
    return manifest


def verify_export(out_dir: str) -> ExportManifest:
    """Check every file of a published export against the manifest: it must be there, with its size and sha256.

    Raises:
      NotFound: nothing is published there.
      BadInput: with every file that is missing, cut short or changed.
    """
    manifest = read_manifest(out_dir)
    problems = []
    for name, entry in manifest.files.items():
        path = epath.Path(out_dir) / name
        if not path.exists():
            problems.append(Problem(name, None, "is missing; export again"))
        elif (size := path.stat().length) != entry.size:
            problems.append(Problem(name, size, f"bytes, the manifest says {entry.size}; export again"))
        elif (digest := _digest(path)) != entry.sha256:
            problems.append(Problem(name, digest, "is not the sha256 in the manifest; export again"))
    if problems:
        raise BadInput(problems)
    return manifest


def reuse(out_dir: str, wanted: Identity) -> ExportManifest | None:
    """The export in `out_dir` if it is complete and the wanted one; None if there is none or it is damaged.

    Raises:
      BadInput: a complete export of something else is there.
    """
    try:
        manifest = verify_export(out_dir)
    except (NotFound, BadInput):
        return None
    differing = [
        Problem(name, getattr(manifest, name), f"but {value!r} is wanted; choose another folder, or delete this export")
        for name, value in asdict(wanted).items()
        if getattr(manifest, name) != value
    ]
    if differing:
        raise BadInput(differing)
    return manifest


def clear(out_dir: str) -> None:
    """Remove what an interrupted or damaged export left, its manifest first.

    Raises:
      BadInput: there are other files, so this may not be a folder for exports.
    """
    folder = epath.Path(out_dir)
    if not folder.exists():
        return
    found = sorted(path.name for path in folder.iterdir())
    foreign = [n for n in found if n not in (MANIFEST, _PARTIAL, *NAMES) and not _OURS.fullmatch(n)]
    if foreign:
        raise BadInput(f"{out_dir}: holds {foreign[:5]}, which no export writes; give an empty folder")
    for name in sorted(found, key=lambda n: n != MANIFEST):
        (folder / name).unlink()


def publish(
    out_dir: str, identity: Identity, files: Mapping[str, FileEntry], params: int, ignored: tuple[str, ...]
) -> ExportManifest:
    """Write the manifest, which publishes the export: at once on a folder (rename), by one put on a bucket."""
    manifest = ExportManifest(**asdict(identity), files=dict(sorted(files.items())), params=params, ignored=ignored)
    record = {**asdict(manifest), "ignored": list(ignored), "export_digest": manifest.export_digest}
    folder = epath.Path(out_dir)
    if out_dir.startswith("gs://"):
        write_file(folder / MANIFEST, records.seal(record))
        return manifest
    write_file(folder / _PARTIAL, records.seal(record))
    (folder / _PARTIAL).replace(folder / MANIFEST)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return manifest


def write_file(path: epath.Path, data: bytes) -> FileEntry:
    """Write a small file, on a folder down to the disk."""
    with path.open("wb") as file:
        file.write(data)
        if not str(path).startswith("gs://"):
            file.flush()
            os.fsync(file.fileno())
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def upload(source: Path, target: epath.Path) -> None:
    """Copy a local file to a bucket, in pieces.

    Raises:
      OSError: the bucket holds another number of bytes afterwards.
    """
    with source.open("rb") as read, target.open("wb") as write:
        shutil.copyfileobj(read, write, 16 * 2**20)
    if target.stat().length != source.stat().st_size:
        raise OSError(f"{target}: {target.stat().length} bytes arrived of {source.stat().st_size}")


def json_bytes(value: Mapping[str, object]) -> bytes:
    """JSON as Hugging Face writes its own."""
    return (json.dumps(value, indent=2) + "\n").encode()


def _digest(path: epath.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
