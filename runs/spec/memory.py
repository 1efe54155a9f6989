"""Memory of a training step on a device, from MaxText's keys: exact for the state, estimated for the rest. Pure.

State: weights, gradients and the optimizer's moments, sharded over the fsdp axes. Beside it a step holds what the
backward pass needs: an input of each layer and what the rematerialisation policy saves of it (Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", section 4), and at its peak either the logits or the
attention scores of one layer. The bytes of each are measured with XLA for CPUs; tests/trainer/test_memory.py holds the
sum against XLA's own figure. XLA for TPUs may need less, since it fuses more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..units import GIB, show_size

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LOGIT = 10  # bytes: in float32 and in the model's type, and the gradient
_SCORE = 13  # bytes of an attention score, where no kernel computes attention in tiles
_WHOLE_SCORES = ("dot_product",)
_SHARDING = ("fsdp_transpose", "tensor", "tensor_transpose", "tensor_sequence", "expert", "stage")  # beside fsdp
_FULL = ("full", "none", "None", None)


@dataclass(frozen=True)
class Memory:
    """Memory of one copy of the train state, and of a step on one device; in GiB.

    Attributes:
      parameters: their number.
      per_device_gib: state on a device, with gradients; None if the mesh axes do not multiply to the devices.
      saved_gib: on a device, what the forward pass saves for the backward pass; None as above.
      logits_gib: on a device, the logits with their gradient.
      scores_gib: on a device, the attention scores of one layer; 0 with a kernel that computes them in tiles.
    """

    parameters: int
    parameters_gib: float
    optimizer_gib: float
    checkpoint_gib: float
    per_device_gib: float | None
    saved_gib: float | None = None
    logits_gib: float | None = None
    scores_gib: float | None = None

    @property
    def step_gib(self) -> float | None:
        """An estimate of what a step needs on a device at its peak, the state included."""
        parts = (self.per_device_gib, self.saved_gib, self.logits_gib, self.scores_gib)
        state, saved, logits, scores = parts
        if state is None or saved is None or logits is None or scores is None:
            return None
        return state + saved + max(logits, scores)


def shortage(memory: Memory, there_gib: float, copies: int = 1) -> tuple[bool, str]:
    """Whether a step certainly does not fit, and why it may not; ("" if the estimate fits).

    Certain is what the state alone is too large for, or an estimate of more than twice what is there.

    Args:
      there_gib: memory of a device, or of the machine whose devices are simulated.
      copies: devices that share it.
    """
    state, step = memory.per_device_gib, memory.step_gib
    if state is None or (step or state) * copies <= there_gib:
        return False, ""
    parts = {"state": state, "saved for the backward pass": memory.saved_gib}
    parts |= {"logits": memory.logits_gib, "attention scores": memory.scores_gib}
    shown = ", ".join(f"{name} {show_size(gib * GIB)}" for name, gib in parts.items() if gib)
    devices = f", {copies} devices share it" if copies > 1 else ""
    words = f"a step needs about {show_size((step or state) * GIB)} a device ({shown}), there are "
    words += f"{show_size(there_gib * GIB)}{devices}"
    cure = "use more chips a slice, or shard over slices (dcn_fsdp_parallelism)"
    if copies > 1:
        cure = "set smaller dimensions in train.maxtext, as examples/local.yaml does"
    if state * copies <= there_gib:
        cure = "lower per_device_batch_size or max_target_length in train.maxtext"
    certain = state * copies > there_gib or (step or 0.0) * copies > 2 * there_gib
    return certain, f"{words}: {cure}"


def estimate(keys: Mapping[str, Any], devices: int, slices: int) -> Memory | None:
    """The memory of a model in training; None if its size is not known.

    Args:
      keys: MaxText's, with its defaults.
      devices: of one slice.
      slices: how many.
    """
    count = parameter_count(keys)
    if count is None:
        return None
    weight = _BYTES.get(str(keys.get("weight_dtype")), 4)
    first_moment = _BYTES.get(str(keys.get("mu_dtype") or keys.get("weight_dtype")), 4)
    moments = {"sgd": 0, "muon": first_moment}.get(str(keys.get("opt_type")), first_moment + weight)
    parameters, optimizer = count * weight / GIB, count * moments / GIB
    ways = _weight_ways(keys, devices, slices)
    per_device = (parameters * 2 + optimizer) / ways if ways else None  # weights, gradients, moments
    activations = _activations(keys) if ways else (None, None, None)
    return Memory(count, parameters, optimizer, parameters + optimizer, per_device, *activations)


def _activations(keys: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """GiB on a device: saved for the backward pass, logits, scores; None if a key is missing."""
    try:
        length = int(keys["max_target_length"])
        # The batch is that of all devices. An axis that is no batch axis makes sequences a device more, and what is
        # sharded over it less by as much.
        tokens = float(keys["per_device_batch_size"]) * length
        emb, layers, vocab = (int(keys[f]) for f in ("base_emb_dim", "base_num_decoder_layers", "vocab_size"))
        heads, kv, dim = (int(keys[f]) for f in ("base_num_query_heads", "base_num_kv_heads", "head_dim"))
        mlp = int(keys["base_mlp_dim"])
        if int(keys.get("num_experts") or 1) > 1:
            expert = int(keys.get("base_moe_mlp_dim") or -1)
            mlp = int(keys.get("num_experts_per_tok") or 1) * (expert if expert > 0 else mlp)
        tiles = max(1, int(keys.get("num_vocab_tiling") or 1))
    except (KeyError, TypeError, ValueError):
        return None, None, None
    wide = _BYTES.get(str(keys.get("dtype")), 4)
    gates = len(keys.get("mlp_activations") or ["silu"])
    policy, attention = keys.get("remat_policy"), (heads + 2 * kv) * dim
    extra = 0 if policy in _FULL else attention if policy == "save_qkv_proj" else attention + emb + gates * mlp
    saved = layers * tokens * wide * (2 * emb + extra)
    scores = heads * length * tokens * _SCORE if keys.get("attention") in _WHOLE_SCORES else 0.0
    return saved / GIB, tokens * vocab * _LOGIT / tiles / GIB, scores / GIB


def _weight_ways(keys: Mapping[str, Any], devices: int, slices: int) -> int | None:
    """Devices that share one copy of the state: the fsdp axes, and every other that MaxText shards weights over."""
    ways = fsdp_ways(keys, devices, slices)
    for key, value in keys.items() if ways else ():
        axis = re.fullmatch(r"(?:ici|dcn)_(\w+)_parallelism", key)
        if axis and axis[1] in _SHARDING:
            ways = ways and (devices if value == -1 else ways * max(1, int(value or 1)))
    return ways


def fsdp_ways(keys: Mapping[str, Any], devices: int, slices: int) -> int | None:
    """Devices that MaxText's fsdp axis spans over all slices; None when the axes do not multiply to the devices."""

    def fill(prefix: str, total: int) -> int | None:
        axes = {k: int(v) for k, v in keys.items() if re.fullmatch(rf"{prefix}_\w+_parallelism", k) and v is not None}
        known = 1
        for value in axes.values():
            known *= value if value != -1 else 1
        open_axes = [k for k, v in axes.items() if v == -1]
        if known == 0 or total % known or (not open_axes and known != total) or len(open_axes) > 1:
            return None
        fsdp = axes.get(f"{prefix}_fsdp_parallelism", 1)
        return total // known if fsdp == -1 else fsdp

    inner = fill("ici", devices)
    outer = fill("dcn", slices) if slices > 1 else 1
    return None if inner is None or outer is None else inner * outer


def parameter_count(keys: Mapping[str, Any]) -> int | None:
    """Parameters of a decoder with gated MLP and optional experts, from MaxText's keys; None if a key is missing."""
    try:
        emb, layers = int(keys["base_emb_dim"]), int(keys["base_num_decoder_layers"])
        heads, kv, dim = int(keys["base_num_query_heads"]), int(keys["base_num_kv_heads"]), int(keys["head_dim"])
        mlp, vocab, experts = int(keys["base_mlp_dim"]), int(keys["vocab_size"]), int(keys.get("num_experts") or 1)
    except (KeyError, TypeError, ValueError):
        return None
    gates = len(keys.get("mlp_activations") or ["silu"])
    if experts > 1:
        expert_dim = int(keys.get("base_moe_mlp_dim") or -1)
        feed_forward = experts * (gates + 1) * emb * (expert_dim if expert_dim > 0 else mlp) + emb * experts
    else:
        feed_forward = (gates + 1) * emb * mlp
    attention = emb * dim * (2 * heads + 2 * kv)
    norms = 2 * emb + (2 * dim if keys.get("use_qk_norm") else 0)
    tables = vocab * emb * (1 if keys.get("logits_via_embedding") else 2)
    return layers * (attention + feed_forward + norms) + tables + emb
