"""Held-out evaluation: known answers, every token once, and nothing left out silently."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from elastic_tpu.runs.errors import BadInput, NotFound
from elastic_tpu.tests.trainer import tiny
from elastic_tpu.trainer.evaluate import heldout, texts
from elastic_tpu.trainer.evaluate.heldout import HeldoutResult, evaluate_heldout, score_documents, windows
from elastic_tpu.trainer.export.export import export_checkpoint
from elastic_tpu.trainer.export.qwen3 import Architecture, stored_arrays

BOS, EOS = 1, 2


def make_export(folder: Path, weights: dict[str, np.ndarray] | None = None, **tokenizer: Any) -> Path:
    weights = weights or tiny.tensors()
    tied = "lm_head.weight" not in weights
    tiny.write_checkpoint(folder / "checkpoints" / "20", tiny.as_maxtext(weights, 3, scanned=True))
    export_checkpoint(
        str(folder / "checkpoints" / "20"),
        str(folder / "export"),
        architecture=tiny.architecture(tied=tied),
        tokenizer=str(tiny.write_tokenizer(folder / "tokenizer", **tokenizer)),
        dtype="float32",
        spec_hash="spec",
        proof_digest="proof",
        progress=lambda done, total: None,
    )
    return folder / "export"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_export(tmp_path_factory.mktemp("exported"))


def parquet(path: Path, documents: Sequence[str | None], column: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: pa.array(documents, pa.string())}), path, row_group_size=2)
    return path


def evaluate(export: Path | str, *files: Path | str, **changed: Any) -> HeldoutResult:
    arguments: dict[str, Any] = {
        "text_column": "text",
        "max_target_length": 16,
        "progress": lambda done, total: None,
    }
    return evaluate_heldout(str(export), [str(f) for f in files], **{**arguments, **changed})


def uniform_weights() -> dict[str, np.ndarray]:
    """A model that gives every token the same chance: its head is zero."""
    weights = tiny.tensors(tied=False)
    return {**weights, "lm_head.weight": np.zeros_like(weights["lm_head.weight"])}


def spy(loss: Callable[[int], float]) -> tuple[heldout.LossFunction, list[list[int]]]:
    """A loss that depends on the label alone, and the rows of ids that it was asked for."""
    rows: list[list[int]] = []

    def compute(ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        rows.extend(ids.tolist())
        return np.vectorize(loss, otypes=[np.float32])(labels)

    return compute, rows


def test_a_document_longer_than_the_window_is_scored_in_disjoint_windows() -> None:
    found = list(windows([10, 11, 12, 13, 14, 15, 16], BOS, 3))
    assert [(w.inputs, w.labels, w.scored) for w in found] == [
        ((BOS, 10, 11), (10, 11, 12), 3),
        ((12, 13, 14), (13, 14, 15), 3),
        ((13, 14, 15), (14, 15, 16), 1),
    ]


@pytest.mark.parametrize("length", [0, 1, 2, 31, 32, 33, 64, 65, 100])
@pytest.mark.parametrize("window", [2, 32])
def test_each_token_is_scored_exactly_once(length: int, window: int) -> None:
    tokens = list(range(100, 100 + length))
    scored = [label for w in windows(tokens, BOS, window) for label in w.labels[len(w.labels) - w.scored :]]
    assert scored == tokens


def test_the_last_short_batch_weighs_as_its_tokens_do() -> None:
    compute, _ = spy(lambda label: 3.0 if label == 9 else 1.0)
    documents = [[5] * 10] * 4 + [[9] * 2]
    score = score_documents(compute, documents, prefix=BOS, max_length=16, rows=lambda length: 4)
    assert score.tokens == 42
    assert math.exp(score.nll / score.tokens) == pytest.approx(2.9899, abs=1e-4)


def test_padding_is_not_counted() -> None:
    compute, _ = spy(lambda label: 1.0 if label else 1000.0)  # label 0 stands for padding
    score = score_documents(compute, [[5, 6], [7]], prefix=BOS, max_length=8, rows=lambda length: 4)
    assert (score.nll, score.tokens) == (3.0, 3)


def test_few_shapes_are_asked_for() -> None:
    shapes = set()

    def compute(ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        shapes.add(ids.shape)
        return np.zeros(labels.shape, np.float32)

    documents = [[5] * n for n in range(1, 400, 7)]
    score_documents(compute, documents, prefix=BOS, max_length=200, rows=lambda length: 800 // length)
    assert shapes == {(25, 32), (6, 128), (4, 200)}


@pytest.mark.slow
@pytest.mark.parametrize(("length", "rows"), [(32, 16), (128, 13), (512, 2), (2048, 1), (8192, 1)])
def test_a_batch_of_a_real_model_fits_in_memory(length: int, rows: int) -> None:
    """Asks XLA for Qwen3-0.6B with its 151,936 words; nothing is computed or allocated."""
    config = Architecture(16, 8, 128, 1024, 3072, 28, 151936, 1e6, 1e-6, 40960, True)
    assert heldout.rows_that_fit(config, length, heldout.MEMORY) == rows
    if length > 2048:
        return  # one window alone is larger
    params: dict[str, jax.ShapeDtypeStruct] = {}
    for tensor in (t for array in stored_arrays(config, scanned=False) for t in array.tensors):
        layer, _, rest = tensor.name.removeprefix("model.layers.").partition(".")
        stacked = ("layers." + rest, (28, *tensor.shape)) if layer.isdigit() else (tensor.name, tensor.shape)
        params[stacked[0]] = jax.ShapeDtypeStruct(stacked[1], np.float32)
    ids = jax.ShapeDtypeStruct((rows, length), np.int32)
    needed = jax.jit(partial(heldout._losses, config, True)).lower(params, ids, ids).compile().memory_analysis()
    rounded_head = 4 * config.vocab_size * config.emb_dim
    assert needed.temp_size_in_bytes < 1.25 * heldout.MEMORY + rounded_head


@pytest.mark.slow
@pytest.mark.parametrize(("adds_bos", "text"), [(False, "ab"), (True, "ab"), (True, "<bos>ab")])
def test_exactly_one_bos_begins_a_document(
    tmp_path: Path, adds_bos: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = make_export(tmp_path, adds_bos=adds_bos)
    compute, rows = spy(lambda _: 1.0)
    monkeypatch.setattr(heldout.jax, "jit", lambda _: lambda _params, ids, labels: compute(ids, labels))
    result = evaluate(export, parquet(tmp_path / "a.parquet", [text]))
    assert rows[0][:2] == [BOS, 68]
    assert rows[0].count(BOS) == 1
    assert result.tokens == 2


@pytest.mark.slow
def test_without_bos_a_document_begins_with_eos(tmp_path: Path) -> None:
    export = make_export(tmp_path, bos=None)
    assert evaluate(export, parquet(tmp_path / "a.parquet", ["ab"])).prefix_token == EOS


def test_a_tokenizer_with_neither_is_refused(tmp_path: Path) -> None:
    export = make_export(tmp_path, bos=None, eos=None)
    with pytest.raises(BadInput, match="neither bos_token nor eos_token"):
        evaluate(export, parquet(tmp_path / "a.parquet", ["ab"]))


@pytest.mark.slow
def test_the_first_token_is_conditioned_on_bos_and_not_on_eos(tmp_path: Path) -> None:
    """With layers that add nothing, the next token depends on the last alone, and the answer is known by hand."""
    weights = tiny.tensors(tied=False)
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name][:] = 0
    weights["model.norm.weight"][:] = 1
    weights["model.embed_tokens.weight"][:] = 0
    weights["model.embed_tokens.weight"][BOS, 0] = weights["model.embed_tokens.weight"][EOS, 1] = 1
    weights["lm_head.weight"][:] = 0
    weights["lm_head.weight"][68:72, 0] = 30.0  # after BOS: a, b, c or d, a quarter each
    weights["lm_head.weight"][200, 1] = 30.0  # after EOS: something else
    data = parquet(tmp_path / "a.parquet", ["a", "c"])
    assert evaluate(make_export(tmp_path / "bos", weights), data).perplexity == pytest.approx(4.0, rel=1e-5)
    assert evaluate(make_export(tmp_path / "eos", weights, bos=None), data).perplexity > 1e6


@pytest.mark.slow
def test_a_model_that_guesses_has_the_uniform_loss_and_known_bits_a_byte(tmp_path: Path) -> None:
    export = make_export(tmp_path, uniform_weights())
    result = evaluate(export, parquet(tmp_path / "a.parquet", ["Hello é", "", "x" * 40]))
    assert result.loss == pytest.approx(math.log(tiny.V), rel=1e-6)
    assert result.uniform_loss == math.log(tiny.V)
    assert result.perplexity == pytest.approx(tiny.V, rel=1e-5)
    assert (result.documents, result.documents_expected) == (3, 3)
    assert result.bytes == result.tokens == 8 + 40  # a token is a byte here, é has two
    assert result.bits_per_byte == pytest.approx(math.log2(tiny.V), rel=1e-6)


@pytest.mark.slow
def test_a_model_whose_loss_is_not_finite_is_evaluated_and_the_reason_told(tmp_path: Path) -> None:
    weights = uniform_weights()
    weights["lm_head.weight"][:] = 3e38  # finite, which the export checks; its logits are not
    result = evaluate(make_export(tmp_path, weights), parquet(tmp_path / "a.parquet", ["ab"]))
    assert math.isnan(result.loss)
    assert result.warnings == ("the loss is nan: the model gives no finite logits; look at its training loss",)


@pytest.mark.slow
def test_batches_and_files_do_not_change_the_result(exported: Path, tmp_path: Path) -> None:
    documents = ["a" * n + "b" for n in range(1, 23)]
    one = parquet(tmp_path / "one.parquet", documents)
    parts = [parquet(tmp_path / "parts" / f"{i}.parquet", documents[i::3]) for i in range(3)]
    first = evaluate(exported, one)
    again = evaluate(exported, *parts, memory=7 * 40_000)
    assert again.loss == pytest.approx(first.loss, abs=1e-5)
    assert (again.tokens, again.documents, again.bytes) == (first.tokens, 22, first.bytes)
    assert evaluate(exported, tmp_path / "parts" / "*.parquet", memory=7 * 40_000) == again


@pytest.mark.slow
def test_settings_are_recorded(exported: Path, tmp_path: Path) -> None:
    data = parquet(tmp_path / "a.parquet", ["some text"])
    result = evaluate(exported, data, max_target_length=64)
    assert (result.max_length, result.prefix_token, result.dtype, result.step) == (64, BOS, "float32", 20)
    assert result.warnings == ("window 64, the model was trained on 32",)
    moved = parquet(tmp_path / "elsewhere" / "b.parquet", ["some text"])
    assert evaluate(exported, moved).data_digest == result.data_digest
    other = parquet(tmp_path / "c.parquet", ["some texT"])
    assert evaluate(exported, other).data_digest != result.data_digest
    assert evaluate(exported, moved).warnings == ()


@pytest.mark.slow
def test_progress_counts_documents(exported: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(exported, parquet(tmp_path / "a.parquet", ["ab"] * 5), progress=lambda *a: seen.append(a))
    assert seen == [(n, 5) for n in range(1, 6)]


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda p: parquet(p, []), "is empty"),
        (lambda p: parquet(p, ["", ""]), "are empty"),
        (lambda p: parquet(p, ["a", None, "b"]), "document 1 of 'text' is not text: None"),
        (lambda p: parquet(p, ["a"], column="body"), r"has no column 'text', only \['body'\]; set data.text"),
        (lambda p: p.write_bytes(b"PAR1 no parquet"), "cannot be read"),
        (lambda p: p.write_bytes(parquet(p, ["abc"] * 900).read_bytes()[:-500]), "cannot be read"),
    ],
)
def test_data_that_cannot_be_used_is_an_error(
    exported: Path, tmp_path: Path, prepare: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "bad.parquet"
    prepare(path)
    with pytest.raises(BadInput, match=said):
        evaluate(exported, path)


def test_one_bad_file_among_good_ones_is_not_skipped(exported: Path, tmp_path: Path) -> None:
    parquet(tmp_path / "good.parquet", ["a"])
    (tmp_path / "bad.parquet").write_bytes(b"")
    with pytest.raises(BadInput, match=r"bad\.parquet.*cannot be read"):
        evaluate(exported, tmp_path / "*.parquet")


@pytest.mark.slow
def test_data_that_breaks_off_in_the_middle_is_an_error(exported: Path, tmp_path: Path) -> None:
    words = np.random.default_rng(0).integers(97, 123, (4000, 60), dtype=np.uint8)
    path = parquet(tmp_path / "a.parquet", [row.tobytes().decode() for row in words])
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4000] = bytes(4000)
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"a\.parquet"):
        evaluate(exported, path)


def test_a_file_that_gives_fewer_documents_than_it_says_is_an_error(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", ["a", "b"])
    with pytest.raises(BadInput, match="has 2 documents, its metadata says 3"):
        list(texts.read_texts([texts.TextFile(str(path), 3)], "text"))


@pytest.mark.parametrize("pattern", ["nothing*.parquet", "absent.parquet"])
def test_a_pattern_that_matches_nothing_is_an_error(exported: Path, tmp_path: Path, pattern: str) -> None:
    with pytest.raises(BadInput, match="matches no file"):
        evaluate(exported, tmp_path / pattern)


def test_another_kind_of_file_is_an_error(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    with pytest.raises(BadInput, match=r"must end with one of \.parquet"):
        evaluate(exported, tmp_path / "a.jsonl")


@pytest.mark.slow
def test_array_records_are_read_as_training_reads_them(exported: Path, tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    from maxtext.input_pipeline.protos import example_pb2

    documents = ["some text", "é"]
    writer = module.ArrayRecordWriter(str(tmp_path / "a.array_record"), "group_size:1")
    for text in documents:
        example = example_pb2.Example()
        example.features.feature["text"].bytes_list.value.append(text.encode())
        writer.write(example.SerializeToString())
    writer.close()
    found = evaluate(exported, tmp_path / "a.array_record")
    expected = evaluate(exported, parquet(tmp_path / "a.parquet", documents))
    assert (found.loss, found.tokens, found.bytes) == (expected.loss, expected.tokens, expected.bytes)


def test_an_export_with_a_tensor_missing_is_not_evaluated(tmp_path: Path) -> None:
    export = make_export(tmp_path)
    (export / "model.safetensors").write_bytes(b"")
    with pytest.raises(BadInput, match="the manifest says"):
        evaluate(export, parquet(tmp_path / "a.parquet", ["ab"]))
    (export / "manifest.json").unlink()
    with pytest.raises(NotFound):
        evaluate(export, tmp_path / "a.parquet")


def test_missing_and_left_over_tensors_are_named(tmp_path: Path) -> None:
    from elastic_tpu.trainer.evaluate.forward import load_config, load_params
    from safetensors.numpy import load_file, save_file

    export = make_export(tmp_path)
    tensors = load_file(export / "model.safetensors")
    norm = tensors.pop("model.layers.1.input_layernorm.weight")
    save_file({**tensors, "model.extra": norm}, export / "model.safetensors")
    with pytest.raises(BadInput) as raised:
        load_params(str(export), load_config(str(export)))
    assert {p.path for p in raised.value.problems} == {"model.extra", "model.layers.1.input_layernorm.weight"}


def test_on_a_bucket_the_result_is_the_same(exported: Path, tmp_path: Path, gcs_bucket: str) -> None:
    from etils import epath

    root = epath.Path(f"gs://{gcs_bucket}/runs/r")
    data = parquet(tmp_path / "a.parquet", ["some text", "more"])
    for path in (*exported.iterdir(), data):
        folder = root / "data" if path == data else root / "export"
        (folder / path.name).write_bytes(path.read_bytes())
    assert evaluate(str(root / "export"), str(root / "data" / "*.parquet")) == evaluate(exported, data)
