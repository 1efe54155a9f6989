"""Held-out evaluation of an export: the mean loss of its tokens on texts that it was not trained on.

Each token of each document is scored exactly once, conditioned on what is before it in the document; the loss is the
sum over tokens divided by their number, never a mean of means. A document begins with one BOS (EOS where the tokenizer
has no BOS). A document that is longer than the window is cut into windows that score disjoint tokens, each with as much
context as fits, as lm-eval's rolling likelihood does. The metric depends on window, data, tokenizer and type, so they
are recorded with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...runs.errors import BadInput, Problem
from ..export.manifest import verify_export
from ..export.qwen3 import Architecture
from ..export.tokenizer_files import TokenizerFiles, find_tokenizer
from . import texts
from .forward import forward, load_config, load_params

Progress = Callable[[int, int], None]
Doing = Callable[[str], None]
BUCKETS = (32, 128, 512, 2048, 8192)
# Bytes that logits and attention scores of one forward pass may take, as long as one window does not take more.
MEMORY = 2**30
_MOST_ROWS = 16


@dataclass(frozen=True)
class HeldoutResult:
    """The result, and the settings that it depends on.

    `loss` and `uniform_loss` (of a model that guesses: ln vocabulary) are in nats a token; `bits_per_byte` is per byte
    of UTF-8, so that it compares across tokenizers. `documents_expected` is what the files say they hold. Results
    that differ in `max_length`, `prefix_token`, `data_digest`, `tokenizer_digest` or `dtype` must not be compared.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    uniform_loss: float
    tokens: int
    documents: int
    documents_expected: int
    bytes: int
    max_length: int
    prefix_token: int
    data_digest: str
    export_digest: str
    tokenizer_digest: str
    dtype: str
    step: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Window:
    """Part of a document for one forward pass: token ids, the label of each, and how many of the last are scored."""

    inputs: tuple[int, ...]
    labels: tuple[int, ...]
    scored: int


@dataclass(frozen=True)
class Score:
    """Sum of the scored tokens' negative log-likelihoods in nats, and their number."""

    nll: float
    tokens: int


# (ids, labels), both (batch, length), to the negative log-likelihood of each label, (batch, length).
LossFunction = Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def evaluate_heldout(
    export_dir: str,
    eval_files: list[str],
    *,
    text_column: str,
    max_target_length: int,
    progress: Progress,
    doing: Doing = lambda what: None,
    memory: int = MEMORY,
) -> HeldoutResult:
    """Evaluate a published export.

    Args:
      export_dir: the export, a folder or ``gs://``; every file is checked against its manifest first.
      eval_files: parquet or array_record files, or patterns of such.
      text_column: the column (or feature) that holds the text.
      max_target_length: the window, in tokens.
      progress: called with documents scored and documents in all.
      doing: called with what is done next, in words.
      memory: bytes for the logits and attention scores of one forward pass; one window is always scored.
    Raises:
      BadInput: the export or the data cannot be used; each reason is named. No text is left out silently.
      NotFound: nothing is published in `export_dir`.
    """
    if max_target_length < 2:
        raise BadInput(f"max_target_length {max_target_length} must be at least 2")
    doing("checking the export")
    manifest = verify_export(export_dir)
    config = load_config(export_dir)
    tokenizer = find_tokenizer(export_dir)
    prefix = prefix_token(tokenizer)
    files = texts.find_files(eval_files)
    expected = sum(file.documents for file in files)
    doing("loading the weights")
    params = load_params(export_dir, config)
    compute = jax.jit(partial(_losses, config, config.tied))
    counter = _Counter(tokenizer, prefix, config.vocab_size, expected, progress)
    doing("scoring documents")
    documents = counter.tokens(texts.read_texts(files, text_column))
    score = score_documents(
        lambda ids, labels: np.asarray(compute(params, ids, labels)),
        documents,
        prefix=prefix,
        max_length=max_target_length,
        rows=lambda length: rows_that_fit(config, length, memory),
    )
    if counter.documents != expected:
        raise BadInput(f"{counter.documents} documents were read, the files hold {expected}: they changed meanwhile")
    if not score.tokens:
        raise BadInput([Problem("data.eval", ", ".join(eval_files), f"all {expected} documents are empty")])
    loss = score.nll / score.tokens
    trained = config.max_position_embeddings
    warnings = []
    if max_target_length > trained:
        warnings.append(f"window {max_target_length}, the model was trained on {trained}")
    if not math.isfinite(loss):
        warnings.append(f"the loss is {loss}: the model gives no finite logits; look at its training loss")
    return HeldoutResult(
        loss=loss,
        perplexity=math.exp(loss) if loss < 700 else math.inf,
        bits_per_byte=score.nll / math.log(2) / counter.bytes,
        uniform_loss=math.log(config.vocab_size),
        tokens=score.tokens,
        documents=counter.documents,
        documents_expected=expected,
        bytes=counter.bytes,
        max_length=max_target_length,
        prefix_token=prefix,
        data_digest=texts.digest(files),
        export_digest=manifest.export_digest,
        tokenizer_digest=manifest.files["tokenizer.json"].sha256,
        dtype=manifest.dtype,
        step=manifest.step,
        warnings=tuple(warnings),
    )


