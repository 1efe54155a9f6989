"""The store in a Google Cloud Storage bucket: compare-and-swap compares the generations of objects.

A request may fail in three ways. It is refused for its rate (429): try again. Its answer is lost (5xx, a broken
connection): it may have been carried out. Try again; if that finds the object changed, read the object: if it carries
the id of this write, the first try had succeeded. There is no answer until the deadline: raise `Unreachable`. The
retries of Google's client are off, because they cannot tell the second case from a conflict.

Preconditions: https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import functools
import mimetypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import storage  # type: ignore[import-untyped,attr-defined,unused-ignore]
from google.cloud.storage.exceptions import DataCorruption
from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_exponential_jitter
from tenacity.wait import wait_base

from ..errors import BadInput, Changed, ElasticTPUError, Exists, NoBucket, NotFound, Unreachable
from .base import CHUNK, LARGEST, TEMPORARY, Entry, Item, check_name, is_listed, new_id, too_large

T = TypeVar("T")

WRITE_ID = "elastic-tpu-write"
"""Custom metadata of an object: the id of its write. Bytes cannot identify a write: two runs may write the same."""

_LOGIN = "log in with `gcloud auth application-default login`, or give the pod a service account (Workload Identity)"
_BACK_OFF = wait_exponential_jitter(initial=0.5, max=8.0, jitter=0.5)
_REQUEST_SECONDS = 30.0


def connect() -> storage.Client:
    """This process's client with the application's default credentials; anonymous when STORAGE_EMULATOR_HOST is set.

    All stores share it: a triggerer watches hundreds of runs. It is safe to share between threads, and not across a
    fork: https://cloud.google.com/python/docs/reference/storage/latest (multiprocessing).

    Raises:
      BadInput: there are no credentials.
    """
    surroundings = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS")
    return _client(os.getpid(), *(os.environ.get(name) for name in surroundings))


@functools.lru_cache(maxsize=2)
def _client(*key: object) -> storage.Client:
    del key
    try:
        # Objects need no project, and a missing one would fail here.
        return storage.Client(project="none")
    except auth.DefaultCredentialsError as error:
        raise BadInput(f"no Google credentials: {error}; {_LOGIN}") from error


def _media_type(name: str) -> str:
    """The media type of a file, so that a browser shows report.html and logs instead of downloading them."""
    unknown = "text/plain" if name.endswith(".log") else "application/octet-stream"
    return mimetypes.guess_type(name)[0] or unknown


class GcsStore:
    """A store below ``gs://bucket/prefix``."""

    def __init__(
        self,
        client: storage.Client,
        bucket: str,
        prefix: str = "",
        *,
        deadline: float = 60.0,
        back_off: wait_base = _BACK_OFF,
    ) -> None:
        self._client = client
        self._bucket = client.bucket(bucket)
        self._prefix = f"{prefix}/" if prefix else ""
        self._deadline = deadline
        self._back_off = back_off
        self._bucket_seen = False

    @property
    def uri(self) -> str:
        return f"gs://{self._bucket.name}/{self._prefix}".rstrip("/")

    def read(self, name: str, largest: int = LARGEST) -> Item:
        key = self._key(name)

        def attempt(timeout: float, _: bool) -> Item:
            while True:
                blob = self._bucket.blob(key)
                blob.reload(timeout=timeout, retry=None)
                if blob.size and blob.size > largest:
                    raise too_large(f"{self.uri}/{name}", blob.size, largest)
                # Pinned, so that the bytes are of this generation. NotFound: it was overwritten meanwhile; read again.
                pinned = self._bucket.blob(key, generation=blob.generation)
                with suppress(api.NotFound):
                    data = pinned.download_as_bytes(timeout=timeout, retry=None)
                    return Item(data, str(blob.generation), blob.updated)

        return self._call_object(name, attempt)

    def read_from(self, name: str, start: int) -> bytes:
        key = self._key(name)

        def attempt(timeout: float, _: bool) -> bytes:
            blob = self._bucket.blob(key)
            blob.reload(timeout=timeout, retry=None)
            if start >= (blob.size or 0):
                return b""
            last = start + CHUNK - 1
            return bytes(blob.download_as_bytes(start=start, end=last, timeout=timeout, retry=None))

        return self._call_object(name, attempt)

    def create(self, name: str, data: bytes) -> str:
        conflict = Exists(f"{self.uri}/{name} exists already")
        return str(self._write(name, self._key(name), data, 0, conflict).generation)

    def replace(self, name: str, data: bytes, generation: str) -> str:
        conflict = Changed(f"{self.uri}/{name}: generation {generation} is gone; read it again")
        return str(self._write(name, self._key(name), data, _number(generation, conflict), conflict).generation)

    def put(self, name: str, data: bytes) -> str:
        return str(self._write(name, self._key(name), data, None, None).generation)

    def list(self, prefix: str = "") -> list[Entry]:
        def attempt(timeout: float, _: bool) -> list[Entry]:
            blobs = self._client.list_blobs(
                self._bucket,
                prefix=self._prefix + prefix,
                fields="items(name,size,generation,updated,crc32c),nextPageToken",
                timeout=timeout,
                retry=None,
            )
            return [self._entry(blob) for blob in blobs if is_listed(blob.name)]

        try:
            return sorted(self._call(prefix, attempt), key=lambda entry: entry.name)
        except api.NotFound as error:
            raise self._no_bucket() from error

    def delete(self, name: str, generation: str | None = None) -> None:
        key = self._key(name)
        conflict = Changed(f"{self.uri}/{name}: generation {generation} is gone; nothing was deleted")
        match = None if generation is None else _number(generation, conflict)

        def attempt(timeout: float, lost: bool) -> None:
            try:
                self._bucket.blob(key).delete(if_generation_match=match, timeout=timeout, retry=None)
            except (api.NotFound, api.PreconditionFailed) as error:
                if match is not None and not (lost and isinstance(error, api.NotFound)):
                    raise conflict from error

        self._call(name, attempt)

    def digest(self, name: str) -> str:
        blob = self._bucket.blob(self._key(name))
        self._call_object(name, lambda timeout, _: blob.reload(timeout=timeout, retry=None))
        return f"crc32c:{blob.crc32c}"

    def now(self) -> datetime:
        key = self._prefix + TEMPORARY + new_id()
        updated: datetime = self._write("", key, b"", None, None).updated
        with suppress(Unreachable, api.NotFound):
            self._call("", lambda timeout, _: self._bucket.blob(key).delete(timeout=timeout, retry=None))
        return updated

    def _key(self, name: str) -> str:
        return self._prefix + check_name(name)

    def _entry(self, blob: Any) -> Entry:
        digest = f"crc32c:{blob.crc32c}" if blob.crc32c else None
        name = blob.name.removeprefix(self._prefix)
        return Entry(name, blob.size, str(blob.generation), blob.updated, digest)

    def _write(self, name: str, key: str, data: bytes, match: int | None, conflict: ElasticTPUError | None) -> Any:
        """Upload under the precondition that the generation is `match` (0: no object, None: any); return the blob.

        Raises:
          the error `conflict`: the precondition does not hold.
        """
        write_id = new_id()

        def attempt(timeout: float, lost: bool) -> Any:
            blob = self._bucket.blob(key)
            blob.metadata = {WRITE_ID: write_id}
            blob.cache_control = "no-store"  # otherwise a public object is cached for an hour
            try:
                blob.upload_from_string(data, _media_type(name), if_generation_match=match, timeout=timeout, retry=None)
            except api.PreconditionFailed as error:
                found = self._bucket.get_blob(key, timeout=timeout, retry=None) if lost else None
                if found and (found.metadata or {}).get(WRITE_ID) == write_id:
                    return found
                assert conflict is not None
                raise conflict from error
            return blob

        try:
            return self._call(name, attempt)
        except api.NotFound as error:
            raise self._no_bucket() from error

    def _call_object(self, name: str, attempt: Callable[[float, bool], T]) -> T:
        """As `_call`, for an object that should exist. Raises NotFound."""
        try:
            return self._call(name, attempt)
        except api.NotFound:
            if not self._bucket_seen:
                # A missing bucket is a 404 too; listing it fails, and names it.
                self.list(TEMPORARY)
            raise NotFound(f"{self.uri}/{name}: there is no such object") from None

    def _call(self, name: str, attempt: Callable[[float, bool], T]) -> T:
        """Call ``attempt(timeout, lost)`` until it is answered, or until the deadline.

        Args:
          attempt: makes the request, within `timeout` seconds; `lost`: an earlier attempt may have been carried out.
        """
        start = time.monotonic()
        lost = False

        def once() -> T:
            nonlocal lost
            left = self._deadline - (time.monotonic() - start)
            try:
                return attempt(max(1.0, min(_REQUEST_SECONDS, left)), lost)
            except Exception as error:
                lost = lost or (_is_transient(error) and not _is_throttled(error))
                raise

        retrying = Retrying(
            retry=retry_if_exception(_is_transient),
            stop=stop_before_delay(self._deadline),
            wait=self._back_off,
            reraise=True,
        )
        with self._named(name):
            result = retrying(once)
        self._bucket_seen = True
        return result

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Turn an error of Google's client into one that names the object and the cure; 404 is left to the caller."""
        where = f"{self.uri}/{name}".rstrip("/")
        try:
            yield
        except (ElasticTPUError, api.NotFound):
            raise
        except Exception as error:
            if _is_transient(error):
                waited = f"did not answer within {self._deadline:g} s"
                raise Unreachable(f"{where}: Google Cloud Storage {waited}: {error}") from error
            if isinstance(error, api.Forbidden):
                cure = (
                    f"grant this account roles/storage.objectUser on bucket {self._bucket.name} "
                    "(gcloud storage buckets add-iam-policy-binding), or correct the bucket's name"
                )
                raise BadInput(f"{where}: access to bucket {self._bucket.name} is refused: {error}; {cure}") from error
            if isinstance(error, (api.Unauthorized, auth.GoogleAuthError)):
                _client.cache_clear()  # the next store of this process finds the new login
                raise BadInput(f"{where}: bucket {self._bucket.name} wants a login: {error}; {_LOGIN}") from error
            if isinstance(error, api.ClientError):
                raise BadInput(f"{where}: Google Cloud Storage refused the request: {error}") from error
            raise

    def _no_bucket(self) -> NoBucket:
        bucket = self._bucket.name
        cure = f"create it (gcloud storage buckets create gs://{bucket} --location=...) or correct its name"
        return NoBucket(f"{self.uri}: there is no bucket {bucket}; {cure}")


def _number(generation: str, conflict: ElasticTPUError) -> int:
    """A generation as Google's number; never 0, which would mean "only if absent". Raises `conflict`."""
    if not generation.isdecimal() or int(generation) == 0:
        raise conflict
    return int(generation)


def _is_throttled(error: BaseException) -> bool:
    """Whether a request was refused for its rate, and so was not carried out."""
    # Project quotas answer 403: https://cloud.google.com/storage/docs/json_api/v1/status-codes
    limited = isinstance(error, api.Forbidden) and "ratelimitexceeded" in str(error).lower()
    return limited or isinstance(error, api.TooManyRequests)


def _is_transient(error: BaseException) -> bool:
    """Whether another try may succeed: refused for its rate, an error of the server, no answer or half of one."""
    if isinstance(error, auth.RefreshError):
        # In a pod that has just started the metadata server does not answer yet.
        return error.retryable or isinstance(error.__cause__, auth.TransportError)
    if isinstance(error, api.GoogleAPICallError):
        return _is_throttled(error) or isinstance(error, api.ServerError) or error.code == 408
    broken = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return isinstance(error, (*broken, ConnectionError, auth.TransportError, DataCorruption))
