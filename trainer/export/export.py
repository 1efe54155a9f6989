"""Export of a MaxText checkpoint as a Hugging Face folder, streaming and without JAX, torch or MaxText.

The folder counts as published when its manifest.json is there, which is written last and names every file with its
size and sha256. What an interrupted export left is removed by the next one; a published export is checked and returned
as it is. Memory does not grow with the model: a stored chunk is read, cast, permuted into its place in the output and
freed, while the next chunks are decompressed and finished ranges are hashed and flushed.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
from etils import epath

from ...runs.errors import BadInput, Problem
from ..checkpoint.arrays import CheckpointTree, open_arrays, read_tree
from ..checkpoint.blocks import Block, read_ahead, reads, recycled_memory
from ..checkpoint.layout import LeafPath, is_scanned, sort_leaves
from . import manifest
from .manifest import ExportManifest, FileEntry
from .qwen3 import Architecture, StoredArray, Tensor, check_names, config_json, stored_arrays
from .safetensors_writer import DTYPES, INDEX, Part, Shard, ShardFile, index_json, plan_shards
from .tokenizer_files import TokenizerFiles, find_tokenizer

Panel = list[tuple[Block, np.ndarray[Any, Any]]]
DType = Literal["bfloat16", "float32"]
Progress = Callable[[int, int], None]
Doing = Callable[[str], None]
# Output bytes that are gathered before they are written.
PANEL_BYTES = 64 * 2**20
_STORED_TYPES = ("float32", "bfloat16", "float16")


def export_checkpoint(
    step_dir: str,
    out_dir: str,
    *,
    architecture: Architecture,
    tokenizer: str,
    dtype: DType,
    spec_hash: str,
    proof_digest: str,
    max_shard_bytes: float = 5e9,
    progress: Progress,
    doing: Doing = lambda what: None,
) -> ExportManifest:
    """Export one checkpoint.

    Args:
      step_dir: ``<run>/checkpoints/<step>``, a folder or ``gs://``.
      out_dir: where the export goes, a folder or ``gs://``; it may hold an interrupted export and nothing else.
      tokenizer: folder or Hugging Face repository with a tokenizer.json.
      spec_hash: the run's; with `proof_digest`, the checkpoint's, it goes into the manifest and decides whether an
        export that is already there is this one.
      progress: called with bytes of weights written and bytes in all, the last time with both equal. An exception that
        it raises ends the export.
      doing: called with what is done next, in words.
    Raises:
      BadInput: the checkpoint is not one of this architecture (each missing, left-over or misshapen array is named),
        holds values that are not finite, is damaged, or is an export itself; the tokenizer has more ids than the
        model; `out_dir` holds something else.
      NotFound: there is no checkpoint.
      Unreachable: the storage did not answer.
    """
    out = epath.Path(out_dir)
    identity = manifest.Identity(_step(step_dir), spec_hash, proof_digest, dtype)
    doing("looking for an export that is there already")
    existing = manifest.reuse(out_dir, identity)
    if existing is not None:
        return existing
    tokens = find_tokenizer(tokenizer)
    if tokens.size > architecture.vocab_size:
        cure = f"uses {tokens.size} ids, the model has {architecture.vocab_size} rows: train with a larger vocab_size"
        raise BadInput([Problem("model.tokenizer", tokenizer, cure)])
    with recycled_memory():
        doing("opening the checkpoint")
        tree = read_tree(step_dir)
        arrays, stores, ignored = _match(tree, architecture)
        manifest.clear(out_dir)
        out.mkdir(parents=True, exist_ok=True)
        shards = plan_shards([tensor for array in arrays for tensor in array.tensors], dtype, max_shard_bytes)
        doing("writing the weights")
        files = _write_shards(tree, arrays, stores, shards, out, dtype, progress)
    doing("publishing")
    small = {
        "config.json": manifest.json_bytes(
            config_json(architecture, dtype=dtype, bos=tokens.bos, eos=tokens.eos, pad=tokens.pad)
        ),
        "generation_config.json": manifest.json_bytes(_generation(tokens)),
        **({INDEX: manifest.json_bytes(index_json(shards))} if len(shards) > 1 else {}),
        **{name: path.read_bytes() for name, path in tokens.files.items()},
    }
    for name, data in small.items():
        files[name] = manifest.write_file(out / name, data)
    parameters = sum(math.prod(array.shape) for array in arrays)
    return manifest.publish(out_dir, identity, files, parameters, ignored)


def _match(
    tree: CheckpointTree, architecture: Architecture
) -> tuple[tuple[StoredArray, ...], Mapping[LeafPath, Any], tuple[str, ...]]:
    """The arrays to export, open, and the names of the leaves that are ignored. Raises BadInput with every problem."""
    weights, ignored = sort_leaves(tree.leaves)
    arrays = stored_arrays(architecture, scanned=is_scanned(weights, tree.scan_layers))
    check_names(arrays, weights, architecture)
    stores = open_arrays(tree, [array.path for array in arrays])
    problems = []
    for array in arrays:
        store, name = stores[array.path], ".".join(array.path)
        if tuple(store.shape) != array.shape:
            problems.append(Problem(name, str(tuple(store.shape)), f"the architecture says {array.shape}"))
        elif store.dtype.name not in _STORED_TYPES:
            problems.append(Problem(name, store.dtype.name, f"only {', '.join(_STORED_TYPES)} can be exported"))
    if problems:
        raise BadInput(problems)
    return arrays, stores, ignored


def _write_shards(
    tree: CheckpointTree,
    arrays: tuple[StoredArray, ...],
    stores: Mapping[LeafPath, Any],
    shards: tuple[Shard, ...],
    out: epath.Path,
    dtype: DType,
    progress: Progress,
) -> dict[str, FileEntry]:
    """Stream all arrays into the shards; one thread moves values, another hashes, flushes and uploads them."""
    home = {name: shard for shard in shards for name in shard.ranges}
    last = {list(shard.ranges)[-1] for shard in shards}
    total = sum(math.prod(t.shape) for a in arrays for t in a.tensors) * DTYPES[dtype][1].itemsize
    done = 0
    with ExitStack() as stack, ExitStack() as opened:
        folder = Path(out) if not str(out).startswith("gs://") else None
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elastic-tpu-export-")))
        # One worker, so that a file's ranges are hashed in order. On an error it ends its task before the files close.
        worker = ThreadPoolExecutor(1, "settle")
        files: dict[str, ShardFile] = {}
        digests: dict[str, Future[FileEntry]] = {}
        settling: list[Future[None]] = []
        try:
            for array, panels in itertools.groupby(_panels(tree, arrays, stores, dtype), key=lambda item: item[0]):
                for _, panel in panels:
                    for tensor, parts in _tensors(array, panel):
                        shard = home[tensor.name]
                        if shard.name not in files:
                            files[shard.name] = ShardFile(shard, folder / shard.name)
                            opened.callback(files[shard.name].close)
                        if not files[shard.name].write(tensor, parts):
                            cure = f"holds values that are not finite in {dtype}; export an earlier step"
                            raise BadInput([Problem(tensor.name, f"({'.'.join(array.path)})", cure)])
                    done += sum(values.size * values.itemsize for _, values in panel)
                    progress(done, total)
                for tensor in array.tensors:
                    shard = home[tensor.name]
                    if tensor.name in last:
                        digests[shard.name] = worker.submit(_finish, files[shard.name], out)
                    elif tensor is array.tensors[-1]:
                        settling.append(worker.submit(files[shard.name].settle, shard.ranges[tensor.name][1]))
                while settling and settling[0].done():
                    settling.pop(0).result()  # a full disk is reported now, not after hours
            for flushed in settling:
                flushed.result()
            return {name: entry.result() for name, entry in digests.items()}
        finally:
            worker.shutdown(cancel_futures=True)


def _panels(
    tree: CheckpointTree, arrays: tuple[StoredArray, ...], stores: Mapping[LeafPath, Any], dtype: DType
) -> Iterator[tuple[StoredArray, Panel]]:
    """The arrays' blocks in panels: groups that follow one another on the axis that becomes the output's innermost.

    The wider a panel, the fewer passes over the output; the memory grows with it.
    """
    by_path = {array.path: array for array in arrays}
    waiting = (read for array in arrays for read in reads(array.path, stores[array.path], _order(array)))
    panel: Panel = []
    for read, values in read_ahead(tree, waiting, DTYPES[dtype][1]):
        panel.append((read.block, values))
        array = by_path[read.path]
        axis = _order(array)[0]
        size = sum(v.size * v.itemsize for _, v in panel)
        if read.block.stop[axis] == array.shape[axis] or size + values.size * values.itemsize > PANEL_BYTES:
            yield array, panel
            panel = []


def _order(array: StoredArray) -> tuple[int, ...]:
    """The stored axes from the output's innermost to its outermost, layers last."""
    axes = [i for i in range(len(array.shape)) if i != array.layer_axis]
    ordered = tuple(axes[i] for i in reversed(array.permutation))
    return ordered if array.layer_axis is None else (*ordered, array.layer_axis)


