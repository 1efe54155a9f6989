"""Export of MaxText checkpoints: every value, every refusal, and what an interruption leaves."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from elastic_tpu.runs.errors import BadInput, NotFound, Unreachable
from elastic_tpu.tests.trainer import tiny
from elastic_tpu.trainer.checkpoint import arrays, blocks
from elastic_tpu.trainer.checkpoint.validate import validate_checkpoint
from elastic_tpu.trainer.export import export, safetensors_writer
from elastic_tpu.trainer.export.export import export_checkpoint
from elastic_tpu.trainer.export.manifest import ExportManifest, verify_export, write_file
from elastic_tpu.trainer.export.qwen3 import architecture_from_maxtext
from etils import epath

LAYERS = 3


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return tiny.write_tokenizer(tmp_path / "tokenizer")


def step_dir(tmp_path: Path, step: int = 20) -> Path:
    return tmp_path / "run" / "checkpoints" / str(step)


def write(
    tmp_path: Path, weights: dict[str, np.ndarray], layers: int = LAYERS, *, scanned: bool = True, **how: Any
) -> Path:
    folder = step_dir(tmp_path)
    axis = how.pop("axis", 1)
    extra = how.pop("extra", {})
    arrays = tiny.as_maxtext(weights, layers, scanned=scanned, axis=axis) | extra
    tiny.write_checkpoint(folder, arrays, **{"scan_layers": scanned, **how})
    return folder


def run(source: Path | str, out: Path | str, tokenizer: Path, **changed: Any) -> ExportManifest:
    arguments: dict[str, Any] = {
        "architecture": tiny.architecture(LAYERS),
        "tokenizer": str(tokenizer),
        "dtype": "float32",
        "spec_hash": "spec",
        "proof_digest": "proof",
        "progress": lambda done, total: None,
    }
    return export_checkpoint(str(source), str(out), **{**arguments, **changed})


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("zarr3", [False, True])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("scanned", "axis"), [(True, 1), (True, 0), (False, 1)])
def test_every_tensor_is_exported_bit_by_bit(
    tmp_path: Path, tokenizer: Path, zarr3: bool, tied: bool, scanned: bool, axis: int
) -> None:
    weights = tiny.tensors(tied=tied)
    source = write(tmp_path, weights, scanned=scanned, axis=axis, zarr3=zarr3)
    architecture = tiny.architecture(tied=tied, layer_axis=axis)
    manifest = run(source, tmp_path / "out", tokenizer, architecture=architecture)
    assert_equal(tiny.read_tensors(tmp_path / "out"), weights)
    assert manifest.params == sum(w.size for w in weights.values())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is tied


def test_layers_keep_their_order_beyond_ten(tmp_path: Path, tokenizer: Path) -> None:
    weights = tiny.tensors(12)
    for scanned in (True, False):
        source = write(tmp_path / str(scanned), weights, 12, scanned=scanned)
        run(source, tmp_path / f"out-{scanned}", tokenizer, architecture=tiny.architecture(12))
        assert_equal(tiny.read_tensors(tmp_path / f"out-{scanned}"), weights)


def test_bfloat16_rounds_to_nearest_even_as_ml_dtypes_does(tmp_path: Path, tokenizer: Path) -> None:
    weights = tiny.tensors()
    run(write(tmp_path, weights), tmp_path / "out", tokenizer, dtype="bfloat16")
    found = tiny.read_tensors(tmp_path / "out")
    assert_equal(found, {name: value.astype(ml_dtypes.bfloat16) for name, value in weights.items()})
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"


def test_weights_stored_as_bfloat16_are_exported_exactly(tmp_path: Path, tokenizer: Path) -> None:
    weights = {name: value.astype(ml_dtypes.bfloat16) for name, value in tiny.tensors().items()}
    run(write(tmp_path, weights), tmp_path / "out", tokenizer)
    assert_equal(tiny.read_tensors(tmp_path / "out"), {n: w.astype(np.float32) for n, w in weights.items()})


def test_small_chunks_and_panels_that_do_not_cover_a_row_give_the_same(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    monkeypatch.setattr(blocks.blocks, "__defaults__", (1,))
    monkeypatch.setattr(export, "PANEL_BYTES", 300)
    monkeypatch.setattr(safetensors_writer, "_SCRATCH_BYTES", 100)
    weights = tiny.tensors(tied=False)
    source = write(tmp_path, weights, split=3)
    run(source, tmp_path / "out", tokenizer, architecture=tiny.architecture(tied=False))
    assert_equal(tiny.read_tensors(tmp_path / "out"), weights)


def test_each_stored_chunk_is_read_once() -> None:
    shape, chunk = (64, 28, 96), (16, 28, 96)
    order = (0, 2, 1)
    found = list(blocks.blocks(shape, chunk, 4, order, limit=1))
    assert [b.start for b in found] == [(0, 0, 0), (16, 0, 0), (32, 0, 0), (48, 0, 0)]
    joined = list(blocks.blocks(shape, chunk, 4, order, limit=2 * 16 * 28 * 96 * 4))
    assert [b.shape for b in joined] == [(32, 28, 96), (32, 28, 96)]


def test_shards_are_limited_and_indexed(tmp_path: Path, tokenizer: Path) -> None:
    weights = tiny.tensors()
    manifest = run(write(tmp_path, weights), tmp_path / "out", tokenizer, max_shard_bytes=6000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    shards = sorted(name for name in manifest.files if name.endswith(".safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert sorted(set(index["weight_map"].values())) == shards
    assert index["metadata"]["total_size"] == sum(w.nbytes for w in weights.values())
    assert_equal(tiny.read_tensors(tmp_path / "out"), weights)


def test_progress_ends_with_all_bytes(tmp_path: Path, tokenizer: Path) -> None:
    seen: list[tuple[int, int]] = []
    run(write(tmp_path, tiny.tensors()), tmp_path / "out", tokenizer, progress=lambda *a: seen.append(a))
    size = sum(w.nbytes for w in tiny.tensors().values())
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_files_are_readable_by_others(tmp_path: Path, tokenizer: Path) -> None:
    manifest = run(write(tmp_path, tiny.tensors()), tmp_path / "out", tokenizer)
    for name in (*manifest.files, "manifest.json"):
        assert stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) & 0o444 == 0o444, name


@pytest.mark.slow
def test_config_and_tokenizer_load_in_transformers(tmp_path: Path, tokenizer: Path) -> None:
    run(write(tmp_path, tiny.tensors()), tmp_path / "out", tokenizer)
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert config.model_type == "qwen3"
    assert config.num_hidden_layers == len(config.layer_types) == LAYERS
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 0)
    assert config.rope_parameters["rope_theta"] == 10000.0
    assert config.vocab_size == tiny.V
    assert config.tie_word_embeddings
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("ab") == [68, 69]
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == 2


def test_generators_and_quantisation_state_are_ignored_and_named(tmp_path: Path, tokenizer: Path) -> None:
    extra = {
        "nnx_aux.model.decoder.rngs.params.count": np.zeros((3,), np.int32),
        "params.params.decoder.aqt.scale": np.zeros((3,), np.int32),
        "opt_state.0.mu.params.decoder.decoder_norm.scale": np.zeros((3,), np.float32),
    }
    manifest = run(write(tmp_path, tiny.tensors(), extra=extra), tmp_path / "out", tokenizer)
    assert manifest.ignored == ("nnx_aux.model.decoder.rngs.params.count", "params.params.decoder.aqt.scale")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("params.params.decoder.foo.kernel", "params.params.decoder.foo.kernel: is left over"),
        ("params.params.decoder.logits_dense.kernel", "is an untied head, but logits_via_embedding is true"),
        ("nnx_aux.model.decoder.bias.value", "nnx_aux.model.decoder.bias.value: is neither"),
    ],
)
def test_an_unknown_array_is_refused_by_name(tmp_path: Path, tokenizer: Path, name: str, said: str) -> None:
    source = write(tmp_path, tiny.tensors(), extra={name: np.zeros((2,), np.float32)})
    with pytest.raises(BadInput, match=said.replace(".", r"\.")):
        run(source, tmp_path / "out", tokenizer)
    assert not (tmp_path / "out").exists()


def test_every_missing_array_is_named(tmp_path: Path, tokenizer: Path) -> None:
    arrays = tiny.as_maxtext(tiny.tensors(), LAYERS, scanned=True)
    for name in ("mlp.wo.kernel", "self_attention.key_norm.scale"):
        del arrays[f"params.params.decoder.layers.{name}"]
    tiny.write_checkpoint(step_dir(tmp_path), arrays)
    with pytest.raises(BadInput) as raised:
        run(step_dir(tmp_path), tmp_path / "out", tokenizer)
    assert {p.path.rsplit(".", 2)[-2] for p in raised.value.problems} == {"wo", "key_norm"}


def test_an_absent_head_that_the_config_wants_is_an_error(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(BadInput, match="ties its head: logits_via_embedding must be true"):
        run(write(tmp_path, tiny.tensors()), tmp_path / "out", tokenizer, architecture=tiny.architecture(tied=False))


def test_a_shape_that_the_architecture_denies_is_named_with_both(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, tiny.tensors())
    with pytest.raises(BadInput, match=r"wo\.kernel: '\(10, 3, 12\)', the architecture says \(11, 3, 12\)"):
        run(source, tmp_path / "out", tokenizer, architecture=replace(tiny.architecture(), mlp_dim=11))


def test_layers_that_contradict_the_metadata_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, tiny.tensors(), scanned=False, scan_layers=True)
    with pytest.raises(BadInput, match="says scan_layers True, but the tree holds 'layers_0'"):
        run(source, tmp_path / "out", tokenizer)


def test_without_metadata_the_tree_decides(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, tiny.tensors(), scanned=False, scan_layers=None)
    run(source, tmp_path / "out", tokenizer)
    assert_equal(tiny.read_tensors(tmp_path / "out"), tiny.tensors())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("decoder.decoder_norm.scale.value", "NNX SFT layout"),
        ("base.decoder.decoder_norm.scale.value", "NNX RL layout"),
        ("params.decoder.decoder_norm.scale", "weights directly under `params`"),
        ("weights.all", r"begins with \['weights'\]: an unknown layout"),
    ],
)
def test_other_layouts_are_refused_by_their_names(tmp_path: Path, tokenizer: Path, path: str, said: str) -> None:
    tiny.write_checkpoint(step_dir(tmp_path), {path: np.zeros((2,), np.float32)})
    with pytest.raises(BadInput, match=said):
        run(step_dir(tmp_path), tmp_path / "out", tokenizer)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_that_are_not_finite_are_refused_by_tensor(
    tmp_path: Path, tokenizer: Path, value: float, dtype: str
) -> None:
    weights = tiny.tensors()
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    with pytest.raises(BadInput, match=r"layers\.1\.mlp\.up_proj\.weight: .*wi_1.*not finite"):
        run(write(tmp_path, weights), tmp_path / "out", tokenizer, dtype=dtype)
    with pytest.raises(NotFound):
        verify_export(str(tmp_path / "out"))


def test_quantised_weights_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    arrays = tiny.as_maxtext(tiny.tensors(), LAYERS, scanned=True)
    name = "params.params.decoder.layers.mlp.wo.kernel"
    tiny.write_checkpoint(step_dir(tmp_path), {**arrays, name: arrays[name].astype(np.int8)})
    with pytest.raises(BadInput, match="int8"):
        run(step_dir(tmp_path), tmp_path / "out", tokenizer)


def test_a_lost_chunk_is_an_error_and_never_zeros(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, tiny.tensors())
    assert validate_checkpoint(str(source), 20) == []
    (source / "items" / "params.params.decoder.layers.mlp.wo.kernel" / "1.0.1").unlink()
    with pytest.raises(BadInput, match=r"array params\.params\.decoder\.layers\.mlp\.wo\.kernel cannot be read"):
        run(source, tmp_path / "out", tokenizer)
    (problem,) = validate_checkpoint(str(source), 20)
    assert "mlp.wo.kernel" in problem


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_validation_finds_weights_that_are_not_finite(tmp_path: Path, dtype: Any, bad: float) -> None:
    arrays = tiny.as_maxtext(tiny.tensors(), LAYERS, scanned=True)
    name = "params.params.decoder.layers.mlp.wo.kernel"
    kernel = arrays[name].astype(dtype)
    kernel.flat[-1] = bad
    tiny.write_checkpoint(step_dir(tmp_path), {**arrays, name: kernel})
    assert validate_checkpoint(str(step_dir(tmp_path)), 20) == []
    (problem,) = validate_checkpoint(str(step_dir(tmp_path)), 20, finite=True)
    assert f"array {name} holds numbers that are not finite" in problem


def test_a_truncated_chunk_is_an_error(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, tiny.tensors())
    chunk = source / "items" / "params.params.token_embedder.embedding" / "0.0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    with pytest.raises(BadInput, match="token_embedder"):
        run(source, tmp_path / "out", tokenizer)


def test_validation_names_a_metadata_file_that_was_cut(tmp_path: Path) -> None:
    source = write(tmp_path, tiny.tensors())
    (source / "items" / "_METADATA").write_text('{"tree')
    (problem,) = validate_checkpoint(str(source), 20)
    assert "_METADATA" in problem


@pytest.mark.parametrize("name", ["items/_METADATA", "_CHECKPOINT_METADATA"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_metadata_that_cannot_be_read_now_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    source = write(tmp_path, tiny.tensors())
    kept = open

    def failing(path: object, *args: Any, **options: Any) -> Any:
        if str(path).endswith(f"20/{name}"):
            raise OSError(number, os.strerror(number))
        return kept(path, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", failing)
    with pytest.raises(Unreachable, match=os.strerror(number)):
        validate_checkpoint(str(source), 20)


def test_a_folder_that_cannot_be_listed_now_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, tiny.tensors())

    def failing(path: object = ".") -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "listdir", failing)
    with pytest.raises(Unreachable, match="Input/output error"):
        validate_checkpoint(str(source), 20)


@pytest.mark.parametrize(
    ("said", "damaged"),
    [
        ("NOT_FOUND: chunk {0} is missing", True),
        ("DATA_LOSS: checksum", True),
        ("FAILED_PRECONDITION: Error reading local file: Truncated Zstd-compressed stream", True),
        ("INVALID_ARGUMENT: x", True),
        ("OUT_OF_RANGE: x", True),
        ("PERMISSION_DENIED: Error opening local file: NOT_FOUND is part of its name", False),
        ("UNAUTHENTICATED: token expired", False),
        ("INTERNAL: Error reading from local file: Input/output error", False),
        ("CANCELLED: x", False),
        ("UNKNOWN: Stale file handle", False),
        ("UNAVAILABLE: x", False),
        ("RESOURCE_EXHAUSTED: Too many open files", False),
        ("something else", False),
    ],
)
def test_only_what_was_read_can_be_damaged(tmp_path: Path, said: str, damaged: bool) -> None:
    tree = arrays.read_tree(str(write(tmp_path, tiny.tensors())))
    error = arrays.read_error(tree, ("params", "w"), ValueError(said))
    assert isinstance(error, BadInput if damaged else Unreachable)
    assert arrays.is_transient(said) == (not damaged and said != "something else")
    assert not arrays.is_transient("KeyError: 'UNAVAILABLE'")


def test_a_chunk_that_cannot_be_opened_now_does_not_set_the_checkpoint_aside(tmp_path: Path) -> None:
    """With too few file descriptors, the real error of tensorstore."""
    source = write(tmp_path, tiny.tensors())
    code = (
        "import resource, sys\n"
        "from elastic_tpu.runs.errors import Unreachable\n"
        "from elastic_tpu.trainer.checkpoint import arrays, blocks\n"
        "tree = arrays.read_tree(sys.argv[1])\n"
        "opened = arrays.open_arrays(tree, tree.leaves)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "try:\n"
        "    list(blocks.read_ahead(tree, (r for p, s in opened.items() for r in blocks.reads(p, s)), None))\n"
        "except Unreachable as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(source)], capture_output=True, text=True, timeout=60)
    assert "Too many open files" in done.stdout, done.stderr


def test_tokenizer_and_vocabulary(tmp_path: Path) -> None:
    larger = tiny.write_tokenizer(tmp_path / "larger", extra=5)  # 265 ids, 264 rows
    source = write(tmp_path, tiny.tensors())
    with pytest.raises(BadInput, match="uses 265 ids, the model has 264 rows"):
        run(source, tmp_path / "out", larger)
    exact = tiny.write_tokenizer(tmp_path / "exact", extra=4)
    run(source, tmp_path / "out", exact)
    assert tiny.read_tensors(tmp_path / "out")["model.embed_tokens.weight"].shape[0] == 264


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no tokenizer\.json"):
        run(write(tmp_path, tiny.tensors()), tmp_path / "out", tmp_path)


def test_an_export_is_no_checkpoint(tmp_path: Path, tokenizer: Path) -> None:
    out = tmp_path / "export" / "20"
    run(write(tmp_path, tiny.tensors()), out, tokenizer)
    with pytest.raises(BadInput, match="is a Hugging Face export already"):
        run(out, tmp_path / "again", tokenizer)


def test_a_step_without_items_is_named_with_what_is_there(tmp_path: Path, tokenizer: Path) -> None:
    (step_dir(tmp_path) / "model_params").mkdir(parents=True)
    with pytest.raises(NotFound, match=r"no items/_METADATA, found \['model_params'\]; MaxText's SFT"):
        run(step_dir(tmp_path), tmp_path / "out", tokenizer)


class Killed(BaseException):
    """What a kill in the middle looks like from inside."""


def test_an_interrupted_export_is_incomplete_and_a_rerun_is_clean(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, tiny.tensors())

    def stop(done: int, total: int) -> None:
        if done > total / 2:
            raise Killed

    with pytest.raises(Killed):
        run(source, tmp_path / "out", tokenizer, max_shard_bytes=4000, progress=stop)
    assert list((tmp_path / "out").glob("model-*"))
    with pytest.raises(NotFound, match="no finished export"):
        verify_export(str(tmp_path / "out"))
    manifest = run(source, tmp_path / "out", tokenizer)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {*manifest.files, "manifest.json"}
    assert_equal(tiny.read_tensors(tmp_path / "out"), tiny.tensors())


def test_at_every_write_a_reader_sees_no_export_or_the_whole_one(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, tiny.tensors())
    calls = 0
    stop_at = -1

    def counting(real: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == stop_at:
                raise Killed
            return real(*args, **kwargs)

        return wrapped

    monkeypatch.setattr("elastic_tpu.trainer.export.manifest.write_file", counting(write_file))
    monkeypatch.setattr(safetensors_writer.ShardFile, "write", counting(safetensors_writer.ShardFile.write))
    run(source, tmp_path / "whole", tokenizer)
    for number in range(1, calls + 1, 3):
        calls, stop_at = 0, number
        with pytest.raises(Killed):
            run(source, tmp_path / "out", tokenizer)
        with pytest.raises(NotFound):
            verify_export(str(tmp_path / "out"))


def test_a_damaged_export_loses_its_manifest_before_anything_else(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write(tmp_path, tiny.tensors()), tmp_path / "out"
    run(source, out, tokenizer)
    (out / "config.json").write_text("{}")

    def unlink_once(path: Path) -> None:
        monkeypatch.undo()
        path.unlink()
        raise Killed

    monkeypatch.setattr(type(epath.Path(out)), "unlink", unlink_once)
    with pytest.raises(Killed):
        run(source, out, tokenizer)
    assert not (out / "manifest.json").exists()
    assert (out / "model.safetensors").exists()


def test_a_published_export_is_returned_and_not_written_again(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, tiny.tensors())
    first = run(source, tmp_path / "out", tokenizer)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    (source / "items" / "_METADATA").unlink()  # retention may have taken the checkpoint meanwhile
    again = run(source, tmp_path / "out", tokenizer)
    assert again == first
    assert again.export_digest == first.export_digest
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before


def test_two_exports_of_one_checkpoint_have_one_digest(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, tiny.tensors())
    assert run(source, tmp_path / "a", tokenizer).export_digest == run(source, tmp_path / "b", tokenizer).export_digest


def test_another_export_in_the_way_is_refused_with_the_difference(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, tiny.tensors())
    run(source, tmp_path / "out", tokenizer)
    with pytest.raises(BadInput, match="dtype: 'float32', but 'bfloat16' is wanted"):
        run(source, tmp_path / "out", tokenizer, dtype="bfloat16")


def test_foreign_files_are_not_deleted(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(BadInput, match=r"thesis\.tex"):
        run(write(tmp_path, tiny.tensors()), tmp_path / "out", tokenizer)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda p: p.unlink(), "is missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "bytes, the manifest says"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1] + b"\x07"), "is not the sha256"),
    ],
)
def test_verification_sees_what_changed_and_a_rerun_heals_it(
    tmp_path: Path, tokenizer: Path, damage: Any, said: str
) -> None:
    source = write(tmp_path, tiny.tensors())
    first = run(source, tmp_path / "out", tokenizer)
    damage(tmp_path / "out" / "model.safetensors")
    with pytest.raises(BadInput, match=f"model.safetensors.*{said}"):
        verify_export(str(tmp_path / "out"))
    assert run(source, tmp_path / "out", tokenizer) == first == verify_export(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("older", "said"),
    [
        (False, "record_digest is .*: it was changed or damaged; export again"),
        (True, "its digest is not that of its files"),
    ],
)
def test_a_manifest_edited_by_hand_is_refused(tmp_path: Path, tokenizer: Path, older: bool, said: str) -> None:
    run(write(tmp_path, tiny.tensors()), tmp_path / "out", tokenizer)
    path = tmp_path / "out" / "manifest.json"
    record = json.loads(path.read_text())
    record["files"]["config.json"]["size"] += 1
    if older:
        del record["record_digest"]
    path.write_text(json.dumps(record))
    with pytest.raises(BadInput, match=said):
        verify_export(str(tmp_path / "out"))


def test_the_export_path_imports_no_jax_torch_transformers_or_maxtext() -> None:
    heavy = "{'jax', 'torch', 'transformers', 'maxtext'}"
    code = f"import sys, elastic_tpu.trainer.export.export; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_from_bucket_to_bucket(tmp_path: Path, tokenizer: Path, gcs_bucket: str) -> None:
    weights = tiny.tensors()
    root = f"gs://{gcs_bucket}/runs/r"
    tiny.write_checkpoint(f"{root}/checkpoints/20", tiny.as_maxtext(weights, LAYERS, scanned=True))
    manifest = run(f"{root}/checkpoints/20", f"{root}/export/20", tokenizer, max_shard_bytes=6000)
    assert verify_export(f"{root}/export/20") == manifest
    local = run(write(tmp_path, weights), tmp_path / "local", tokenizer, max_shard_bytes=6000)
    assert manifest.export_digest == local.export_digest
    assert run(f"{root}/checkpoints/20", f"{root}/export/20", tokenizer, max_shard_bytes=6000) == manifest


KEYS: dict[str, Any] = {
    "decoder_block": "qwen3",
    "base_emb_dim": 12,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "head_dim": 6,
    "base_mlp_dim": 10,
    "base_num_decoder_layers": 3,
    "vocab_size": 264,
    "rope_max_timescale": 10000,
    "normalization_layer_epsilon": 1e-6,
    "max_target_length": 32,
    "logits_via_embedding": True,
    "normalize_embedding_logits": False,
    "use_qk_norm": True,
    "mlp_activations": ["silu", "linear"],
}


def test_architecture_from_the_resolved_keys() -> None:
    assert architecture_from_maxtext(KEYS) == tiny.architecture()


@pytest.mark.parametrize("family", ["qwen3_moe", "llama2", "gemma3", "default", None])
def test_other_families_are_refused_by_name(family: str | None) -> None:
    with pytest.raises(BadInput, match=f"decoder_block {family}.*only dense Qwen3"):
        architecture_from_maxtext({**KEYS, "decoder_block": family})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalize_embedding_logits", True),
        ("use_qk_norm", False),
        ("num_experts", 8),
        ("rope_type", "yarn"),
        ("final_logits_soft_cap", 30.0),
        ("attention_bias", True),
        ("global_parameter_scale", 2),
        ("mlp_activations", ["gelu", "linear"]),
        ("vocab_size", 0),
        ("head_dim", None),
    ],
)
def test_settings_that_qwen3_cannot_express_are_named(key: str, value: object) -> None:
    with pytest.raises(BadInput, match=rf"train\.maxtext\.{key}"):
        architecture_from_maxtext({**KEYS, key: value})


# What follows compares with MaxText itself.


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints, tensors and logits by MaxText; made in one process of its own."""
    folder = tmp_path_factory.mktemp("maxtext")
    script = Path(__file__).with_name("maxtext_reference.py")
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


