"""What a spec amounts to, worked out with no side effect and without JAX: hardware, memory, MaxText overrides, cost.

`contradictions` is the part that refuses: fields that are right alone and wrong together. `make_plan` is the part
that tells: what `elastic-tpu plan` prints and what the trainer and the platform act on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import maxtext_config, tpu
from .errors import BadInput, Problem
from .spec import RunSpec, is_bucket

# Data sets that MaxText makes itself.
NOT_FILES = ("synthetic",)

# A checkpoint above this size goes through Pathways' persistence service instead of the head's memory.
PERSISTENCE_ABOVE_GIB = 6.7

_SUFFIXES = {".parquet": "parquet", ".array_record": "arrayrecord", ".arrayrecord": "arrayrecord"}
_EXPORTED = ("qwen3",)
_GIB = 2.0**30


@dataclass(frozen=True)
class Memory:
    """Bytes of one copy of the train state, in GiB."""

    parameters: int
    parameters_gib: float
    optimizer_gib: float
    checkpoint_gib: float
    per_device_gib: float | None


@dataclass(frozen=True)
class Plan:
    """What will be taken, set and spent. Slice-hours count every slice for the whole limit: an upper bound."""

    run_id: str
    uri: str
    spec_hash: str
    platform: str
    slices: int
    minimum: int
    shape: tpu.SliceShape
    chips: int
    vms: int
    devices: int
    global_batch: int
    memory: Memory | None
    persistence: bool
    persistence_reason: str
    overrides: Mapping[str, Any]
    slice_hours: Mapping[str, float]
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def data_kind(pattern: str) -> tuple[str, str]:
    """MaxText's (dataset_type, grain_file_type) for a file pattern; unknown suffixes are Hugging Face's."""
    if pattern == "synthetic":
        return "synthetic", ""
    for suffix, kind in _SUFFIXES.items():
        if pattern.rstrip("*").endswith(suffix):
            return "grain", kind
    return "hf", ""


def shape_of(spec: RunSpec) -> tpu.SliceShape:
    """The hardware of one slice.

    Raises:
      BadInput: no such slice; the nearest right value is named.
    """
    return tpu.resolve_slice(spec.slices.type, spec.slices.machine_type, spec.slices.topology)


def contradictions(spec: RunSpec) -> list[Problem]:
    """Everything that is wrong with a spec whose fields are right one by one."""
    problems: list[Problem] = []
    problems += _slice_problems(spec)
    problems += _data_problems(spec)
    problems += maxtext_config.check_model(spec.model.name)
    problems += maxtext_config.check_overrides(spec.train.maxtext)
    problems += _secret_problems(spec)
    if spec.model.start_from is not None:
        problems.append(
            Problem("model.start_from", spec.model.start_from, "is reserved and not built yet; leave it out")
        )
    keys = maxtext_config.resolved(spec.model.name, spec.train.maxtext)
    block = keys.get("decoder_block")
    if spec.export and maxtext_config.base() and block not in _EXPORTED:
        cure = f"the exporter knows {', '.join(_EXPORTED)} (decoder_block {block!r} it does not); set `export: false`"
        problems.append(Problem("model.name", spec.model.name, cure))
    if spec.evaluate and not spec.export:
        problems.append(
            Problem("evaluate", None, "needs an export; set `evaluate: false` too, or drop `export: false`")
        )
    if spec.evaluate and spec.evaluate.gate and not spec.evaluate.heldout:
        problems.append(Problem("evaluate.gate", None, "needs `evaluate.heldout: true`, or no gate"))
    if spec.checkpoint.every > spec.train.steps:
        cure = f"is more than train.steps ({spec.train.steps}): nothing would be saved between start and end; lower it"
        problems.append(Problem("checkpoint.every", spec.checkpoint.every, cure))
    return problems


def _slice_problems(spec: RunSpec) -> list[Problem]:
    problems: list[Problem] = []
    slices = spec.slices
    if slices.min is not None and slices.min > slices.count:
        problems.append(Problem("slices.min", slices.min, f"must be at most slices.count ({slices.count})"))
    if (slices.type is None) == (slices.machine_type is None):
        cure = "give either an accelerator name as `type` (v6e-16), or `machine_type` and `topology`"
        return [*problems, Problem("slices.type", slices.type, cure)]
    if slices.machine_type is not None and slices.topology is None:
        return [*problems, Problem("slices.topology", None, "is required beside slices.machine_type")]
    if slices.reservation is not None and slices.capacity != "reservation":
        cure = "needs `slices.capacity: reservation`; spot, flex-start and reservations exclude one another"
        problems.append(Problem("slices.reservation", slices.reservation, cure))
    if slices.capacity == "reservation" and slices.reservation is None:
        problems.append(Problem("slices.reservation", None, "is required with `slices.capacity: reservation`"))
    try:
        shape = shape_of(spec)
    except BadInput as error:
        return [*problems, *(error.problems or (Problem("slices.type", slices.type, str(error)),))]
    if (shape.generation == "sim") != (spec.platform == "local"):
        right = "sim-<VMs>x<devices a VM>, e.g. sim-1x2" if spec.platform == "local" else "a TPU, e.g. v6e-16"
        problems.append(Problem("slices.type", slices.type, f"platform {spec.platform} takes {right}"))
        return problems
    for index, fault in enumerate(spec.local.faults):
        if fault.slice >= slices.count:
            cure = f"there are {slices.count} slices, numbered from 0"
            problems.append(Problem(f"local.faults.{index}.slice", fault.slice, cure))
    return problems + _division_problems(spec, shape)


def _division_problems(spec: RunSpec, shape: tpu.SliceShape) -> list[Problem]:
    """Dimensions that fsdp shards must divide over the devices of its axis (MaxText refuses them only on the TPU)."""
    keys = maxtext_config.resolved(spec.model.name, spec.train.maxtext)
    if not maxtext_config.base():
        return []
    ways = _fsdp_ways(keys, shape.devices, spec.slices.count)
    if ways is None:
        cure = f"the ici_* parallelisms do not multiply to {shape.devices} devices a slice"
        return [Problem("train.maxtext", None, cure)]
    problems = []
    emb = keys.get("base_emb_dim")
    if isinstance(emb, int) and ways > 1 and emb % ways:
        problems.append(
            Problem("train.maxtext.base_emb_dim", emb, f"must divide by the {ways} devices that fsdp spans")
        )
    batch = keys.get("per_device_batch_size")
    if isinstance(batch, (int, float)) and (batch * shape.devices) % 1:
        problems.append(
            Problem("train.maxtext.per_device_batch_size", batch, "times the devices must be a whole number")
        )
    return problems


def _fsdp_ways(keys: Mapping[str, Any], devices: int, slices: int) -> int | None:
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


def _data_problems(spec: RunSpec) -> list[Problem]:
    problems = []
    kind, _ = data_kind(spec.data.train)
    if kind != "grain" and spec.recovery:
        cure = (
            "cannot resume where it stopped, so a recovery would train on other data; use .parquet or .array_record "
            "files, or set `recovery: false`"
        )
        problems.append(Problem("data.train", spec.data.train, cure))
    if spec.evaluate and spec.evaluate.heldout and spec.data.eval is None:
        cure = "is required by evaluate.heldout; name the held-out files, or set `evaluate: false`"
        problems.append(Problem("data.eval", None, cure))
    if spec.data.eval is not None and data_kind(spec.data.eval)[0] != "grain":
        problems.append(Problem("data.eval", spec.data.eval, "must be .parquet or .array_record files"))
    if spec.data.eval is not None and spec.data.eval == spec.data.train:
        problems.append(Problem("data.eval", spec.data.eval, "is the training data: hold some data out"))
    keys = spec.train.maxtext
    if keys.get("grain_use_elastic_iterator") and keys.get("packing", True):
        problems.append(Problem("train.maxtext.packing", True, "must be false with grain_use_elastic_iterator"))
    if spec.platform == "gke":
        for path, uri in (("run.output", spec.run.output), ("data.train", spec.data.train)):
            if not is_bucket(uri) and uri not in NOT_FILES:
                problems.append(Problem(path, uri, "must be a bucket (gs://...) on platform gke"))
    return problems


def _secret_problems(spec: RunSpec) -> list[Problem]:
    problems = []
    for name, ref in spec.secrets.items():
        by_key = ref.secret is not None and ref.key is not None and ref.env is None
        by_env = ref.env is not None and ref.secret is None and ref.key is None
        if spec.platform == "gke" and not by_key:
            problems.append(Problem(f"secrets.{name}", None, "on gke give {secret: <name>, key: <key>}"))
        if spec.platform == "local" and not by_env:
            problems.append(Problem(f"secrets.{name}", None, "on the local platform give {env: <NAME>}"))
    return problems


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


_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def _memory(keys: Mapping[str, Any], shape: tpu.SliceShape, slices: int) -> Memory | None:
    count = parameter_count(keys)
    if count is None:
        return None
    weight = _BYTES.get(str(keys.get("weight_dtype")), 4)
    first_moment = _BYTES.get(str(keys.get("mu_dtype") or keys.get("weight_dtype")), 4)
    moments = {"sgd": 0, "muon": first_moment}.get(str(keys.get("opt_type")), first_moment + weight)
    parameters, optimizer = count * weight / _GIB, count * moments / _GIB
    ways = _fsdp_ways(keys, shape.devices, slices)
    per_device = (parameters * 2 + optimizer) / ways if ways else None  # weights, gradients, moments
    return Memory(count, parameters, optimizer, parameters + optimizer, per_device)


def maxtext_overrides(spec: RunSpec) -> dict[str, Any]:
    """The MaxText keys of this run: the user's, and those that the product sets."""
    kind, grain = data_kind(spec.data.train)
    keys: dict[str, Any] = {
        "run_name": spec.run.name,
        "base_output_directory": spec.run.output,
        "model_name": spec.model.name,
        "tokenizer_path": spec.model.tokenizer,
        "tokenizer_type": "huggingface",
        "steps": spec.train.steps,
        "dataset_type": kind,
        "train_data_columns": [spec.data.text],
        "enable_checkpointing": True,
        "async_checkpointing": True,
        "checkpoint_period": spec.checkpoint.every,
        "max_num_checkpoints_to_keep": spec.checkpoint.keep,
        "save_checkpoint_on_start": True,
        "save_checkpoint_on_completion": True,
        "enable_single_controller": True,
        "elastic_enabled": True,
        "elastic_backup_kind": "checkpoint",
        "elastic_min_slice_count": spec.slices.minimum,
        "elastic_timeout_seconds": max(1, int(spec.patience.wait_for_slices)),
        "skip_jax_distributed_system": True,
        "hardware": "cpu" if spec.platform == "local" else "tpu",
        "enable_goodput_recording": False,
        "log_config": False,
    }
    if kind == "grain":
        # One worker process would re-import the whole trainer: minutes until the first batch.
        keys |= {"grain_train_files": spec.data.train, "grain_file_type": grain, "grain_worker_count": 0}
    elif kind == "hf":
        keys |= {"hf_path": "json", "hf_train_files": spec.data.train}
    if spec.platform == "local":
        keys |= {"attention": "dot_product", "enable_tensorboard": True}
    changed = maxtext_config.model(spec.model.name)
    if any(key in changed and changed[key] != value for key, value in spec.train.maxtext.items()):
        keys["override_model_config"] = True
    return {**keys, **spec.train.maxtext}


