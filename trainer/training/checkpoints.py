"""Checkpoints on storage: which are finished, which are proven, and which are set aside so that none restores them.

Orbax lists every folder that is named for a step and does not look inside; MaxText restores the newest that Orbax
lists. So before every restore each step newer than the newest proven one is opened whole and proven, or set aside
(docs/contracts.md 7).
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
from .finite import FiniteLosses

_log = logging.getLogger("elastic_tpu.trainer")


def all_steps(store: Store) -> set[int]:
    """Steps with at least one file below ``checkpoints/<step>/``."""
    return set(proof.steps_in((entry.name for entry in store.list("checkpoints/")), "checkpoints/"))


def finished_steps(store: Store) -> set[int]:
    """Steps that have their commit marker under their final name, by a new listing."""
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
    session.heartbeat.confirm()  # digests take minutes; a superseded trainer must not prove
    store.put(paths.proof(step), proven.dump())
    session.event("checkpoint.proven", step=step, digest=proven.digest, files=len(proven.files))
    return proven


def reject(store: Store, uri: str, step: int, why: list[str], session: TrainerSession) -> None:
    """Set a checkpoint aside, where neither MaxText nor Orbax lists it.

    On a folder it is moved to ``checkpoints-rejected/``; in a bucket only its commit marker is deleted, after a copy to
    ``proofs/``.
    """
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
            pass  # without its marker it is not listed anyway
    else:
        aside = Path(uri) / "checkpoints-rejected" / f"{step}-{stamp}"
        with _on_disk(aside), suppress(FileNotFoundError):  # retention has removed it
            aside.parent.mkdir(exist_ok=True)
            (Path(uri) / paths.checkpoint(step)).rename(aside)
    store.delete(paths.proof(step))
    session.event("checkpoint.rejected", step=step, why=why[:10])


def settle(store: Store, uri: str, own: set[int], session: TrainerSession, losses: FiniteLosses) -> int | None:
    """Prove the newest step that Orbax lists, or set it aside and go on to the next; returns the newest proven one.

    Args:
      own: steps that this process saved with a finite loss: those that are finished are proven without being opened.
      losses: what is known of the losses of this attempt.
    Raises:
      Infrastructure: the folder of the checkpoints cannot be read or changed.
    """
    finished = finished_steps(store)
    for step in sorted(_listed_by_orbax(store, uri), reverse=True):
        if step not in finished:
            reject(store, uri, step, ["it was never finished"], session)
            continue
        if losses.allows(step) is False:
            reject(
                store, uri, step, [f"it was saved after the loss of step {losses.bad}, which is not finite"], session
            )
            continue
        why = proof.check(store, step)
        if not why:
            return step
        if proof.read_proof(store, step) is None:
            folder, finite = f"{uri}/{paths.checkpoint(step)}", losses.on_nan != "continue"
            why = [] if step in own else open_whole(folder, step, finite)
            if not why:
                prove(store, step, session)
                return step
        reject(store, uri, step, why, session)
    return None


def _listed_by_orbax(store: Store, uri: str) -> set[int]:
    if is_bucket(uri):
        return finished_steps(store)  # a bucket has no rename, so Orbax goes by the marker
    folder = Path(uri) / "checkpoints"  # Orbax lists an empty folder too, a listing of files does not
    with _on_disk(folder), suppress(FileNotFoundError, NotADirectoryError):
        return {step for p in folder.iterdir() if (step := proof.step_of(p.name)) is not None and p.is_dir()}
    return set()


@contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    """Raise an error of the operating system as Infrastructure: a new process may succeed."""
    try:
        yield
    except OSError as error:
        raise Infrastructure(f"{path}: {error.strerror or error}; which checkpoint to restore is not known") from error


def open_whole(folder: str, step: int, finite: bool) -> list[str]:
    """Read every byte of a checkpoint that was finished and never proven; returns what is wrong with it.

    Args:
      finite: weights that are not finite are wrong.
    """
    from ..checkpoint.validate import validate_checkpoint

    try:
        return validate_checkpoint(folder, step, finite=finite)
    except BadInput as error:
        return [str(error)]


def _commit_time(store: Store, step: int) -> int | None:
    try:
        metadata = json.loads(store.read(f"{paths.checkpoint(step)}/{proof.METADATA}").data)
    except (NotFound, ValueError):
        return None
    value = metadata.get("commit_timestamp_nsecs") if isinstance(metadata, dict) else None
    return value if isinstance(value, int) else None
