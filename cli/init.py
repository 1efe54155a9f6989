"""`elastic-tpu init`: from a folder of text to parquet files and a spec that trains on this machine."""

from __future__ import annotations

import math
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..runs import extras
from ..runs.errors import BadInput, Problem
from ..runs.spec import file_contents
from ..runs.units import show_size
from . import byte_tokenizer, texts
from .display import OutputConsole, print_rows

_SLICES, _DEVICES = 2, 2  # simulated slices, and devices of each
_STEPS, _SEQUENCE = 200, 256
_SPEC, _TRAIN, _HELD_OUT, _TOKENIZER = "spec.yaml", "train.parquet", "valid.parquet", "tokenizer"
_WRITTEN = (_TRAIN, _HELD_OUT, _SPEC)


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer: its folder (None: yet to be made), the ids that a model needs, bytes of the data in a token."""

    folder: Path | None
    vocabulary: int
    token_bytes: float


def init(source: str, out: str | None, tokenizer: str | None, column: str, force: bool) -> None:
    """Write the data of a first run and its spec into a folder; if that fails, nothing new is left there.

    Raises:
      BadInput: the data or the tokenizer cannot be used, or files are there already.
    """
    extras.require("trainer", "elastic-tpu init")
    data = Path(source).expanduser()
    folder = Path(out).expanduser() if out else Path(f"{data.resolve().name.removesuffix(data.suffix)}-run")
    files = texts.find(data, but=folder)  # what an earlier `init` wrote may be among the data
    _refuse_overwriting(folder, tokenizer is None, force)
    console = OutputConsole(soft_wrap=True, highlight=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out: {folder}: {error.strerror}; give another folder") from None
    partial = [folder / f".{name}.partial" for name in _WRITTEN]
    try:
        chosen = _tokenizer(tokenizer, texts.sample(files, column))
        # MaxText cuts a row that is longer than its sequence, so the rows are made to fit.
        longest = max(32, int(0.8 * _SEQUENCE * chosen.token_bytes))
        found = texts.split(files, column, longest, (partial[0], partial[1]))
        _require_enough(data, found)
        if chosen.folder is None:
            byte_tokenizer.write(folder / _TOKENIZER)
        partial[2].write_text(_spec(folder, chosen, found))
        for path, name in zip(partial, _WRITTEN, strict=True):  # the spec last: with it the set is whole
            path.replace(folder / name)
    finally:
        for path in partial:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()  # an empty one, after an error
    made = "" if tokenizer else " (one token a byte, made here; `--tokenizer FOLDER` takes another)"
    rows = [
        ("read", f"{len(files)} files, {show_size(found.size)} of text, {found.documents:,} documents"),
        ("tokenizer", f"{chosen.folder or folder / _TOKENIZER}: {chosen.vocabulary:,} ids{made}"),
        ("wrote", f"{folder / _TRAIN}: {found.train:,} rows of at most {longest} bytes"),
        ("", f"{folder / _HELD_OUT}: {found.held_out:,} rows of other documents, held out for the evaluation"),
        ("", f"{folder / _SPEC}: a small model for this machine; every line may be changed"),
        ("next", f"elastic-tpu plan {shlex.quote(str(folder / _SPEC))}"),
        ("", f"elastic-tpu run {shlex.quote(str(folder / _SPEC))}"),
    ]
    print_rows(console, rows)


def _refuse_overwriting(folder: Path, with_tokenizer: bool, force: bool) -> None:
    written = (*_WRITTEN, *([_TOKENIZER] if with_tokenizer else []))
    there = [name for name in written if (folder / name).exists()]
    if there and not force:
        raise BadInput(f"{folder} holds {', '.join(there)} already; give another folder by `--out`, or `--force`")


def _tokenizer(given: str | None, sample: list[str]) -> Tokenizer:
    from tokenizers import Tokenizer as Library

    if given is None:
        return Tokenizer(None, byte_tokenizer.IDS, 1.0)
    path = Path(given).expanduser()
    if not (path / "tokenizer.json").is_file():
        cure = "holds no tokenizer.json; give the folder of a Hugging Face tokenizer, docs/data.md says how to get one"
        raise BadInput([Problem("--tokenizer", str(path), cure)])
    if why := file_contents.tokenizer_problem(lambda name: (path / name).read_bytes(), None, needs_prefix=True):
        raise BadInput([Problem("--tokenizer", str(path), why)])
    library = Library.from_file(str(path / "tokenizer.json"))
    library.no_truncation()
    ids = max(library.get_vocab(with_added_tokens=True).values()) + 1
    tokens = sum(len(encoding.ids) for encoding in library.encode_batch(sample, add_special_tokens=False))
    size = sum(len(text.encode()) for text in sample)
    return Tokenizer(path.resolve(), ids, size / max(tokens, 1))


def _require_enough(data: Path, found: texts.Found) -> None:
    if not found.held_out or found.train < 2 * _SLICES * _DEVICES:
        cure = f"holds {found.documents:,} documents, {show_size(found.size)} of text: too little to train and hold out"
        raise BadInput([Problem("DATA", str(data), f"{cure}; some hundred kB is little, and enough for a trial")])


def _spec(folder: Path, tokenizer: Tokenizer, found: texts.Found) -> str:
    """The spec, with a word on what to change first. Paths are relative to its own folder."""
    batch = 2 if tokenizer.vocabulary <= 50_000 else 1  # the logits of a large vocabulary need the memory
    wanted = _STEPS * batch * _SLICES * _DEVICES * _SEQUENCE
    epochs = math.ceil(1.5 * wanted * tokenizer.token_bytes / max(found.train_size, 1)) + 1
    where = str(tokenizer.folder or _TOKENIZER)
    return f"""\
# A first run on this machine: simulated slices, a small model. docs/spec.md has every field.
#   elastic-tpu run {_SPEC}
# Lose a slice while it trains:  elastic-tpu kill-slice RUN 1
run: {{name: "{_name(folder)}-{{datetime}}", output: runs}}
platform: local                             # `gke` for TPU slices: docs/gke.md
slices: {{type: sim-1x2, count: {_SLICES}}}
model: {{name: qwen3-0.6b, tokenizer: {_quoted(where)}}}
data: {{train: {_TRAIN}, eval: {_HELD_OUT}}}
train:
  steps: {_STEPS}
  maxtext:                                  # without these dimensions: all 0.6 billion parameters
    base_emb_dim: 128
    base_num_query_heads: 4
    base_num_kv_heads: 2
    base_mlp_dim: 384
    base_num_decoder_layers: 2
    head_dim: 32
    vocab_size: {32 * math.ceil(tokenizer.vocabulary / 32)}
    max_target_length: {_SEQUENCE}
    per_device_batch_size: {batch}
    learning_rate: 0.003
    num_epoch: {epochs}
    packing: true
checkpoint: {{every: 50, keep: 3}}
evaluate: {{heldout: true}}                   # add a gate: [heldout.loss <= 3.0]
"""


def _name(folder: Path) -> str:
    """A run's name out of the folder's: what a Kubernetes label may hold."""
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in folder.resolve().name.lower())
    return letters.strip("-")[:30].strip("-") or "first"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
