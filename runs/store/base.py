"""The only way to the small files of a run, on a folder or in a bucket, with create-if-absent and compare-and-swap.

Every process that has to do with a run meets the others here: there is no server of our own, so the storage is what
decides who was first. `open_store` gives a `Store` for a path (store_posix.py) or a ``gs://`` URI (store_gcs.py). Bulk
data (checkpoints, exports) does not come this way.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ..errors import BadInput

TEMPORARY = ".tmp-"
"""What the last part of a name of our own unfinished business begins with; listings leave such names out."""


@dataclass(frozen=True)
class Item:
    """One small file as it was read: its bytes, its generation (opaque) and the storage's time of its last write."""

    data: bytes
    generation: str
    updated: datetime


@dataclass(frozen=True)
class Entry:
    """One line of a listing; ``size`` in bytes, ``digest`` = ``crc32c:<base64>`` in a bucket and None on a folder."""

    name: str
    size: int
    generation: str
    updated: datetime
    digest: str | None


class Store(Protocol):
    """Small files by name: a relative POSIX path such as ``events/x.json``.

    A generation is an opaque string that names one write of one name. Times are the storage's own clock, UTC.
    Every call may raise `Unreachable` (the storage did not answer in time: unknown, not lost) and `BadInput` (a name
    that leaves the root, a bucket that does not exist, a permission that is missing).
    """

    @property
    def uri(self) -> str:
        """The root, as a ``gs://`` URI or an absolute path, without a slash at its end."""

    def read(self, name: str) -> Item:
        """The file, whole. Raises NotFound."""

    def create(self, name: str, data: bytes) -> str:
        """Write only if there is no such file and return its generation. Raises Exists."""

    def replace(self, name: str, data: bytes, generation: str) -> str:
        """Write only over that generation and return the new one. Raises Changed, also when the file is gone."""

    def put(self, name: str, data: bytes) -> str:
        """Write, whatever is there, and return the generation."""

    def list(self, prefix: str = "") -> list[Entry]:
        """Every file whose name begins with `prefix` (a string, not a folder), with subfolders, sorted by name."""

    def delete(self, name: str, generation: str | None = None) -> None:
        """Delete; a missing file is fine. With a generation: only that one, and a missing or other one is Changed."""

    def digest(self, name: str) -> str:
        """Digest of the stored bytes: ``crc32c:<base64>``, kept by the bucket; ``sha256:<hex>``, read from the folder.

        Raises NotFound."""

    def now(self) -> datetime:
        """The storage's clock: the time of a file that was written, and removed, for this question."""


def check_name(name: str) -> str:
    """Return the name if it is a relative POSIX path that stays below the root and is not one of our hidden ones.

    Raises:
      BadInput: it is not.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or any(c in name for c in "\0\r\n"):
        raise BadInput(f"{name!r} is not the name of a file of a run; give a relative path without '.' and '..'")
    if parts[-1].startswith(TEMPORARY):
        raise BadInput(f"{name!r}: names that begin with {TEMPORARY!r} are the store's own; choose another")
    return name


def is_listed(name: str) -> bool:
    """Whether a stored name is a file of the user's: neither hidden nor a bucket's stand-in for a folder."""
    last = name.rpartition("/")[2]
    return bool(last) and not last.startswith(TEMPORARY)


def new_id() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex
