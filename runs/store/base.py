"""What a store of small files promises, and what its two implementations share: posix.py (a folder), gcs.py (a bucket).

All reads and writes of a run's small files go through a store. There is no server of our own, so the processes of a run
coordinate by the store alone: create-if-absent and compare-and-swap decide which of them was first. Bulk data
(checkpoints, exports) does not go through it. `open_store` (open.py) returns the store of a path or a URI.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from ..errors import BadInput, Damaged, Unreachable

LARGEST = 16 * 2**20
"""Bytes of a small file, at most: none of a run comes near, so a larger one is not read but refused."""

CHUNK = 2**20
"""Bytes that `Store.read_from` returns at most."""

TEMPORARY = ".tmp-"
"""Prefix of the store's own temporary files (of the last part of a name); listings leave them out."""


@dataclass(frozen=True)
class Item:
    """One small file as it was read: bytes, generation (opaque), time of the last write by the storage's clock."""

    data: bytes
    generation: str
    updated: datetime


@dataclass(frozen=True)
class Entry:
    """One file of a listing; ``size`` in bytes, ``digest`` ``crc32c:<base64>`` in a bucket and None in a folder."""

    name: str
    size: int
    generation: str
    updated: datetime
    digest: str | None


class Store(Protocol):
    """Small files by name: a relative POSIX path such as ``events/x.json``.

    A generation is an opaque string that identifies one write of one file. Times are by the storage's clock, in UTC.
    Every call may raise `Unreachable` (the storage did not answer in time; whether a write was done is not known) and
    `BadInput` (a name outside the root, a bucket that does not exist, a missing permission). The root, if it is a
    folder, is made by the first write; one that was there and is deleted is not made again: writes raise `NotFound`.
    """

    @property
    def uri(self) -> str:
        """The root, as a ``gs://`` URI or an absolute path, without a slash at its end."""

    def read(self, name: str, largest: int = LARGEST) -> Item:
        """The whole file.

        Raises:
          NotFound: there is none.
          Damaged: it has more than `largest` bytes, is no regular file, or a link to a place outside the root; not
            read.
        """

    def read_from(self, name: str, start: int) -> bytes:
        """Up to `CHUNK` bytes of a log from byte `start` on; empty at its end. Raises what `read` raises."""

    def create(self, name: str, data: bytes) -> str:
        """Write only if there is no such file; return its generation. Raises Exists."""

    def replace(self, name: str, data: bytes, generation: str) -> str:
        """Write only over this generation; return the new one. Raises Changed, also when the file is gone."""

    def put(self, name: str, data: bytes) -> str:
        """Write, whether or not there is such a file; return the generation."""

    def list(self, prefix: str = "") -> list[Entry]:
        """All files whose name begins with `prefix` (text, not a folder), those in subfolders too, sorted by name."""

    def delete(self, name: str, generation: str | None = None) -> None:
        """Delete; a missing file is no error. With a generation: only that one; raises Changed if it is not there."""

    def digest(self, name: str) -> str:
        """Digest of the stored bytes: ``crc32c:<base64>``, kept by the bucket; ``sha256:<hex>``, read from the folder.

        Raises NotFound.
        """

    def now(self) -> datetime:
        """The time by the storage's clock: that of a temporary file, which is written and removed for it."""


def too_large(uri: str, size: int, largest: int) -> Damaged:
    """The error for a file that no small file of a run can be; sizes in bytes."""
    cure = "elastic-tpu did not write it; look at it, and move it away"
    return Damaged(f"{uri}: has {size:,} bytes, a file of this kind at most {largest:,}: {cure}")


def time_to_show(store: Store) -> datetime:
    """The time by the storage's clock; by this machine's where this user or a full disk allows no write.

    For what is shown to people. What is decided, whether a claim is stale among it, goes by `Store.now` alone.
    """
    try:
        return store.now()
    except (BadInput, Unreachable):
        return datetime.now(UTC)


def check_name(name: str) -> str:
    """Return the name unchanged if it is a relative POSIX path below the root and not that of a temporary file.

    Raises:
      BadInput: it is not.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or any(c in name for c in "\0\r\n"):
        raise BadInput(f"{name!r} is not the name of a file of a run; give a relative path without '.' and '..'")
    if parts[-1].startswith(TEMPORARY):
        raise BadInput(f"{name!r}: names that begin with {TEMPORARY!r} are reserved for the store; choose another")
    return name


def is_listed(name: str) -> bool:
    """Whether a listing shows a stored name: not temporary files, nor the empty objects that stand for folders."""
    last = name.rpartition("/")[2]
    return bool(last) and not last.startswith(TEMPORARY)


def new_id() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex
