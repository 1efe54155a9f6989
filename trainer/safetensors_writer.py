"""Safetensors files laid out before any value is known, and filled block by block in any order.

All shapes are known from the architecture, so headers, shards and the index are fixed first; values then go straight to
their place through small memory-mapped windows. Nothing of a model's size is ever held. Tensors lie in the order in
which they are produced, so that a shard is finished, hashed and sent away while the next one is filled.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
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
# A window of a tensor that is mapped at once; it counts as resident while it is written.
WINDOW_BYTES = 16 * 2**20
_READ_BYTES = 4 * 2**20


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


class ShardFile:
    """One shard while it is written: values by `write`, then `settle` for each finished range, in order of the file."""

    def __init__(self, shard: Shard, path: Path) -> None:
        self.shard = shard
        self.path = path
        self._digest = hashlib.sha256()
        self._settled = 0
        self._file = path.open("w+b")
        self._file.write(shard.header)
        self._file.truncate(shard.size)
        self._file.flush()

    def write(self, tensor: Tensor, start: Sequence[int], values: np.ndarray[Any, Any]) -> None:
        """Put `values` at `start` of the tensor, in its `axes` (before neighbouring axes are joined)."""
        begin = self.shard.ranges[tensor.name][0]
        row = math.prod(tensor.axes[1:]) * values.itemsize
        step = max(1, WINDOW_BYTES // max(1, row))
        inner = tuple(slice(a, a + n) for a, n in zip(start[1:], values.shape[1:], strict=True))
        for first in range(0, values.shape[0], step):
            part = values[first : first + step]
            offset = begin + (start[0] + first) * row
            aligned = offset - offset % mmap.ALLOCATIONGRANULARITY
            with mmap.mmap(self._file.fileno(), offset - aligned + len(part) * row, offset=aligned) as window:
                rows = np.ndarray((len(part), *tensor.axes[1:]), values.dtype, window, offset - aligned)
                rows[(slice(None), *inner)] = part
                del rows  # the window cannot be unmapped while an array looks into it

    def settle(self, upto: int) -> None:
        """Hash and flush to disk what lies before byte `upto`, which is not written again."""
        position = self._settled
        while position < upto:
            data = os.pread(self._file.fileno(), min(_READ_BYTES, upto - position), position)
            if not data:
                raise OSError(f"{self.path}: ends at byte {position}, {upto} were written")
            self._digest.update(data)
            position += len(data)
        self._settled = position
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
