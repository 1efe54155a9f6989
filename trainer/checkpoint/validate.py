"""Whether a checkpoint is whole: every byte of it is read once."""

from __future__ import annotations

from typing import Any

import numpy as np
from etils import epath

from ...runs.errors import BadInput, NotFound
from .arrays import ITEM, CheckpointTree, names_in, open_arrays, read_error, read_json, read_tree
from .blocks import read_ahead, reads, recycled_memory
from .layout import LeafPath


def validate_checkpoint(step_dir: str, step: int, *, finite: bool = False) -> list[str]:
    """Read every byte of a checkpoint, optimizer state included; returns what is wrong with it, empty if nothing is.

    A flipped bit inside a compressed chunk is not always found, since zstd frames carry no checksum here; the digests
    of a proof find it.

    Args:
      step_dir: ``<run>/checkpoints/<step>``.
      step: the step that it should hold.
      finite: report weights that are NaN or infinite as well.

    Raises:
      Unreachable: the storage did not answer, so nothing is known.
    """
    try:
        tree = read_tree(step_dir)
        if tree.step != step:
            return [f"{step_dir}: named for step {tree.step}, step {step} was expected"]
        top = read_json(epath.Path(step_dir) / "_CHECKPOINT_METADATA")
        if not top or not top.get("commit_timestamp_nsecs"):
            return [f"{step_dir}: _CHECKPOINT_METADATA has no commit time, so it was never committed"]
        items = [str(name) for name in top.get("item_handlers") or {}]
        there = names_in(epath.Path(step_dir))
        absent = [name for name in (ITEM, *items) if name not in there]
        if absent:
            return [f"{step_dir}: {name} is missing" for name in absent]
        if not tree.leaves:
            return [f"{step_dir}: its metadata names no arrays"]
        with recycled_memory():
            opened = sorted(open_arrays(tree, tree.leaves).items())
            for read, content in read_ahead(tree, (r for path, store in opened for r in reads(path, store)), None):
                if finite and read.path[0] == "params" and not _all_finite(content):
                    return [f"{step_dir}: array {'.'.join(read.path)} holds numbers that are not finite"]
        counted = dict(opened).get(("step",))
        if counted is not None and (updates := _number(tree, ("step",), counted)) != step + 1:
            # MaxText names a checkpoint for the last completed step and stores the number of completed steps.
            return [f"{step_dir}: holds the state after {updates} steps, its name says {step + 1}"]
    except (BadInput, NotFound) as error:
        return [str(error)]
    return []


def _all_finite(content: np.ndarray[Any, Any]) -> bool:
    # bfloat16 and the float8 types are of kind V.
    return content.dtype.kind not in "fcV" or bool(np.isfinite(content).all())


def _number(tree: CheckpointTree, path: LeafPath, store: Any) -> int:
    try:
        return int(store.read().result())
    except Exception as error:
        raise read_error(tree, path, error) from error
