"""Safetensors files laid out before any value is known, and filled block by block in any order.

All shapes are known from the architecture, so headers, shards and the index are fixed first; values then go straight to
their place through a scratch buffer that fits the cache. (A memory-mapped file would be simpler, but takes a page fault
for each 4 KB and chunk.) Memory does not grow with the model. Tensors lie in the order in which they are produced, so
that a shard is finished, hashed and uploaded while the next one is filled.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from .qwen3 import Tensor

DTYPES: Mapping[str, tuple[str, np.dtype[Any]]] = {
    "bfloat16": ("BF16", np.dtype(ml_dtypes.bfloat16)),
    "float32": ("F32", np.dtype(np.float32)),
}
INDEX = "model.safetensors.index.json"
_SCRATCH_BYTES = 512 * 1024
# An exponent of all ones is infinity or not-a-number: the unsigned type of the bits, and the exponent's place.
_EXPONENT = {"bfloat16": (np.uint16, 0x7F80), "float32": (np.uint32, 0x7F800000)}
_READ_BYTES = 2**20


@dataclass(frozen=True)
class Shard:
    """One file: its name, its header as bytes, and for each tensor the byte range [begin, end) in the file."""

    name: str
    header: bytes
    ranges: Mapping[str, tuple[int, int]]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return max((end for _, end in self.ranges.values()), default=len(self.header))


def plan_shards(tensors: Sequence[Tensor], dtype: str, max_shard_bytes: float) -> tuple[Shard, ...]:
    """Distribute tensors over files of at most `max_shard_bytes` of values (a larger tensor has a file for itself)."""
    code, numpy_type = DTYPES[dtype]
    groups: list[list[Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        size = math.prod(tensor.shape) * numpy_type.itemsize
        if groups[-1] and filled + size > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += size
    count = len(groups)
    return tuple(
        _shard(
            "model.safetensors" if count == 1 else f"model-{i:05d}-of-{count:05d}.safetensors", group, code, numpy_type
        )
        for i, group in enumerate(groups, 1)
    )


def index_json(shards: Sequence[Shard]) -> dict[str, object]:
    """The index that tells in which shard a tensor is."""
    total = sum(end - begin for shard in shards for begin, end in shard.ranges.values())
    weight_map = {name: shard.name for shard in shards for name in shard.ranges}
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}


@dataclass(frozen=True)
class Part:
    """Values of a tensor and where they begin, both in its `axes` (before neighbouring axes are joined)."""

    start: tuple[int, ...]
    values: np.ndarray[Any, Any]


class ShardFile:
    """One shard while it is written: values by `write`, then `settle` for finished ranges, in order."""

    def __init__(self, shard: Shard, path: Path) -> None:
        self.shard = shard
        self.path = path
        self._digest = hashlib.sha256()
        self._settled = 0
        self._file = path.open("w+b")
        self._file.write(shard.header)
        self._file.truncate(shard.size)
        self._file.flush()

    def write(self, tensor: Tensor, parts: Sequence[Part]) -> bool:
        """Write parts that follow one another on the last of the tensor's `axes` and agree on all others.

        A tensor's parts come in order, the last axis fastest. Where they cover whole rows, or are the first of their
        rows, nothing is read back; otherwise the rest of the rows is kept as it is in the file.

        Returns:
          Whether all values written are finite.
        """
        if len(tensor.axes) == 1 and len(parts) > 1:
            return min([self.write(tensor, [part]) for part in parts])
        begin = self.shard.ranges[tensor.name][0]
        bits, exponent = _EXPONENT[parts[0].values.dtype.name]
        extent = (*parts[0].values.shape[:-1], sum(part.values.shape[-1] for part in parts))
        whole = extent[1:] == tensor.axes[1:]
        first_of_row = not whole and not any(parts[0].start[1:])
        row = math.prod(tensor.axes[1:])
        step = max(1, _SCRATCH_BYTES // max(1, row * parts[0].values.itemsize))
        scratch = np.empty((min(step, extent[0]), row), bits)
        masked = np.empty_like(scratch)
        finite = True
        for first in range(0, extent[0], step):
            rows = scratch[: min(step, extent[0] - first)]
            offset = begin + (parts[0].start[0] + first) * row * rows.itemsize
            if first_of_row:
                rows[:] = 0
            elif not whole:
                _read_exactly(self._file.fileno(), rows, offset)
            window = rows.reshape(-1, *tensor.axes[1:])
            for part in parts:
                inner = [slice(a, a + n) for a, n in zip(part.start[1:], part.values.shape[1:], strict=True)]
                window[(slice(None), *inner)] = part.values.view(bits)[first : first + len(rows)]
            finite = finite and int(np.bitwise_and(rows, exponent, out=masked[: len(rows)]).max()) < exponent
            _write_exactly(self._file.fileno(), rows, offset)
        return finite

    def settle(self, upto: int) -> None:
        """Hash and flush to disk what lies before byte `upto`, which is not written again."""
        buffer = np.empty(_READ_BYTES, np.uint8)
        while self._settled < upto:
            piece = buffer[: upto - self._settled]
            _read_exactly(self._file.fileno(), piece, self._settled)
            self._digest.update(piece)
            self._settled += len(piece)
        os.fdatasync(self._file.fileno())

    def finish(self) -> str:
        """Settle the rest and close; the file's sha256."""
        self.settle(self.shard.size)
        os.fsync(self._file.fileno())
        self.close()
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()


def _read_exactly(file: int, target: np.ndarray[Any, Any], offset: int) -> None:
    """Fill an array from a file; the file is long enough by construction."""
    view = memoryview(target).cast("B")
    done = 0
    while done < len(view):
        count = os.preadv(file, [view[done:]], offset + done)
        if not count:
            raise OSError(f"the file ends at byte {offset + done}")
        done += count


def _write_exactly(file: int, source: np.ndarray[Any, Any], offset: int) -> None:
    view = memoryview(source).cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(file, view[done:], offset + done)


def _shard(name: str, tensors: Sequence[Tensor], code: str, dtype: np.dtype[Any]) -> Shard:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ranges: dict[str, tuple[int, int]] = {}
    position = 0
    for tensor in tensors:
        end = position + math.prod(tensor.shape) * dtype.itemsize
        entries[tensor.name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [position, end]}
        ranges[tensor.name] = (position, end)
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return Shard(name, header, {n: (a + len(header), b + len(header)) for n, (a, b) in ranges.items()})
