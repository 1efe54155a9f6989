"""What makes a checkpoint proven: name, size, digest and generation of each of its files (docs/contracts.md 7).

In a bucket the digest is the crc32c that the store keeps, so one listing proves a checkpoint and no byte of it is
read. On a folder it is the sha256 of each file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput, NotFound
from ..store import records
from ..store.base import Store
from . import paths

# Names that Orbax gives: the marker of a finished checkpoint, its metadata, a part of an unfinished one's name.
COMMIT = "commit_success.txt"
METADATA = "_CHECKPOINT_METADATA"
TEMPORARY = ".orbax-checkpoint-tmp"

# A step's folder, or its small file; Orbax writes no leading zeros.
_STEP = re.compile(r"(0|[1-9][0-9]*)(?:/|\.json$)")


@dataclass(frozen=True)
class FileProof:
    """One file of a checkpoint: size in bytes, digest with its kind in front; `generation` is empty on a folder."""

    size: int
    digest: str
    generation: str = ""


@dataclass(frozen=True)
class Proof:
    """A proven checkpoint: its files, by name below the checkpoint's folder; Orbax's time of the commit."""

    step: int
    files: Mapping[str, FileProof]
    commit_timestamp_nsecs: int | None = None

    @property
    def digest(self) -> str:
        """One digest for the whole checkpoint: names, sizes and digests, not generations."""
        content = {name: [f.size, f.digest] for name, f in self.files.items()}
        return hashlib.sha256(records.canonical({"step": self.step, "files": content})).hexdigest()

    def dump(self) -> bytes:
        """As the bytes of its file."""
        files = {n: {"size": f.size, "digest": f.digest, "generation": f.generation} for n, f in self.files.items()}
        return records.dump(
            {
                "step": self.step,
                "files": files,
                "commit_timestamp_nsecs": self.commit_timestamp_nsecs,
                "digest": self.digest,
            }
        )


def load_proof(record: Mapping[str, Any]) -> Proof:
    """A proof from its record."""
    files = {
        name: FileProof(int(f["size"]), str(f["digest"]), str(f.get("generation", "")))
        for name, f in record["files"].items()
    }
    return Proof(int(record["step"]), files, record.get("commit_timestamp_nsecs"))


def compare(proof: Proof, files: Mapping[str, FileProof]) -> list[str]:
    """How the files differ from those that were proven, one line per difference; empty when they are the same."""
    problems = [f"{name} is missing" for name in sorted(proof.files.keys() - files.keys())]
    problems += [f"{name} is not in the proof" for name in sorted(files.keys() - proof.files.keys())]
    for name in sorted(proof.files.keys() & files.keys()):
        was, now = proof.files[name], files[name]
        if was.size != now.size:
            problems.append(f"{name} has {now.size} bytes, {was.size} were proven")
        elif was.digest != now.digest:
            problems.append(f"{name} has other content than was proven")
        elif was.generation and now.generation and was.generation != now.generation:
            problems.append(f"{name} was written again (generation {now.generation}, {was.generation} was proven)")
    return problems


def files_of(store: Store, step: int, only_sizes: bool = False) -> dict[str, FileProof]:
    """The files of a checkpoint as they are on storage now.

    Args:
      only_sizes: leave out digests that the store does not keep, so that no file is read.

    Raises:
      NotFound: a file was removed meanwhile.
    """
    folder = f"{paths.checkpoint(step)}/"
    return {
        entry.name.removeprefix(folder): FileProof(
            entry.size,
            entry.digest or ("" if only_sizes else store.digest(entry.name)),
            entry.generation if entry.digest else "",
        )
        for entry in store.list(folder)
    }


def read_proof(store: Store, step: int) -> Proof | None:
    """The recorded proof of a step; None when there is none, it cannot be read, or it is of another step."""
    try:
        record = records.load(store.read(paths.proof(step)).data, paths.proof(step))
        proof = load_proof(record)
    except (NotFound, BadInput, KeyError, TypeError, ValueError, AttributeError):
        return None
    sound = proof.step == step and COMMIT in proof.files and record.get("digest") == proof.digest
    return proof if sound else None


def check(store: Store, step: int) -> list[str]:
    """Why a step is not proven on storage now; empty when its proof holds."""
    proof = read_proof(store, step)
    if proof is None:
        return ["it has no proof"]
    sizes = compare(
        Proof(step, {n: FileProof(f.size, "") for n, f in proof.files.items()}),
        {n: FileProof(f.size, "") for n, f in files_of(store, step, only_sizes=True).items()},
    )
    if sizes:
        return sizes
    try:
        return compare(proof, files_of(store, step))
    except NotFound as error:
        return [f"it is being removed ({error})"]


def is_finished(store: Store, step: int) -> bool:
    """Whether a checkpoint still has its commit marker; retention removes old checkpoints, in a bucket file by file."""
    return any(entry.name == f"{paths.checkpoint(step)}/{COMMIT}" for entry in store.list(paths.checkpoint(step) + "/"))


def steps_in(names: Iterable[str], folder: str) -> list[int]:
    """Step numbers among the names below a folder: ``checkpoints/<step>/...`` or ``proofs/<step>.json``."""
    found = set()
    for name in names:
        match = _STEP.match(name, len(folder)) if name.startswith(folder) else None
        if match:
            found.add(int(match[1]))
    return sorted(found)


def step_of(name: str) -> int | None:
    """The step in the name of a checkpoint's folder; None for the name of anything else."""
    match = _STEP.fullmatch(f"{name}/")
    return int(match[1]) if match else None


def recorded_steps(store: Store) -> list[int]:
    """Steps that have a recorded proof, whether or not it still holds."""
    return steps_in((entry.name for entry in store.list("proofs/")), "proofs/")


def newest_proven(store: Store) -> int | None:
    """The newest step whose proof holds on storage now, or None."""
    return next((step for step in reversed(recorded_steps(store)) if not check(store, step)), None)