MODELS = ("scanned-tied", "scanned-untied", "unscanned-tied", "unscanned-untied")


def export_reference(
    reference: Path, model: str, kind: str, out: Path, tokenizer: Path, **changed: Any
) -> dict[str, Any]:
    keys = json.loads((reference / f"{model}.json").read_text())
    source = reference / f"{model}-{kind}" / "checkpoints" / "7"
    run(source, out, tokenizer, architecture=architecture_from_maxtext(keys), **changed)
    return dict(np.load(reference / f"{model}.npz"))


@pytest.mark.maxtext
@pytest.mark.full
@pytest.mark.xdist_group("maxtext-reference")
@pytest.mark.parametrize("kind", ["ocdbt", "zarr"])
@pytest.mark.parametrize("model", MODELS)
def test_all_tensors_equal_those_of_maxtexts_converter(
    reference: Path, model: str, kind: str, tmp_path: Path, tokenizer: Path
) -> None:
    expected = export_reference(reference, model, kind, tmp_path / "out", tokenizer)
    found = tiny.read_tensors(tmp_path / "out")
    assert_equal(found, {name: value for name, value in expected.items() if not name.startswith("__")})
    assert validate_checkpoint(str(reference / f"{model}-{kind}" / "checkpoints" / "7"), 7) == []


