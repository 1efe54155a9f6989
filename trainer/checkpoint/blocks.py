"""Reading stored arrays a block of whole chunks at a time, ahead of the caller and within bounded memory.

A stored chunk is decompressed whole whatever part of it is wanted, and a scanned array holds all layers in each chunk:
reading layer by layer would decompress everything once a layer. So blocks follow the stored chunk grid, each is read
once, and the next ones are decompressed in the background while the caller works on this one.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorstore as ts

from .arrays import CheckpointTree, read_error
from .layout import LeafPath

# A block is grown to about this many stored bytes where chunks are smaller, so that Python's share stays small.
BLOCK_BYTES = 48 * 2**20
# Stored bytes that may be read at once; one block is always read, however large its chunk is.
READ_AHEAD_BYTES = 160 * 2**20  # two embedding chunks of a 0.6B model on eight devices
_CACHE_LINE = 64
# glibc's mallopt: names of its parameters.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


@dataclass(frozen=True)
class Block:
    """A rectangle of a stored array, aligned with its chunk grid: [start, stop) on each axis."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extent on each axis."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))


def blocks(
    shape: Sequence[int],
    chunk: Sequence[int],
    itemsize: int,
    order: Sequence[int],
    limit: int = BLOCK_BYTES,
) -> Iterator[Block]:
    """Cover an array by blocks of whole stored chunks.

    Args:
      shape: the array's shape.
      chunk: the shape of a stored chunk.
      itemsize: stored bytes an element.
      order: all axes. Along the first one blocks follow one another fastest, and small chunks are joined first, while
        a block stays within `limit` bytes.
    """
    extent = [min(c, s) for c, s in zip(chunk, shape, strict=True)]
    for axis in order:
        room = limit // max(1, math.prod(extent) * itemsize)
        extent[axis] = min(shape[axis], extent[axis] * max(1, room))
    slowest_first = tuple(reversed(order))
    for corner in itertools.product(*(range(0, shape[axis], extent[axis]) for axis in slowest_first)):
        start = tuple(corner[slowest_first.index(axis)] for axis in range(len(shape)))
        yield Block(start, tuple(min(a + e, s) for a, e, s in zip(start, extent, shape, strict=True)))


@dataclass(frozen=True)
class Read:
    """One block to read: the array's path, its open store, and where; `transposed` if columns will be walked down."""

    path: LeafPath
    store: Any
    block: Block
    transposed: bool


def read_ahead(
    tree: CheckpointTree, reads: Iterable[Read], dtype: np.dtype[Any] | None, limit: int = READ_AHEAD_BYTES
) -> Iterator[tuple[Read, np.ndarray[Any, Any]]]:
    """Read blocks in order, cast to `dtype` (None: as stored), decompressing the next ones in the background.

    Blocks that will be transposed have spread-out strides (see `spread`). Memory: a block takes its chunk's compressed
    and decompressed bytes while it is read, then its bytes in `dtype`.

    Raises:
      BadInput: a chunk is missing or damaged.
      Unreachable: the storage did not answer.
    """
    waiting = iter(reads)
    flying: deque[tuple[Read, np.ndarray[Any, Any], Any, int]] = deque()
    in_flight = 0
    upcoming = next(waiting, None)
    while upcoming is not None or flying:
        while upcoming is not None:
            size = math.prod(upcoming.block.shape) * upcoming.store.dtype.numpy_dtype.itemsize
            if flying and in_flight + size > limit:
                break
            allocate = spread if upcoming.transposed else np.empty
            target = allocate(upcoming.block.shape, dtype or upcoming.store.dtype.numpy_dtype)
            where = tuple(slice(a, b) for a, b in zip(upcoming.block.start, upcoming.block.stop, strict=True))
            source = ts.cast(upcoming.store, ts.dtype(target.dtype))[where]
            if source.rank:
                source = source.translate_to[(0,) * source.rank]
            flying.append((upcoming, target, ts.array(target).write(source), size))
            in_flight += size
            upcoming = next(waiting, None)
        read, target, future, size = flying.popleft()
        try:
            future.result()
        except Exception as error:
            raise read_error(tree, read.path, error) from error
        in_flight -= size
        yield read, target


def reads(path: LeafPath, store: Any, order: Sequence[int] = ()) -> Iterator[Read]:
    """All blocks of one array; `order` as for `blocks`, by default the last axis first as the array is stored."""
    stored = tuple(range(store.rank - 1, -1, -1))
    order = order or stored
    chunk = store.chunk_layout.read_chunk.shape or store.shape
    for block in blocks(store.shape, chunk, store.dtype.numpy_dtype.itemsize, order):
        yield Read(path, store, block, transposed=tuple(order) != stored)


def spread(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised array each of whose strides, but the innermost, is an odd number of cache lines.

    Walking down a column of an array whose rows are a power of two apart hits one set of the cache only, which makes a
    transposition three times slower; with odd strides a column spreads over all sets.
    """
    strides = [dtype.itemsize]
    for size in reversed(shape[1:]):
        lines = -(-size * strides[0] // _CACHE_LINE)
        strides.insert(0, (lines | 1) * _CACHE_LINE)
    if not shape:
        return np.empty((), dtype)
    return np.ndarray(tuple(shape), dtype, np.empty(max(1, shape[0] * strides[0]), np.uint8), 0, tuple(strides))


@contextmanager
def recycled_memory() -> Iterator[None]:
    """Make glibc keep freed blocks for the next chunk instead of returning them to the kernel.

    Every chunk is decompressed into tens of fresh megabytes, and the page faults of those cost as much as zstd itself:
    with this, decompression is twice as fast. Where the C library is another one, nothing happens.
    """
    mallopt = trim = None
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        mallopt, trim = libc.mallopt, libc.malloc_trim
    if mallopt is None or trim is None:
        yield
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**30)
    mallopt(_M_ARENA_MAX, 1)
    try:
        yield
    finally:
        mallopt(_M_MMAP_MAX, 65536)
        mallopt(_M_TRIM_THRESHOLD, 128 * 1024)
        mallopt(_M_ARENA_MAX, 0)
        trim(0)