def make_plan(spec: RunSpec) -> Plan:
    """Resolve everything that follows from a checked spec."""
    shape = shape_of(spec)
    keys = maxtext_config.resolved(spec.model.name, spec.train.maxtext)
    memory = _memory(keys, shape, spec.slices.count)
    devices = shape.devices * spec.slices.count
    batch = keys.get("per_device_batch_size", 1)
    big = memory is not None and memory.checkpoint_gib > PERSISTENCE_ABOVE_GIB
    persistence = big and spec.platform == "gke"
    notes = []
    if memory is None:
        notes.append(
            "memory is not known: MaxText is not installed here (extra [trainer]); the trainer checks at start"
        )
    elif shape.hbm_gib_per_chip and memory.per_device_gib and memory.per_device_gib > shape.hbm_gib_per_chip:
        notes.append(
            f"state needs {memory.per_device_gib:.1f} GiB a device, a chip has {shape.hbm_gib_per_chip:.0f}: "
            "use more chips a slice, or shard over slices (dcn_fsdp_parallelism)"
        )
    if shape.generation == "sim":
        notes.append("simulated slices: processes of this machine, with CPU devices; figures are not TPU figures")
    hours = {
        name: getattr(spec.limits, name) / 3600 * spec.slices.count for name in ("start", "first_step", "total")
    } | {"wait_for_slices": spec.patience.wait_for_slices / 3600 * spec.slices.count}
    size = "unknown" if memory is None else f"{memory.checkpoint_gib:.1f} GiB"
    return Plan(
        run_id=spec.run_id,
        uri=spec.uri,
        spec_hash=spec.hash(),
        platform=spec.platform,
        slices=spec.slices.count,
        minimum=spec.slices.minimum,
        shape=shape,
        chips=shape.chips * spec.slices.count,
        vms=shape.vms * spec.slices.count,
        devices=devices,
        global_batch=int(float(batch) * devices),
        memory=memory,
        persistence=persistence,
        persistence_reason=(
            f"a checkpoint is {size}, {'above' if big else 'not above'} {PERSISTENCE_ABOVE_GIB} GiB"
            + ("" if spec.platform == "gke" else "; the local platform has no Pathways service")
        ),
        overrides=maxtext_overrides(spec),
        slice_hours=hours,
        notes=tuple(notes),
    )
