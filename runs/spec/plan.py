"""What follows from a checked spec, computed with no side effect and without JAX: hardware, memory, MaxText keys, cost.

`elastic-tpu plan` prints it; the trainer and the platforms act on it. What is refused is in rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..units import GIB, show_size
from . import maxtext_config, tpu
from .memory import Memory, estimate, shortage
from .run_spec import RunSpec

# Data sets that MaxText makes itself.
NOT_FILES = ("synthetic",)

# A checkpoint above this size goes through Pathways' persistence service instead of the head's memory.
PERSISTENCE_ABOVE_GIB = 6.7

# Parameters above which simulated slices take from seconds to minutes a step.
_MANY_HERE = 100_000_000

# Numbers of slices that a note names.
_MOST_COUNTS = 6

# After the suffix a shard may follow (`x.array_record-00000-of-00008`, `x.parquet*`), but no other suffix.
_SUFFIX = re.compile(r"\.(parquet|array_?record)(?![\w.])")


@dataclass(frozen=True)
class Plan:
    """What the run will take and set.

    Slice-hours by limit count all slices for the whole limit: an upper bound. `global_batches`: sequences a step, by
    the number of slices that train, from `slices.min` to `slices.count`.
    """

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
    global_batches: Mapping[int, int]
    sequence_length: int | None
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
    """MaxText's (dataset_type, grain_file_type) for a file pattern; other suffixes are read by Hugging Face."""
    if pattern == "synthetic":
        return "synthetic", ""
    found = _SUFFIX.search(pattern)
    return ("grain", found[1].replace("_", "")) if found else ("hf", "")


def shape_of(spec: RunSpec) -> tpu.SliceShape:
    """The hardware of one slice.

    Raises:
      BadInput: no such slice; the nearest right value is named.
    """
    return tpu.resolve_slice(spec.slices.type, spec.slices.machine_type, spec.slices.topology)


def colocated_python(spec: RunSpec) -> list[str]:
    """The MaxText keys in force that need the colocated-Python sidecar beside the workers."""
    keys = maxtext_config.resolved(spec.model.name, spec.train.maxtext)
    return [key for key in ("colocated_python_data_input", "colocated_python_checkpointing") if keys.get(key)]


def hbm_of_device(shape: tpu.SliceShape) -> float:
    """GiB of a JAX device: some chips are two of them."""
    return shape.hbm_gib_per_chip * shape.chips / shape.devices


def memory_of(spec: RunSpec, shape: tpu.SliceShape, slices: int | None = None) -> Memory | None:
    """What a training step needs on so many slices, by default all; None if the model's size is not known here."""
    keys = maxtext_config.resolved(spec.model.name, spec.train.maxtext)
    if spec.platform == "local":
        keys = {"attention": "dot_product", **keys} | {"attention": spec.train.maxtext.get("attention", "dot_product")}
    return estimate(keys, shape.devices, slices or spec.slices.count)


def slice_counts(spec: RunSpec) -> range:
    """The numbers of slices with which the run may train, smallest first."""
    return range(min(spec.slices.minimum, spec.slices.count), spec.slices.count + 1)


def global_batches(spec: RunSpec) -> dict[int, int]:
    """Sequences that a step trains on, by each number of slices of `slice_counts`."""
    keys = maxtext_config.resolved(spec.model.name, spec.train.maxtext)
    accumulation = int(_number(keys.get("gradient_accumulation_steps")))
    row = _number(keys.get("per_device_batch_size")) * shape_of(spec).devices
    return {count: int(row * count * accumulation) for count in slice_counts(spec)}


def _on_fewer(batches: Mapping[int, int]) -> str:
    """The note on the batches of fewer slices; of many counts only some are named."""
    counts = sorted(batches, reverse=True)
    named = counts if len(counts) <= _MOST_COUNTS else [*counts[: _MOST_COUNTS - 1], counts[-1]]
    shown = ", ".join(f"{batches[count]} on {count}" for count in named)
    return f"on fewer slices (slices.min) the global batch is smaller and the learning rate stays: {shown}"


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
        "elastic_timeout_seconds": max(1, int(spec.recovery_limits.wait_for_slices)),
        "skip_jax_distributed_system": True,
        "hardware": "cpu" if spec.platform == "local" else "tpu",
        "enable_goodput_recording": False,
        "log_config": False,
        "abort_on_nan_loss": False,  # the trainer looks itself: recovery.on_nan
        "abort_on_inf_loss": False,
    }
    if kind == "grain":
        # A worker process would import the whole trainer again: minutes until the first batch.
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
    memory = memory_of(spec, shape)
    devices, batches = shape.devices * spec.slices.count, global_batches(spec)
    big = memory is not None and memory.checkpoint_gib > PERSISTENCE_ABOVE_GIB
    # Of unknown size (a launcher without MaxText): on. The service takes small checkpoints too, and large ones need it.
    persistence = spec.platform == "gke" and (big or memory is None)
    notes, short = list[str](), ""
    if memory is None:
        notes.append(
            "memory is not known: MaxText is not installed here (extra [trainer]); the trainer checks at start"
        )
    elif shape.hbm_gib_per_chip and (short := shortage(memory, hbm_of_device(shape))[1]):
        notes.append(short)
    if len(batches) > 1:
        notes.append(_on_fewer(batches))
        least = memory_of(spec, shape, spec.slices.minimum)
        if least is not None and shape.hbm_gib_per_chip and (less := shortage(least, hbm_of_device(shape))[1]) != short:
            notes.append(f"on {spec.slices.minimum} of {spec.slices.count} slices {less}")
    if spec.platform == "gke" and colocated_python(spec):
        notes.append("with colocated Python a preempted slice is a lost one: Pathways cannot suspend and resume it")
    if shape.generation == "sim" and memory is not None and memory.parameters > _MANY_HERE:
        smaller = "set smaller dimensions in train.maxtext, as examples/local.yaml does"
        notes.append(f"{memory.parameters:,} parameters are many for the CPU of one machine: {smaller}")
    if shape.generation == "sim":
        notes.append("simulated slices: processes of this machine, with CPU devices; figures are not TPU figures")
    hours = {
        name: getattr(spec.limits, name) / 3600 * spec.slices.count for name in ("start", "first_step", "total")
    } | {"wait_for_slices": spec.recovery_limits.wait_for_slices / 3600 * spec.slices.count}
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
        sequence_length=int(_number(keys.get("max_target_length"))) or None,
        global_batch=batches[spec.slices.count],
        global_batches=batches,
        memory=memory,
        persistence=persistence,
        persistence_reason=_persistence_reason(memory, big, spec.platform),
        overrides=maxtext_overrides(spec),
        slice_hours=hours,
        notes=tuple(notes),
    )


def _persistence_reason(memory: Memory | None, big: bool, platform: str) -> str:
    if platform != "gke":
        return "the local platform has no Pathways service"
    bound = show_size(PERSISTENCE_ABOVE_GIB * GIB)
    if memory is None:
        return f"the size of a checkpoint is not known here, and above {bound} it must be on"
    return f"a checkpoint is {show_size(memory.checkpoint_gib * GIB)}, {'above' if big else 'not above'} {bound}"


def _number(value: object) -> float:
    """The value of a key; 1 where MaxText is not installed, so that the key may be unknown."""
    return float(value) if isinstance(value, (int, float)) else 1.0
