"""Forward pass of a dense Qwen3 in JAX, from an export folder: what the evaluation scores with.

Everything is float32 with matrix products in full precision, so that figures do not depend on the device. MaxText
rounds a tied head to bfloat16 in its own forward pass, whatever its dtype (layers/embeddings.py, attend_on_embedding);
``head_bf16`` does the same, and then logits agree with MaxText's in float32 to about 2e-5.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (teaches numpy, and so safetensors, bfloat16)
import numpy as np
from etils import epath
from safetensors import safe_open

from ...runs.errors import BadInput, Problem
from ..export.qwen3 import Architecture, config_json, stored_arrays
from ..export.safetensors_writer import INDEX

Params = Mapping[str, Any]
_einsum = partial(jnp.einsum, precision="highest")


def load_config(export_dir: str) -> Architecture:
    """The architecture of an export from its config.json.

    Raises:
      BadInput: not a Qwen3 that this forward pass computes; the field is named.
    """
    path = epath.Path(export_dir) / "config.json"
    try:
        config = json.loads(path.read_text())
        rope = config.get("rope_parameters") or {}
        architecture = Architecture(
            num_query_heads=int(config["num_attention_heads"]),
            num_kv_heads=int(config["num_key_value_heads"]),
            head_dim=int(config["head_dim"]),
            emb_dim=int(config["hidden_size"]),
            mlp_dim=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            vocab_size=int(config["vocab_size"]),
            rope_theta=float(rope.get("rope_theta") or config["rope_theta"]),
            rms_norm_eps=float(config["rms_norm_eps"]),
            max_position_embeddings=int(config["max_position_embeddings"]),
            tied=bool(config["tie_word_embeddings"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: not the config.json of an export ({error!r})") from error
    ours = config_json(architecture, dtype="", bos=None, eos=None, pad=None)
    differing = [
        Problem(name, config.get(name), f"only {ours[name]!r} can be evaluated")
        for name in ("model_type", "hidden_act", "attention_bias", "use_sliding_window", "layer_types")
        if config.get(name) != ours[name]
    ]
    if differing:
        raise BadInput(differing)
    return architecture


def load_params(export_dir: str, config: Architecture) -> Params:
    """All tensors of an export as float32; a layer's are stacked over layers as ``layers.<name>``: (L, ...).

    Raises:
      BadInput: a tensor is missing, left over or misshapen, each by name. No weight is made up.
    """
    expected = {t.name: t.shape for a in stored_arrays(config, scanned=False) for t in a.tensors}
    params: dict[str, Any] = {}
    seen: set[str] = set()
    problems = []
    for name, value in _tensors(export_dir):
        seen.add(name)
        if expected.get(name) != value.shape:
            said = "the config has no such tensor" if name not in expected else f"the config says {expected[name]}"
            problems.append(Problem(name, str(value.shape), said))
            continue
        prefix, _, rest = name.removeprefix("model.layers.").partition(".")
        if name.startswith("model.layers."):
            stack = params.setdefault(f"layers.{rest}", np.empty((config.num_layers, *value.shape), np.float32))
            stack[int(prefix)] = value
        else:
            params[name] = value.astype(np.float32)
    problems += [Problem(name, None, "is missing from the export") for name in sorted(expected.keys() - seen)]
    if problems:
        raise BadInput(problems)
    return {name: jnp.asarray(value) for name, value in params.items()}


def forward(config: Architecture, params: Params, ids: jax.Array, *, head_bf16: bool) -> jax.Array:
    """Logits of the next token at each position.

    Args:
      config: the architecture; static under jit.
      params: from `load_params`.
      ids: (batch, length) token ids; position 0 is each row's first token.
      head_bf16: round the output head to bfloat16, as MaxText does with a tied one.
    Returns:
      (batch, length, vocabulary), float32.
    """
    batch, length = ids.shape
    queries, groups, size = config.num_query_heads, config.num_kv_heads, config.head_dim
    frequency = config.rope_theta ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency
    cosine, sine = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    visible = jnp.tril(jnp.ones((length, length), bool))

    def normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + config.rms_norm_eps) * scale

    def rotate(x: jax.Array) -> jax.Array:
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    def layer(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
        h = normalise(x, p["input_layernorm.weight"])
        q = _einsum("ble,oe->blo", h, p["self_attn.q_proj.weight"]).reshape(batch, length, queries, size)
        k = _einsum("ble,oe->blo", h, p["self_attn.k_proj.weight"]).reshape(batch, length, groups, size)
        v = _einsum("ble,oe->blo", h, p["self_attn.v_proj.weight"]).reshape(batch, length, groups, size)
        q = rotate(normalise(q, p["self_attn.q_norm.weight"])).reshape(batch, length, groups, queries // groups, size)
        k = rotate(normalise(k, p["self_attn.k_norm.weight"]))
        score = _einsum("blgqd,bmgd->bgqlm", q, k) * size**-0.5
        weight = jax.nn.softmax(jnp.where(visible, score, -1e30), -1)
        mixed = _einsum("bgqlm,bmgd->blgqd", weight, v).reshape(batch, length, queries * size)
        x = x + _einsum("blo,eo->ble", mixed, p["self_attn.o_proj.weight"])
        h = normalise(x, p["post_attention_layernorm.weight"])
        gate = jax.nn.silu(_einsum("ble,me->blm", h, p["mlp.gate_proj.weight"]))
        up = _einsum("ble,me->blm", h, p["mlp.up_proj.weight"])
        return x + _einsum("blm,em->ble", gate * up, p["mlp.down_proj.weight"]), None

    layers = {name.removeprefix("layers."): value for name, value in params.items() if name.startswith("layers.")}
    x, _ = jax.lax.scan(layer, params["model.embed_tokens.weight"][ids], layers)
    head = params["model.embed_tokens.weight"] if config.tied else params["lm_head.weight"]
    if head_bf16:
        head = head.astype(jnp.bfloat16).astype(jnp.float32)
    return _einsum("ble,ve->blv", normalise(x, params["model.norm.weight"]), head)


def _tensors(export_dir: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """All tensors, file after file; a file on a bucket passes through a temporary one."""
    folder = epath.Path(export_dir)
    names = ["model.safetensors"]
    if (folder / INDEX).exists():
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    for name in names:
        if not (folder / name).exists():
            raise BadInput([Problem(name, None, "is missing from the export")])
        with tempfile.TemporaryDirectory(prefix="elastic-tpu-evaluate-") as temporary:
            path = folder / name
            if export_dir.startswith("gs://"):
                path = path.copy(epath.Path(temporary) / name)
            with safe_open(Path(path), "numpy") as file:
                for key in file.keys():  # noqa: SIM118  (not a mapping)
                    yield key, file.get_tensor(key)
