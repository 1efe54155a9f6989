"""Tiny Qwen3 checkpoints and tokenizers written by hand, so that export and evaluation are tested without MaxText.

The weights are first made as Hugging Face names and shapes, then stored as MaxText does by plain numpy: what an export
must give back is known without the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tensorstore as ts
from elastic_tpu.trainer.export.qwen3 import Architecture
from tokenizers import Tokenizer, models, pre_tokenizers

E, Q, K, D, M, V = 12, 4, 2, 6, 10, 264


def architecture(layers: int = 3, *, tied: bool = True, vocabulary: int = V, **other: Any) -> Architecture:
    return Architecture(Q, K, D, E, M, layers, vocabulary, 10000.0, 1e-6, 32, tied, **other)


def tensors(layers: int = 3, *, tied: bool = True, vocabulary: int = V, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights by their Hugging Face names."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, E), "model.norm.weight": (E,)}
    if not tied:
        shapes["lm_head.weight"] = (vocabulary, E)
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {
            f"{p}input_layernorm.weight": (E,),
            f"{p}post_attention_layernorm.weight": (E,),
            f"{p}self_attn.q_proj.weight": (Q * D, E),
            f"{p}self_attn.k_proj.weight": (K * D, E),
            f"{p}self_attn.v_proj.weight": (K * D, E),
            f"{p}self_attn.o_proj.weight": (E, Q * D),
            f"{p}self_attn.q_norm.weight": (D,),
            f"{p}self_attn.k_norm.weight": (D,),
            f"{p}mlp.gate_proj.weight": (M, E),
            f"{p}mlp.up_proj.weight": (M, E),
            f"{p}mlp.down_proj.weight": (E, M),
        }
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def as_maxtext(
    weights: Mapping[str, np.ndarray], layers: int, *, scanned: bool, axis: int = 1
) -> dict[str, np.ndarray]:
    """The same weights as MaxText keeps them, by dotted path."""
    root = "params.params"
    stored = {
        f"{root}.token_embedder.embedding": weights["model.embed_tokens.weight"],
        f"{root}.decoder.decoder_norm.scale": weights["model.norm.weight"],
    }
    if "lm_head.weight" in weights:
        stored[f"{root}.decoder.logits_dense.kernel"] = weights["lm_head.weight"].T
    per_layer: list[dict[str, np.ndarray]] = []
    for i in range(layers):
        w = {k.removeprefix(f"model.layers.{i}."): v for k, v in weights.items() if k.startswith(f"model.layers.{i}.")}
        per_layer.append(
            {
                "pre_self_attention_layer_norm.scale": w["input_layernorm.weight"],
                "post_self_attention_layer_norm.scale": w["post_attention_layernorm.weight"],
                "self_attention.query.kernel": w["self_attn.q_proj.weight"].T.reshape(E, Q, D),
                "self_attention.key.kernel": w["self_attn.k_proj.weight"].T.reshape(E, K, D),
                "self_attention.value.kernel": w["self_attn.v_proj.weight"].T.reshape(E, K, D),
                "self_attention.out.kernel": w["self_attn.o_proj.weight"].T.reshape(Q, D, E),
                "self_attention.query_norm.scale": w["self_attn.q_norm.weight"],
                "self_attention.key_norm.scale": w["self_attn.k_norm.weight"],
                "mlp.wi_0.kernel": w["mlp.gate_proj.weight"].T,
                "mlp.wi_1.kernel": w["mlp.up_proj.weight"].T,
                "mlp.wo.kernel": w["mlp.down_proj.weight"].T,
            }
        )
    for name in per_layer[0]:
        if scanned:
            stored[f"{root}.decoder.layers.{name}"] = np.stack([layer[name] for layer in per_layer], axis)
        else:
            stored |= {f"{root}.decoder.layers_{i}.{name}": layer[name] for i, layer in enumerate(per_layer)}
    return stored


def write_checkpoint(
    step_dir: Path | str,
    arrays: Mapping[str, np.ndarray],
    *,
    zarr3: bool = False,
    scan_layers: bool | None = None,
    split: int = 2,
) -> None:
    """Write arrays by dotted path as a checkpoint, `split` chunks along each axis that divides."""
    from elastic_tpu.trainer.checkpoint.arrays import kvstore_spec
    from etils import epath

    folder = epath.Path(step_dir)
    (folder / "items").mkdir(parents=True, exist_ok=True)
    for name, value in arrays.items():
        chunk = [n // split if n % split == 0 and n >= split else n for n in value.shape]
        base = kvstore_spec(f"{step_dir}/items/")
        if zarr3:
            kvstore = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
            kind = {"bfloat16": "bfloat16"}.get(value.dtype.name, value.dtype.name)
            grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
            metadata: dict[str, Any] = {"shape": value.shape, "chunk_grid": grid, "data_type": kind}
        else:
            kvstore = {**base, "path": f"{base['path']}{name}/"}
            code = {"bfloat16": "bfloat16", "float32": "<f4", "int32": "<i4", "int8": "|i1"}[value.dtype.name]
            compressor = {"id": "zstd", "level": 1}
            metadata = {"shape": value.shape, "chunks": chunk, "dtype": code, "compressor": compressor}
        driver = "zarr3" if zarr3 else "zarr"
        ts.open({"driver": driver, "kvstore": kvstore, "metadata": metadata}, create=True).result().write(
            value
        ).result()
    leaves = {
        str(tuple(name.split("."))): {
            "key_metadata": [{"key": key, "key_type": 2} for key in name.split(".")],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False},
        }
        for name in arrays
    }
    record = {"tree_metadata": leaves, "use_ocdbt": zarr3, "use_zarr3": zarr3}
    (folder / "items" / "_METADATA").write_text(json.dumps(record))
    custom = {} if scan_layers is None else {"scan_layers": scan_layers}
    top = {"custom_metadata": custom, "commit_timestamp_nsecs": 1, "item_handlers": {"items": "x"}}
    (folder / "_CHECKPOINT_METADATA").write_text(json.dumps(top))


def write_tokenizer(
    folder: Path, *, bos: str | None = "<bos>", eos: str | None = "<eos>", extra: int = 0, adds_bos: bool = False
) -> Path:
    """A byte-level tokenizer: ids 0 to 3 are <pad>, <bos>, <eos>, <unk>, then 256 bytes, then `extra` more."""
    names = ["<pad>", "<bos>", "<eos>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<extra{i}>" for i in range(extra)]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if adds_bos:
        from tokenizers.processors import TemplateProcessing

        tokenizer.add_special_tokens(["<bos>"])
        tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "bos_token": bos, "eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    return folder


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of an export by the safetensors library, as it checks the files."""
    from safetensors.numpy import load_file

    assert ml_dtypes  # teaches numpy bfloat16
    result: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        result |= load_file(path)
    return result
