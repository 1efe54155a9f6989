"""What is in the input files of a run, as far as a little reading shows: data files and the tokenizer.

Each function returns problems and raises none of its own. What it needs is installed by the extra `trainer`, and is
imported when it is used; check `extras.installed` before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from ..errors import ElasticTPUError, Problem

Open = Callable[[str], IO[bytes]]
"""Opens a file for reading by its path or URI."""

READERS = {"parquet": "pyarrow", "arrayrecord": "array_record"}
"""The library that reads a kind of file; others need none."""

_ROWS = 64  # rows of a Parquet file whose text is looked at
SAMPLED = 32  # Parquet files whose text is looked at, and the last one; of the others only the footer, for speed
_BUFFER = 2**16  # bytes of a Parquet file that are read at once; without it a whole column of a row group is
_SHOWN = 10  # files of a data set whose problems are told
_LINE = 2**20  # bytes of a JSON file that are looked at
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".zip")  # the reader of JSON unpacks these


TOKENIZER = "tokenizer.json"
"""The file of a tokenizer's folder that holds it."""


@dataclass(frozen=True)
class Column:
    """What a run needs of its data: the column or feature of this name, which holds text, or else token ids."""

    name: str
    text: bool = True


def data_problems(field: str, kind: str, files: Sequence[str], column: Column, open_file: Open) -> list[Problem]:
    """Problems of all files of a data set, one a file.

    Args:
      field: the spec's field that names them.
      kind: parquet, arrayrecord, or json for everything else.
      open_file: for parquet and json; the library for array_record opens local files itself.

    Raises:
      OSError: a file cannot be reached; says nothing about what is in it.
    """
    found = []
    for index, file in enumerate(files):
        sampled = index < SAMPLED or index == len(files) - 1
        if why := data_problem(kind, file, column, open_file, sampled=sampled):
            found.append(Problem(field, file, why))
    return found


def data_problem(kind: str, file: str, column: Column, open_file: Open, *, sampled: bool = True) -> str:
    """Why a file of a data set cannot be used; empty if nothing shows.

    Args:
      kind, open_file: as for `data_problems`.
      sampled: look at the first rows as well, and not only at what a Parquet file's footer says.

    Raises:
      OSError: the file cannot be reached.
    """
    if kind == "parquet":
        return _parquet(file, column, open_file, sampled)
    return _array_record(file, column) if kind == "arrayrecord" else _json_lines(file, column, open_file)


def shown(found: Sequence[Problem], field: str, pattern: str) -> list[Problem]:
    """The problems of a data set that are told, and the number of the others."""
    more = len(found) - _SHOWN
    counted = [Problem(field, pattern, f"{more} more of its files cannot be used")] if more > 0 else []
    return [*found[:_SHOWN], *counted]


