"""Makes the demo's data offline: a byte-level tokenizer and English text, the same on every run of one Python version.

The text is CPython's own documentation as it comes with every interpreter: the language reference behind ``help()``
and the docstrings of the standard library (PSF licence). The tokenizer has one token a byte: nothing is trained or
fetched.

    python examples/make_data.py runs-demo/data [--chunk-bytes 250]

gives ``tokenizer/`` (Hugging Face format), ``train.parquet`` and ``valid.parquet`` (column ``text``, split by document
so that no text is in both) and, last of all, ``manifest.json``. A complete set is left as it is.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elastic_tpu.cli import byte_tokenizer

VERSION = 1  # of what this script writes: another number makes an old set incomplete
ONE_IN = 20  # documents held out for validation
SHORTEST_DOCSTRING = 80


def documents() -> Iterator[str]:
    """CPython's documentation, one text a topic or docstring, in a fixed order."""
    from pydoc_data.topics import topics

    yield from (topics[name] for name in sorted(topics))
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                docstring = ast.get_docstring(node) or ""
                if len(docstring) > SHORTEST_DOCSTRING:
                    yield docstring


def chunks(document: str, size: int) -> Iterator[str]:
    """The document in pieces of whole words, at most `size` UTF-8 bytes each; a newline parts its paragraphs."""
    piece = ""
    for paragraph in re.split(r"\n\s*\n", document):
        glue = "\n"
        for word in paragraph.split():
            longer = f"{piece}{glue}{word}" if piece else word
            if len(longer.encode()) > size:
                if piece:
                    yield piece
                longer = word.encode()[:size].decode(errors="ignore")
            piece, glue = longer, " "
    if piece:
        yield piece


def split(size: int) -> dict[str, list[str]]:
    """Chunks of all documents, by split; one that occurs twice counts once, so that none is in both splits."""
    texts: dict[str, list[str]] = {"train": [], "valid": []}
    seen: set[str] = set()
    for document in documents():
        held_out = int.from_bytes(hashlib.sha256(document.encode()).digest()) % ONE_IN == 0
        new = [chunk for chunk in dict.fromkeys(chunks(document, size)) if chunk not in seen]
        seen.update(new)
        texts["valid" if held_out else "train"].extend(new)
    return texts


def write_parquet(texts: list[str], path: Path) -> None:
    """One column, ``text``."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": texts}), path)


def digests(out: Path) -> dict[str, str]:
    """sha256 of every file of the set, by its path in it."""
    paths = (path for path in out.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def complete(out: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether `out` holds the whole set, made with the same settings."""
    try:
        manifest = json.loads((out / "manifest.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return bool(manifest == {**wanted, "files": digests(out)})


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the demo's tokenizer and text, offline.")
    parser.add_argument("out", type=Path, help="directory to fill")
    parser.add_argument("--chunk-bytes", type=int, default=250, help="longest text of one row (default: %(default)s)")
    options = parser.parse_args()
    out: Path = options.out
    if options.chunk_bytes < 1:
        parser.error(f"--chunk-bytes: {options.chunk_bytes}, must be at least 1")

    wanted = {"version": VERSION, "python": sys.version.split()[0], "chunk_bytes": options.chunk_bytes}
    if complete(out, wanted):
        print(f"{out}: complete, nothing to do")
        return
    (out / "manifest.json").unlink(missing_ok=True)
    byte_tokenizer.write(out / "tokenizer")
    texts = split(options.chunk_bytes)
    for name, rows in texts.items():
        write_parquet(rows, out / f"{name}.parquet")
    partial = out / "manifest.json.partial"
    manifest = {**wanted, "files": digests(out)}
    partial.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    partial.replace(out / "manifest.json")
    size = sum(len(text.encode()) for split_texts in texts.values() for text in split_texts) / 1e6
    counts = f"{len(texts['train'])} rows to train, {len(texts['valid'])} held out"
    print(f"{out}: tokenizer and {size:.1f} MB of text, {counts}")


if __name__ == "__main__":
    main()
