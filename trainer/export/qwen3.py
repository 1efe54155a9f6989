"""Qwen3 (dense): how MaxText's arrays become Hugging Face's tensors. Names and shapes only, no file is touched.

Each rule writes the axes of both sides as letters: E embedding, Q query heads, K key/value heads, D head size, M
MLP, V vocabulary. ``EQD -> QD,E`` reads: MaxText keeps (E, Q, D), the Hugging Face matrix has Q and D joined as its
rows and E as its columns. With scanned layers MaxText stacks all layers in one array, on axis ``param_scan_axis``.
Source: maxtext/checkpoint_conversion/utils/param_mapping.py and transformers' models/qwen3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...runs.errors import BadInput, Problem
from ..checkpoint.layout import WEIGHTS, LeafPath


@dataclass(frozen=True)
class Architecture:
    """A dense Qwen3 as config.json describes it. Sizes in elements, `rope_theta` as MaxText's rope_max_timescale.

    `layer_axis` is where MaxText stacks scanned layers (param_scan_axis).
    """

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    emb_dim: int
    mlp_dim: int
    num_layers: int
    vocab_size: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    tied: bool
    layer_axis: int = 1


@dataclass(frozen=True)
class Tensor:
    """One Hugging Face tensor. `axes` is its shape before neighbouring axes are joined: the stored axes, permuted."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True)
class StoredArray:
    """One array of the checkpoint and the tensors in it: one, or one a layer along `layer_axis`.

    `permutation` orders the stored axes, the layer axis left out, as `Tensor.axes`.
    """

    path: LeafPath
    shape: tuple[int, ...]
    layer_axis: int | None
    permutation: tuple[int, ...]
    tensors: tuple[Tensor, ...]


_EMBEDDING = ("token_embedder.embedding", "model.embed_tokens.weight", "VE", "V,E")
_NORM = ("decoder.decoder_norm.scale", "model.norm.weight", "E", "E")
_HEAD = ("decoder.logits_dense.kernel", "lm_head.weight", "EV", "V,E")
_LAYER = (
    ("pre_self_attention_layer_norm.scale", "input_layernorm.weight", "E", "E"),
    ("self_attention.query.kernel", "self_attn.q_proj.weight", "EQD", "QD,E"),
    ("self_attention.key.kernel", "self_attn.k_proj.weight", "EKD", "KD,E"),
    ("self_attention.value.kernel", "self_attn.v_proj.weight", "EKD", "KD,E"),
    ("self_attention.query_norm.scale", "self_attn.q_norm.weight", "D", "D"),
    ("self_attention.key_norm.scale", "self_attn.k_norm.weight", "D", "D"),
    ("self_attention.out.kernel", "self_attn.o_proj.weight", "QDE", "E,QD"),
    ("post_self_attention_layer_norm.scale", "post_attention_layernorm.weight", "E", "E"),
    ("mlp.wi_0.kernel", "mlp.gate_proj.weight", "EM", "M,E"),
    ("mlp.wi_1.kernel", "mlp.up_proj.weight", "EM", "M,E"),
    ("mlp.wo.kernel", "mlp.down_proj.weight", "ME", "E,M"),
)

# What transformers' Qwen3 cannot express: MaxText's key, whether its value can be exported, and what to set instead.
_FIXED: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("use_qk_norm", bool, "must be true: Qwen3 normalises queries and keys"),
    ("attention_bias", lambda v: not v, "must be false: the exporter knows no attention biases"),
    ("attention_type", lambda v: v == "global", "must be `global`"),
    ("fused_qkv", lambda v: not v, "must be false"),
    ("fused_mlp", lambda v: not v, "must be false"),
    ("share_kv_projections", lambda v: not v, "must be false"),
    ("num_experts", lambda v: v in (None, 0, 1), "must be 1: only the dense Qwen3 exports"),
    ("global_parameter_scale", lambda v: v == 1, "must be 1: set the base_* sizes instead"),
    ("mlp_activations", lambda v: _texts(v) == ["silu", "linear"], "must be [silu, linear]"),
    ("rope_type", lambda v: str(v).lower() == "default", "must be `default`"),
    ("rope_linear_scaling_factor", lambda v: v == 1, "must be 1"),
    ("rope_min_timescale", lambda v: v == 1, "must be 1"),
    ("partial_rotary_factor", lambda v: v in (None, 1), "must be 1"),
    ("attn_logits_soft_cap", lambda v: not v, "must be 0: Qwen3 has no soft cap"),
    ("final_logits_soft_cap", lambda v: not v, "must be 0: Qwen3 has no soft cap"),
    ("param_scan_axis", lambda v: v in (0, 1), "must be 0 or 1"),
)


