"""Opens the store at a path or a URI; imports only the implementation that it needs."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadInput
from .base import Store


def open_store(uri: str, *, deadline: float = 60.0) -> Store:
    """The store at a local path or at ``gs://bucket[/prefix]``. Nothing is created, and no request is made yet.

    Args:
      uri: the store's root; a folder need not exist.
      deadline: seconds after which a call to a bucket that does not answer raises `Unreachable`.

    Raises:
      BadInput: another scheme, no bucket, or no Google credentials.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        if not uri:
            raise BadInput("the URI of the run is empty; give a folder or gs://bucket/prefix")
        from .posix import PosixStore

        return PosixStore(Path(uri).expanduser().absolute())
    bucket, _, prefix = rest.partition("/")
    if scheme != "gs" or not bucket:
        raise BadInput(f"{uri!r} is not a place for a run; give a folder or gs://bucket/prefix")
    from .gcs import GcsStore, connect

    client = connect()
    try:
        return GcsStore(client, bucket, prefix.strip("/"), deadline=deadline)
    except ValueError as error:  # the library refuses the bucket's name
        raise BadInput(f"{uri!r} is not a place for a run: {error}") from error
