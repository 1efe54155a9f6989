"""A stored file of any size as a file object that reads only the parts that are asked for."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def open_for_reading(read_from: Callable[[int], bytes], size: int) -> IO[bytes]:
    """A seekable file object; each of its reads may raise what `read_from` raises.

    Args:
      read_from: some bytes of the file, from a byte on (`Store.read_from` of it).
      size: bytes of the file, as a listing gave them.
    """
    return io.BufferedReader(_Reader(read_from, size))


class _Reader(io.RawIOBase):
    """Keeps the part that it read last: parsers read in small steps, and a request takes long."""

    def __init__(self, read_from: Callable[[int], bytes], size: int) -> None:
        super().__init__()
        self._read_from, self._size = read_from, size
        self._at = 0
        self._part, self._part_at = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self._size or not len(view):
            return 0
        if not self._part_at <= self._at < self._part_at + len(self._part):
            self._part, self._part_at = self._read_from(self._at), self._at
        begin = self._at - self._part_at
        read = self._part[begin : begin + len(view)]
        view[: len(read)] = read
        self._at += len(read)
        return len(read)