def _parquet(path: str, column: Column, open_file: Open, sampled: bool) -> str:
    """Why a Parquet file cannot be used; empty if nothing shows in its footer, nor, if `sampled`, in its first rows."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with open_file(path) as stream, parquet.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False) as file:
            if not file.metadata.num_rows:
                return "holds no rows; leave it out of the pattern"
            why = _parquet_column(file, column)
            return why or (_first_texts(file, column) if sampled and column.text else "")
    except (pa.ArrowException, OSError) as error:
        if unreachable(error):
            raise
        return f"is no readable Parquet file ({_first_line(error)}); write it again, or leave it out of the pattern"


def _parquet_column(file: Any, column: Column) -> str:
    from pyarrow import types

    schema = file.schema_arrow
    if column.name not in schema.names:
        return f"has no column {column.name!r}, only {', '.join(schema.names)}; set data.text"
    kind = schema.field(column.name).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not column.text:
        return ""
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        return f"column {column.name!r} is of type {kind}, not string; set data.text, or write it as text"
    if nulls := _nulls(file.metadata, column.name):
        return f"column {column.name!r} holds {nulls} nulls; leave out those rows"
    return ""


def _first_texts(file: Any, column: Column) -> str:
    batch = next(file.iter_batches(_ROWS, columns=[column.name]), None)
    texts = batch.column(0).to_pylist() if batch is not None else []
    if None in texts:  # a writer need not count them
        return f"column {column.name!r} holds a null in row {texts.index(None)}; leave out such rows"
    if not any(text.strip() for text in texts):
        return f"column {column.name!r} holds no text in its first {len(texts)} rows; set data.text, or leave it out"
    return ""


def _nulls(metadata: Any, column: str) -> int:
    """Nulls by the statistics in the footer; 0 where a writer left none."""
    at = [metadata.schema.column(i).path for i in range(metadata.num_columns)].index(column)
    counted = (metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups))
    return sum(s.null_count for s in counted if s is not None and s.has_null_count)


def _array_record(path: str, column: Column) -> str:
    """Why an ArrayRecord file cannot be used; empty if nothing shows in its index and its first record."""
    from array_record.python.array_record_module import ArrayRecordReader  # type: ignore[import-untyped]

    reader = ArrayRecordReader(path)
    try:
        if not reader.ok():
            return "is no readable ArrayRecord file; write it again, or leave it out of the pattern"
        if not reader.num_records():
            return "holds no records; leave it out of the pattern"
        record = reader.read([0])[0]
    except (RuntimeError, ValueError, IndexError) as error:
        return f"is no readable ArrayRecord file ({_first_line(error)}); write it again, or leave it out of the pattern"
    finally:
        with suppress(RuntimeError):  # it raises again what reading raised
            reader.close()
    names = [column.name, *({"text": ["messages"], "messages": ["text"]}.get(column.name, []))]  # as MaxText looks
    if not any(name.encode() in record for name in names):  # a tf.train.Example holds the names of its features
        return f"has no feature {column.name!r} in its first record; set data.text"
    return ""


def _json_lines(path: str, column: Column, open_file: Open) -> str:
    """Why a file of JSON lines cannot be used; empty if its first line is right, or is longer than what is read."""
    if path.endswith(_COMPRESSED):
        return ""
    with open_file(path) as stream:
        begin = stream.read(_LINE)
    line, ended, _ = begin.lstrip().partition(b"\n")
    cure = "files other than .parquet and .array_record are read as JSON lines; convert it"
    if not begin.strip():
        return "holds no text; leave it out of the pattern"
    if not line.startswith((b"{", b"[")):
        return f"does not begin with a line of JSON; {cure}"
    if line.startswith(b"[") or line.rstrip() == b"{" or (not ended and len(begin) == _LINE):
        return ""  # one document over many lines, which only a whole read would judge
    try:
        row = json.loads(line)
    except ValueError as error:
        return f"its first line is not JSON ({error}); {cure}"
    if column.name not in row:
        return f"has no field {column.name!r} in its first line, only {', '.join(row)}; set data.text"
    if column.text and not isinstance(row[column.name], str):
        return f"field {column.name!r} is not text in its first line: {str(row[column.name])[:40]}; set data.text"
    return ""


def tokenizer_problem(read: Callable[[str], bytes], vocabulary: int | None, needs_prefix: bool) -> str:
    """Why a Hugging Face tokenizer cannot be used; empty if nothing shows.

    Args:
      read: the content of a file of its folder; raises FileNotFoundError.
      vocabulary: rows of the model's embedding; None if not known.
      needs_prefix: an evaluation begins each document with BOS, or with EOS where there is no BOS.
    """
    from tokenizers import Tokenizer

    try:
        ids: dict[str, int] = Tokenizer.from_buffer(read(TOKENIZER)).get_vocab(with_added_tokens=True)
    except FileNotFoundError:
        return f"is no Hugging Face tokenizer (no {TOKENIZER} in it); give a folder with {TOKENIZER}"
    except ElasticTPUError:
        raise  # of the reader
    except Exception as error:  # the library raises nothing narrower
        return f"its tokenizer.json cannot be read ({_first_line(error)}); copy it again"
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        try:
            found = json.loads(read(name))
        except FileNotFoundError:
            continue
        except ValueError as error:
            return f"its {name} is not valid JSON ({error}); copy it again"
        settings |= found if isinstance(found, dict) else {}
    added = settings.get("added_tokens_decoder")
    for number, token in added.items() if isinstance(added, dict) else ():
        if str(number).isdecimal() and isinstance(token, dict) and isinstance(token.get("content"), str):
            ids.setdefault(token["content"], int(number))
    largest = max(ids.values(), default=-1)
    if vocabulary is not None and largest >= vocabulary:
        cure = "set train.maxtext.vocab_size, or take the model's own tokenizer"
        return f"has ids up to {largest}, the model has vocab_size {vocabulary}; {cure}"
    return next(_wrong_specials(settings, ids, needs_prefix), "")


def _wrong_specials(settings: Mapping[str, Any], ids: Mapping[str, int], needs_prefix: bool) -> Iterator[str]:
    """Special tokens that training would add as new ids, or that evaluation would miss."""
    named = {}
    for role in ("bos_token", "eos_token"):
        value = settings.get(role)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            named[role] = text
            if text not in ids:
                yield f"its tokenizer_config.json names {role} {text!r}, which tokenizer.json does not have; correct it"
    if needs_prefix and not named:
        yield "its tokenizer_config.json has neither bos_token nor eos_token, and an evaluation needs one; add it there"


def unreachable(error: BaseException) -> bool:
    """Whether an error is the system's, e.g. of a mount that does not answer, and says nothing about a file's content.

    An OSError of Arrow, for a damaged file, has no number. A file that is missing or forbidden stays so.
    """
    stays = (FileNotFoundError, PermissionError, IsADirectoryError)
    return isinstance(error, OSError) and error.errno is not None and not isinstance(error, stays)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