@pytest.mark.maxtext
@pytest.mark.full
@pytest.mark.xdist_group("maxtext-reference")
def test_a_checkpoint_copied_under_another_step_is_noticed(reference: Path, tmp_path: Path) -> None:
    """What the folder is called is no evidence (keras #23609: a stale state under a new name)."""
    renamed = tmp_path / "checkpoints" / "20"
    shutil.copytree(reference / f"{next(iter(MODELS))}-zarr" / "checkpoints" / "7", renamed)
    (problem,) = validate_checkpoint(str(renamed), 20)
    assert "after 8 steps, its name says 21" in problem


@pytest.mark.maxtext
@pytest.mark.full
@pytest.mark.xdist_group("maxtext-reference")
@pytest.mark.parametrize("model", MODELS)
def test_logits_equal_maxtexts_in_float32(reference: Path, model: str, tmp_path: Path, tokenizer: Path) -> None:
    from elastic_tpu.trainer.evaluate import forward

    expected = export_reference(reference, model, "zarr", tmp_path / "out", tokenizer)
    config = forward.load_config(str(tmp_path / "out"))
    params = forward.load_params(str(tmp_path / "out"), config)
    logits = forward.forward(config, params, expected["__ids"], head_bf16=config.tied)
    np.testing.assert_allclose(logits, expected["__logits"], atol=2e-5, rtol=0)
    # The comparison is able to fail: query heads in another order are another model.
    name = "layers.self_attn.q_proj.weight"
    swapped = {**params, name: params[name].reshape(3, 4, 16, 64)[:, ::-1].reshape(params[name].shape)}
    assert (
        np.abs(forward.forward(config, swapped, expected["__ids"], head_bf16=config.tied) - expected["__logits"]).max()
        > 1e-2
    )
