"""Whether a failure of training comes from its input: looks into the data and the tokenizer, once training has failed.

MaxText and its readers raise errors of many types for bad data, most of which name neither file nor column.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import IO

from etils import epath

from ...runs.errors import BadInput, Problem
from ...runs.spec import file_contents
from ...runs.spec.plan import NOT_FILES, data_kind
from ...runs.spec.run_spec import RunSpec
from ..export.tokenizer_files import find_tokenizer

_SECONDS = 60.0  # for reading files from end to end; slices are held meanwhile
_ROWS = 1024


def may_come_from_input(kind: str, error: BaseException) -> bool:
    """Whether it is worth a look. `kind`: as in `failure_policy.Failure`."""
    return kind == "other" or (
        kind == "storage" and isinstance(error, OSError) and not file_contents.unreachable(error)
    )


def find_bad_input(spec: RunSpec, seconds: float = _SECONDS) -> BadInput | None:
    """What is wrong with the training data and the tokenizer; None if nothing is found in this time.

    Raises:
      OSError: the files cannot be reached now.
    """
    found: list[Problem] = []
    try:
        find_tokenizer(spec.model.tokenizer)
    except BadInput as error:
        found += error.problems
    pattern = spec.data.train
    if pattern not in NOT_FILES:
        files, kind = _files(pattern), data_kind(pattern)[1] or "json"
        column = file_contents.Column(spec.data.text, spec.train.maxtext.get("tokenize_train_data") is not False)
        if not files:
            found.append(Problem("data.train", pattern, "matches no file"))
        looked_into = files if kind != "arrayrecord" else [path for path in files if "://" not in path]
        wrong = file_contents.data_problems("data.train", kind, looked_into, column, _open)
        found += wrong or list(_first_bad_row(kind, files, column, time.monotonic() + seconds))
    return BadInput(found) if found else None


def _files(pattern: str) -> list[str]:
    folder, _, name = pattern.rpartition("/")
    return sorted(str(path) for path in epath.Path(folder or "/").glob(name))


def _open(path: str) -> IO[bytes]:
    stream: IO[bytes] = epath.Path(path).open("rb")
    return stream


def _first_bad_row(kind: str, files: list[str], column: file_contents.Column, deadline: float) -> Iterator[Problem]:
    """The first row, of all files in their order, that is no text or cannot be read."""
    for path in files if column.text and kind in ("parquet", "json") else ():
        with _open(path) as stream:
            why = (_row_of_parquet if kind == "parquet" else _line_of_json)(stream, column.name, deadline)
        if why:
            yield Problem("data.train", path, why)
            return


def _row_of_parquet(stream: IO[bytes], column: str, deadline: float) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    row = 0
    try:
        with parquet.ParquetFile(stream, pre_buffer=False) as file:
            for batch in file.iter_batches(_ROWS, columns=[column]):
                texts = batch.column(0)
                if texts.null_count:
                    at = row + texts.is_null().index(True).as_py()
                    return f"column {column!r} holds a null in row {at}; leave out such rows"
                row += len(texts)
                if time.monotonic() > deadline:
                    break
    except (pa.ArrowException, OSError) as error:
        if file_contents.unreachable(error):
            raise
        return f"cannot be read after row {row}: {str(error)[:200]}; write it again, or leave it out of the pattern"
    return ""


def _line_of_json(stream: IO[bytes], column: str, deadline: float) -> str:
    for number, line in enumerate(stream, 1):
        if time.monotonic() > deadline or line.lstrip().startswith(b"["):
            break
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            return f"line {number} is not JSON ({error}); correct it"
        if not isinstance(row, dict) or not isinstance(row.get(column), str):
            return f"line {number} has no text in field {column!r}; correct it, or leave it out"
    return ""
