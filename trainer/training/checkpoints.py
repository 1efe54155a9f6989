"""Checkpoints on storage: which are finished, which are proven, and which are set aside so that nobody restores them.

Orbax lists what has a right name; it does not look inside. MaxText restores the newest that Orbax lists. So before
every restore each step newer than the newest proven one is opened whole and proven, or set aside (contracts.md 7).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...runs.errors import BadInput, Infrastructure, NotFound
from ...runs.record import paths, proof
from ...runs.spec.run_spec import is_bucket
from ...runs.store import records
from ...runs.store.base import Store
from ..session import TrainerSession

_log = logging.getLogger("elastic_tpu.trainer")


def all_steps(store: Store) -> set[int]:
    """Steps that have anything at all below their name."""
    return set(proof.steps_in((entry.name for entry in store.list("checkpoints/")), "checkpoints/"))


def finished_steps(store: Store) -> set[int]:
    """Steps whose commit marker is there under their final name, read afresh."""
    listed = [entry.name for entry in store.list("checkpoints/")]
    return set(
        proof.steps_in((n for n in listed if n.count("/") == 2 and n.endswith(f"/{proof.COMMIT}")), "checkpoints/")
    )


def prove(store: Store, step: int, session: TrainerSession) -> proof.Proof:
    """Record what makes a finished checkpoint proven: names, sizes, digests, generations, commit time.

    Raises:
      NotFound: retention is removing it.
    """
    proven = proof.Proof(step, proof.files_of(store, step), _commit_time(store, step))
    left = {name: f.size for name, f in proof.files_of(store, step, only_sizes=True).items()}
    if proof.COMMIT not in left or left != {name: f.size for name, f in proven.files.items()}:
        raise NotFound(f"checkpoint {step} is being removed; it is not proven")
    session.heartbeat.confirm()  # digests take minutes; what a zombie had in flight must not become proven
    store.put(paths.proof(step), proven.dump())
    session.event("checkpoint.proven", step=step, digest=proven.digest, files=len(proven.files))
    return proven


def reject(store: Store, uri: str, step: int, why: list[str], session: TrainerSession) -> None:
    """Set a checkpoint aside, where neither MaxText nor Orbax lists it; nothing of it is deleted on a folder."""
    session.heartbeat.confirm()
    stamp = records.timestamp().replace(":", "").replace("-", "")
    _log.warning("checkpoint %d is set aside: %s", step, "; ".join(why[:3]))
    if is_bucket(uri):
        marker = f"{paths.checkpoint(step)}/{proof.COMMIT}"
        try:
            kept = {"step": step, "why": why, "marker": store.read(marker).data.decode(errors="replace")}
            store.put(f"proofs/{step}.rejected-{stamp}.json", records.dump(kept))
            store.delete(marker)
        except NotFound:
            pass  # without its marker nobody lists it anyway
    else:
        aside = Path(uri) / "checkpoints-rejected" / f"{step}-{stamp}"
        with _on_disk(aside), suppress(FileNotFoundError):  # retention was faster
            aside.parent.mkdir(exist_ok=True)
            (Path(uri) / paths.checkpoint(step)).rename(aside)
    store.delete(paths.proof(step))
    session.event("checkpoint.rejected", step=step, why=why[:10])


def settle(store: Store, uri: str, own: set[int], session: TrainerSession) -> int | None:
    """Make the newest step that Orbax lists a proven one; returns it, or None when there is none.

    Args:
      own: steps that this process saved; finished, they need no opening.
    """
    finished = finished_steps(store)
    for step in sorted(_listed_by_orbax(store, uri), reverse=True):
        if step not in finished:
            reject(store, uri, step, ["it was never finished"], session)
            continue
        why = proof.check(store, step)
        if not why:
            return step
        if proof.read_proof(store, step) is None:
            why = [] if step in own else open_whole(f"{uri}/{paths.checkpoint(step)}", step)
            if not why:
                prove(store, step, session)
                return step
        reject(store, uri, step, why, session)
    return None


def _listed_by_orbax(store: Store, uri: str) -> set[int]:
    if is_bucket(uri):
        return finished_steps(store)  # with no rename in a bucket, Orbax goes by the marker
    folder = Path(uri) / "checkpoints"  # an empty folder counts for Orbax, and no listing of files shows it
    with _on_disk(folder), suppress(FileNotFoundError, NotADirectoryError):
        return {step for p in folder.iterdir() if (step := proof.step_of(p.name)) is not None and p.is_dir()}
    return set()


@contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    """What the operating system refuses is nothing that this program did wrong: a new process may get on."""
    try:
        yield
    except OSError as error:
        raise Infrastructure(
            f"{path}: {error.strerror or error}; which checkpoint to restore is not settled"
        ) from error


def open_whole(folder: str, step: int) -> list[str]:
    """Read every byte of a checkpoint that was finished and never proven; returns what is wrong with it."""
    from ..checkpoint.validate import validate_checkpoint

    try:
        return validate_checkpoint(folder, step)
    except BadInput as error:
        return [str(error)]


def _commit_time(store: Store, step: int) -> int | None:
    try:
        metadata = json.loads(store.read(f"{paths.checkpoint(step)}/{proof.METADATA}").data)
    except (NotFound, ValueError):
        return None
    value = metadata.get("commit_timestamp_nsecs") if isinstance(metadata, dict) else None
    return value if isinstance(value, int) else None