def architecture_from_maxtext(keys: Mapping[str, object]) -> Architecture:
    """The architecture from MaxText's resolved configuration (base.yml, models/<name>.yml and the overrides).

    Raises:
      BadInput: another family than dense Qwen3, or settings that a Qwen3 config.json cannot express; all of them.
    """
    family = str(getattr(keys.get("decoder_block"), "value", keys.get("decoder_block")))
    if family != "qwen3":
        cure = "only dense Qwen3 (decoder_block: qwen3) can be exported; set `export: false` to train it without export"
        raise BadInput([Problem("model.name", f"decoder_block {family}", cure)])
    problems = [
        Problem(f"train.maxtext.{name}", keys[name], cure)
        for name, good, cure in _FIXED
        if name in keys and not good(keys[name])
    ]
    tied = bool(keys.get("logits_via_embedding", False))
    if tied and keys.get("normalize_embedding_logits"):
        problems.append(Problem("train.maxtext.normalize_embedding_logits", True, "must be false with a tied head"))

    def number(name: str) -> float:
        value = keys.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            problems.append(Problem(f"train.maxtext.{name}", value, "a positive number is needed for config.json"))
            return 1
        return value

    architecture = Architecture(
        num_query_heads=int(number("base_num_query_heads")),
        num_kv_heads=int(number("base_num_kv_heads")),
        head_dim=int(number("head_dim")),
        emb_dim=int(number("base_emb_dim")),
        mlp_dim=int(number("base_mlp_dim")),
        num_layers=int(number("base_num_decoder_layers")),
        vocab_size=int(number("vocab_size")),
        rope_theta=float(number("rope_max_timescale")),
        rms_norm_eps=float(number("normalization_layer_epsilon")),
        max_position_embeddings=int(number("max_target_length")),
        tied=tied,
        layer_axis=1 if keys.get("param_scan_axis", 1) else 0,
    )
    if problems:
        raise BadInput(problems)
    return architecture


def stored_arrays(architecture: Architecture, *, scanned: bool) -> tuple[StoredArray, ...]:
    """Every array that a checkpoint of this model has, in the order in which it is exported."""
    layers = range(architecture.num_layers)
    result = [_array(architecture, *_EMBEDDING)]
    if scanned:
        result += [_array(architecture, f"decoder.layers.{a}", hf, s, t, layers=layers) for a, hf, s, t in _LAYER]
    else:
        result += [
            _array(architecture, f"decoder.layers_{i}.{a}", f"model.layers.{i}.{hf}", s, t)
            for i in layers
            for a, hf, s, t in _LAYER
        ]
    if not architecture.tied:
        result.append(_array(architecture, *_HEAD))
    return (*result, _array(architecture, *_NORM))


def check_names(expected: Sequence[StoredArray], weights: Iterable[LeafPath], architecture: Architecture) -> None:
    """Each expected array must be there, and no other.

    Raises:
      BadInput: with every missing and every left-over array.
    """
    wanted, found = {array.path for array in expected}, set(weights)
    head = (*WEIGHTS, *_HEAD[0].split("."))
    problems = [
        Problem(
            ".".join(path),
            None,
            "is missing, so the checkpoint ties its head: logits_via_embedding must be true"
            if path == head
            else "is missing from the checkpoint",
        )
        for path in sorted(wanted - found)
    ] + [
        Problem(
            ".".join(path),
            None,
            "is an untied head, but logits_via_embedding is true: it would be dropped"
            if path == head and architecture.tied
            else "is left over: no Qwen3 tensor is made from it",
        )
        for path in sorted(found - wanted)
    ]
    if problems:
        raise BadInput(problems)


def config_json(
    architecture: Architecture, *, dtype: str, bos: int | None, eos: int | None, pad: int | None
) -> dict[str, object]:
    """The export's config.json, for transformers 4 (rope_theta, torch_dtype) and 5 (rope_parameters, dtype)."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": architecture.vocab_size,
        "hidden_size": architecture.emb_dim,
        "intermediate_size": architecture.mlp_dim,
        "num_hidden_layers": architecture.num_layers,
        "num_attention_heads": architecture.num_query_heads,
        "num_key_value_heads": architecture.num_kv_heads,
        "head_dim": architecture.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": architecture.max_position_embeddings,
        "rms_norm_eps": architecture.rms_norm_eps,
        "rope_theta": architecture.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": architecture.rope_theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": ["full_attention"] * architecture.num_layers,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": architecture.tied,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def _array(a: Architecture, path: str, name: str, stored: str, target: str, layers: range | None = None) -> StoredArray:
    sizes = {
        "E": a.emb_dim,
        "Q": a.num_query_heads,
        "K": a.num_kv_heads,
        "D": a.head_dim,
        "M": a.mlp_dim,
        "V": a.vocab_size,
    }
    letters = target.replace(",", "")
    axes = tuple(sizes[letter] for letter in letters)
    shape = tuple(_product(sizes[letter] for letter in group) for group in target.split(","))
    full = [sizes[letter] for letter in stored]
    if layers is not None:
        full.insert(a.layer_axis, len(layers))
    names = [name] if layers is None else [f"model.layers.{i}.{name}" for i in layers]
    return StoredArray(
        path=(*WEIGHTS, *path.split(".")),
        shape=tuple(full),
        layer_axis=None if layers is None else a.layer_axis,
        permutation=tuple(stored.index(letter) for letter in letters),
        tensors=tuple(Tensor(n, shape, axes) for n in names),
    )


def _product(sizes: Iterable[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def _texts(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]