def prefix_token(tokenizer: TokenizerFiles) -> int:
    """What a document begins with: BOS if the tokenizer has one, else EOS.

    Raises:
      BadInput: it has neither.
    """
    prefix = tokenizer.eos if tokenizer.bos is None else tokenizer.bos
    if prefix is None:
        raise BadInput(
            [Problem("model.tokenizer", None, "has neither bos_token nor eos_token in tokenizer_config.json")]
        )
    return prefix


def windows(tokens: Sequence[int], prefix: int, max_length: int) -> Iterator[Window]:
    """Cut a document so that each token is a scored label exactly once, with the longest context that fits."""
    full = (prefix, *tokens)
    for begin in range(0, len(tokens), max_length):
        end = min(begin + max_length, len(tokens))
        first = max(0, end - max_length)
        yield Window(tuple(full[first:end]), tuple(full[first + 1 : end + 1]), end - begin)


def rows_that_fit(config: Architecture, length: int, memory: int) -> int:
    """How many windows of this length a forward pass may take within `memory` bytes; at least one.

    Each window has logits, and attention scores three times, in float32: XLA holds the scores, the masked ones and the
    weights at once.
    """
    window = 4 * length * (config.vocab_size + 3 * config.num_query_heads * length)
    return max(1, min(_MOST_ROWS, memory // window))


def score_documents(
    loss_function: LossFunction,
    documents: Iterable[Sequence[int]],
    *,
    prefix: int,
    max_length: int,
    rows: Callable[[int], int],
) -> Score:
    """Sum the losses of all documents (token ids without BOS), in batches of few shapes so that few are compiled.

    Windows are collected by the bucket of their length, `rows` of that length to a batch; short batches at the end are
    filled up with empty rows.
    """
    sizes = [*(size for size in BUCKETS if size < max_length), max_length]
    pending: dict[int, list[Window]] = {size: [] for size in sizes}
    nll, count = 0.0, 0

    def flush(size: int) -> None:
        nonlocal nll, count
        batch, pending[size] = pending[size], []
        ids, labels = np.zeros((2, rows(size), size), np.int32)
        scored = np.zeros(ids.shape, bool)
        for row, window in enumerate(batch):
            length = len(window.inputs)
            ids[row, :length], labels[row, :length] = window.inputs, window.labels
            scored[row, length - window.scored : length] = True
        losses = loss_function(ids, labels)
        nll += float(losses[scored].astype(np.float64).sum())
        count += int(scored.sum())

    for tokens in documents:
        for window in windows(tokens, prefix, max_length):
            size = next(s for s in sizes if s >= len(window.inputs))
            pending[size].append(window)
            if len(pending[size]) == rows(size):
                flush(size)
    for size in sizes:
        if pending[size]:
            flush(size)
    return Score(nll, count)


def _losses(config: Architecture, head_bf16: bool, params: Any, ids: jax.Array, labels: jax.Array) -> jax.Array:
    logits = forward(config, params, ids, head_bf16=head_bf16)
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - chosen


class _Counter:
    """Tokenises texts for the scorer, and counts documents and bytes of UTF-8."""

    def __init__(self, files: TokenizerFiles, prefix: int, vocabulary: int, expected: int, progress: Progress) -> None:
        self._tokenizer = files.load()
        self._bos = files.bos
        self._prefix = prefix
        self._vocabulary = vocabulary
        self._expected = expected
        self._progress = progress
        self.documents = 0
        self.bytes = 0

    def tokens(self, documents: Iterable[str]) -> Iterator[list[int]]:
        """Token ids of each document, without BOS at its beginning: the scorer puts it there, once."""
        for text in documents:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            if ids and ids[0] == self._bos == self._prefix:
                ids = ids[1:]
            if ids and max(ids) >= self._vocabulary:
                cure = f"gives id {max(ids)}, the model has {self._vocabulary} rows: this is not its tokenizer"
                raise BadInput([Problem("model.tokenizer", None, cure)])
            self.documents += 1
            self.bytes += len(text.encode())
            yield ids
            self._progress(self.documents, self._expected)
