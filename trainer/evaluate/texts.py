"""Documents of an evaluation from parquet or array_record files, on a folder or ``gs://``.

A file is used as a whole: its metadata gives the number of documents before it is read, and a file that ends earlier is
an error. No file that a pattern matches is skipped.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from etils import epath
from google.protobuf.message import DecodeError

from ...runs.errors import BadInput, Problem
from ...runs.spec.file_contents import unreachable
from ...runs.store import records

PARQUET, ARRAY_RECORD = (".parquet",), (".array_record", ".arrayrecord")
_ROWS, _READ_BYTES = 1024, 4 * 2**20


@dataclass(frozen=True)
class TextFile:
    """A file, and the number of documents by its metadata."""

    path: str
    documents: int


def find_files(patterns: Sequence[str]) -> tuple[TextFile, ...]:
    """The files that the patterns match, sorted by name.

    Raises:
      BadInput: a pattern matches nothing, or a file is of another kind, empty or unreadable; all of them.
      OSError: a file cannot be reached now; a new process may succeed.
    """
    paths: set[str] = set()
    problems = []
    for pattern in patterns:
        found = _glob(pattern)
        paths.update(found)
        if not found:
            problems.append(Problem("data.eval", pattern, "matches no file"))
    files = []
    for path in sorted(paths):
        try:
            file = TextFile(path, _count(path))
        except BadInput as error:
            problems += error.problems
        except Exception as error:
            if unreachable(error):
                raise
            problems.append(Problem("data.eval", path, f"cannot be read: {error}"))
        else:
            files.append(file)
            if not file.documents:
                problems.append(Problem("data.eval", path, "is empty: it holds no documents"))
    if problems or not files:
        raise BadInput(problems or [Problem("data.eval", None, "names no file")])
    return tuple(files)


def read_texts(files: Sequence[TextFile], column: str) -> Iterator[str]:
    """All documents, file after file.

    Raises:
      BadInput: a file has no such text column, holds a null, or ends before its number of documents.
      OSError: as `find_files`.
    """
    for file in files:
        read = 0
        try:
            for text in _parquet(file.path, column) if file.path.endswith(PARQUET) else _records(file.path, column):
                if not isinstance(text, str):
                    raise BadInput(
                        [Problem("data.eval", file.path, f"document {read} of {column!r} is not text: {text!r}")]
                    )
                read += 1
                yield text
        except (pa.ArrowException, OSError, ValueError, RuntimeError, IndexError, DecodeError) as error:
            if unreachable(error):
                raise
            cure = f"broke off after {read} of {file.documents} documents: {error}"
            raise BadInput([Problem("data.eval", file.path, cure)]) from error
        if read != file.documents:
            raise BadInput(
                [Problem("data.eval", file.path, f"has {read} documents, its metadata says {file.documents}")]
            )


def digest(files: Sequence[TextFile]) -> str:
    """sha256 over the files' contents; their names, folders and order do not matter."""
    contents = []
    for file in files:
        content = hashlib.sha256()
        with epath.Path(file.path).open("rb") as stream:
            while data := stream.read(_READ_BYTES):
                content.update(data)
        contents.append(content.hexdigest())
    return hashlib.sha256(records.canonical(sorted(contents))).hexdigest()


def _glob(pattern: str) -> list[str]:
    folder, _, name = pattern.rpartition("/")
    if "*" in folder:
        raise BadInput([Problem("data.eval", pattern, "only the last part of a pattern may hold `*`")])
    if not any(letter in name for letter in "*?["):
        return [pattern] if epath.Path(pattern).exists() else []
    parent = epath.Path(folder or ("/" if pattern.startswith("/") else "."))
    return [str(path) for path in parent.glob(name)] if parent.exists() else []


def _count(path: str) -> int:
    if path.endswith(PARQUET):
        with epath.Path(path).open("rb") as stream:
            return int(pq.read_metadata(stream).num_rows)
    if path.endswith(ARRAY_RECORD):
        with _array_record(path) as reader:
            return int(reader.num_records())
    raise BadInput([Problem("data.eval", path, f"must end with one of {', '.join(PARQUET + ARRAY_RECORD)}")])


def _parquet(path: str, column: str) -> Iterator[Any]:
    with epath.Path(path).open("rb") as stream, pq.ParquetFile(stream) as file:
        if column not in file.schema_arrow.names:
            cure = f"has no column {column!r}, only {file.schema_arrow.names}; set data.text"
            raise BadInput([Problem("data.eval", path, cure)])
        for batch in file.iter_batches(_ROWS, columns=[column]):
            yield from batch.column(0).to_pylist()


def _records(path: str, column: str) -> Iterator[Any]:
    """Texts of tf.train.Example records, parsed by MaxText's own message type, as its training reads them."""
    from maxtext.input_pipeline.protos import example_pb2

    with _array_record(path) as reader:
        for index in range(reader.num_records()):
            example = example_pb2.Example.FromString(reader.read([index])[0])
            if column not in example.features.feature:
                cure = (
                    f"record {index} has no feature {column!r}, only {sorted(example.features.feature)}; set data.text"
                )
                raise BadInput([Problem("data.eval", path, cure)])
            values = example.features.feature[column].bytes_list.value
            yield values[0].decode() if len(values) == 1 else None


@contextmanager
def _array_record(path: str) -> Iterator[Any]:
    """A reader of one file; the library reads local files only, so one on a bucket is copied."""
    try:
        from array_record.python.array_record_module import ArrayRecordReader  # type: ignore[import-untyped]
    except ImportError as error:
        raise BadInput([Problem("data.eval", path, "needs the array_record package, or parquet files")]) from error
    with tempfile.TemporaryDirectory(prefix="elastic-tpu-evaluate-") as temporary:
        if path.startswith("gs://"):
            path = str(epath.Path(path).copy(epath.Path(temporary) / "records"))
        reader = ArrayRecordReader(path)
        try:
            yield reader
        finally:
            with suppress(RuntimeError):  # it raises again what reading raised
                reader.close()
