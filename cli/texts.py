"""Documents of a user's .txt, .jsonl and .parquet files, cut into rows and parted into training and held-out data."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from ..runs.errors import BadInput, Problem

KINDS = (".txt", ".jsonl", ".parquet")
_ONE_IN = 20  # documents held out
_ROWS = 4096  # rows of a row group
_SAMPLE = 200  # documents by which a tokenizer is measured
_PARAGRAPH = 2**16  # characters after which a paragraph that goes on becomes another document
_TOLD, _FIRST = 10.0, 2.0  # seconds between two lines of progress where there is no terminal, and until the first


@dataclass
class Found:
    """What was read and written: documents, bytes of text, rows of each set, and bytes of the training rows."""

    documents: int = 0
    size: int = 0
    train: int = 0
    held_out: int = 0
    train_size: int = 0


def find(source: Path, but: Path) -> list[Path]:
    """The files of a folder and those below it, or one file; sorted, without hidden ones and those below `but`.

    Raises:
      BadInput: there are none of the kinds that are read.
    """
    if source.is_file() and source.suffix.lower() in KINDS:
        return [source]
    if not source.is_file() and not source.is_dir():
        why = "is no regular file" if source.exists() else "is not there"
        raise BadInput([Problem("DATA", str(source), f"{why}; give a folder or a file of text")])
    inside = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
    seen = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(source).parts)]
    ours = but.resolve()
    files = [path for path in seen if path.suffix.lower() in KINDS and ours not in path.resolve().parents]
    if not files:
        others = ", ".join(sorted({path.suffix or path.name for path in seen})[:5])
        there = f"only {others}" if others else "and is empty"
        raise BadInput([Problem("DATA", str(source), f"holds no {', '.join(KINDS)} file, {there}; convert it first")])
    return files


def sample(files: Sequence[Path], column: str) -> list[str]:
    """The first documents, none of them longer than a page."""
    return [text[:4000] for path in files[:5] for text in islice(documents(path, column), _SAMPLE)][:_SAMPLE]


def split(files: Sequence[Path], column: str, longest: int, targets: tuple[Path, Path]) -> Found:
    """Write all documents as rows of one column, `text`, in one pass and with flat memory.

    One document in twenty is held out, chosen by its content: the same each time, and one that occurs twice is in one
    set only. Progress goes to stderr.

    Args:
      longest: bytes of a row at most; a longer document becomes several rows of the same set.
      targets: files for training and held-out data.
    """
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([("text", pa.string())])
    found = Found()
    waiting: tuple[list[str], list[str]] = ([], [])
    with ExitStack() as stack:
        progress = stack.enter_context(_Progress(sum(path.stat().st_size for path in files)))
        writers = [stack.enter_context(parquet.ParquetWriter(path, schema)) for path in targets]

        def flush(which: int) -> None:
            if waiting[which]:
                writers[which].write_table(pa.table({"text": waiting[which]}, schema=schema))
                waiting[which].clear()

        for path in files:
            for text in documents(path, column):
                size = len(text.encode())
                which = int(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % _ONE_IN == 0)
                pieces = list(rows(text, longest))
                waiting[which].extend(pieces)
                found.documents, found.size = found.documents + 1, found.size + size
                if which:
                    found.held_out += len(pieces)
                else:
                    found.train, found.train_size = found.train + len(pieces), found.train_size + size
                if len(waiting[which]) >= _ROWS:
                    flush(which)
                progress.read(found.size)
        flush(0)
        flush(1)
    return found


def documents(path: Path, column: str) -> Iterator[str]:
    """Documents of a file, in order: paragraphs of .txt, lines of .jsonl, rows of .parquet; empty ones are left out.

    Raises:
      BadInput: names file, line and cure.
    """
    reader = {".txt": _text, ".jsonl": _json_lines, ".parquet": _parquet}[path.suffix.lower()]
    for text in reader(path, column):
        try:
            text.encode()
        except UnicodeEncodeError:
            why = f"holds half a character (a lone surrogate) in {ascii(text)[:60]}; correct or leave out that document"
            raise BadInput([Problem("DATA", str(path), why)]) from None
        if text.strip():
            yield text.strip()


def rows(text: str, longest: int) -> Iterator[str]:
    """The text in rows of whole words, each of at most `longest` UTF-8 bytes; a word that is longer is cut."""
    row, size = "", 0
    for word in re.findall(r"\S+\s*", text):
        wide = len(word.encode())
        if size and size + len(word.rstrip().encode()) > longest:
            yield row.rstrip()
            row, size = "", 0
        while wide > longest and len(word.rstrip().encode()) > longest:
            head = word.encode()[:longest].decode(errors="ignore")
            yield head
            word = word[len(head) :]
            wide = len(word.encode())
        row, size = row + word, size + wide
    if row.strip():
        yield row.rstrip()


def _text(path: Path, column: str) -> Iterator[str]:
    del column
    paragraph, size = list[str](), 0
    for _, line in _lines(path):
        if line.strip():
            paragraph.append(line)
            size += len(line)
        if paragraph and (not line.strip() or size > _PARAGRAPH):
            yield "".join(paragraph)
            paragraph, size = [], 0
    yield "".join(paragraph)


def _json_lines(path: Path, column: str) -> Iterator[str]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad(path, number, f"is not JSON ({error}); correct it, one object a line") from None
        if not isinstance(row, dict):
            raise _bad(path, number, f"is no object but {str(row)[:40]}; one object a line is read")
        yield _value(row, column, path, number)


def _value(row: dict[str, Any], column: str, path: Path, number: int) -> str:
    if column not in row:
        raise _bad(path, number, f"has no field {column!r}, only {', '.join(map(str, row))}; choose one by --text")
    if not isinstance(row[column], str):
        raise _bad(path, number, f"field {column!r} is not text: {str(row[column])[:40]}; choose one by --text")
    return str(row[column])


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                why = f"is not UTF-8 ({error.reason}); convert it: iconv -f latin1 -t utf-8"
                raise _bad(path, number, why) from None


def _parquet(path: Path, column: str) -> Iterator[str]:
    import pyarrow as pa
    from pyarrow import parquet, types

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if column not in names:
                cure = f"has no column {column!r}, only {', '.join(names)}; choose one by --text"
                raise BadInput([Problem("DATA", str(path), cure)])
            kind = file.schema_arrow.field(column).type
            kind = kind.value_type if types.is_dictionary(kind) else kind
            if not (types.is_string(kind) or types.is_large_string(kind)):
                cure = f"column {column!r} is of type {kind}, not string; choose one by --text"
                raise BadInput([Problem("DATA", str(path), cure)])
            for batch in file.iter_batches(_ROWS, columns=[column]):
                yield from (text for text in batch.column(0).to_pylist() if text is not None)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput([Problem("DATA", str(path), f"is no readable Parquet file ({str(error)[:80]})")]) from None


def _bad(path: Path, line: int, why: str) -> BadInput:
    return BadInput([Problem("DATA", f"{path}, line {line}", why)])


class _Progress:
    """How much of the data has been read: a bar on a terminal, elsewhere a line from time to time."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self._total, self._told = total, time.monotonic() - _TOLD + _FIRST
        self._bar = Progress(
            TextColumn("reading"), BarColumn(), DownloadColumn(), console=console, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("reading", total=total)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def read(self, size: int) -> None:
        """Tell that so many bytes of text have been read."""
        if not self._bar.disable:
            self._bar.update(self._task, completed=min(size, self._total))
        elif time.monotonic() - self._told > _TOLD:
            self._told = time.monotonic()
            print(f"reading: {size / 1e6:,.0f} of about {self._total / 1e6:,.0f} MB", file=sys.stderr)  # noqa: T201