def _tensors(array: StoredArray, panel: Panel) -> Iterator[tuple[Tensor, list[Part]]]:
    """A panel as parts of the tensors that it belongs to, permuted to their axes."""
    axis = array.layer_axis
    layers = range(1) if axis is None else range(panel[0][0].start[axis], panel[0][0].stop[axis])
    for layer in layers:
        parts = []
        for block, values in panel:
            kept = [start for i, start in enumerate(block.start) if i != axis]
            inside = values if axis is None else values[(slice(None),) * axis + (layer - block.start[axis],)]
            parts.append(Part(tuple(kept[i] for i in array.permutation), inside.transpose(array.permutation)))
        yield array.tensors[layer], parts


def _finish(file: ShardFile, out: epath.Path) -> FileEntry:
    digest = file.finish()
    entry = FileEntry(file.shard.size, digest)
    if str(out).startswith("gs://"):
        manifest.upload(file.path, out / file.shard.name)
        file.path.unlink()
    return entry


def _generation(tokens: TokenizerFiles) -> dict[str, object]:
    ids = {"bos_token_id": tokens.bos, "eos_token_id": tokens.eos, "pad_token_id": tokens.pad}
    return {"_from_model_config": True, **{name: value for name, value in ids.items() if value is not None}}


def _step(step_dir: str) -> int:
    name = step_dir.rstrip("/").rpartition("/")[2]
    if not name.isdigit():
        raise BadInput(f"{step_dir}: a checkpoint's folder is named for its step, e.g. .../checkpoints/1200")
    return int(name)
