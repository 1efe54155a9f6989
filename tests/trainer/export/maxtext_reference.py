"""Reference values for the export's tests, made by MaxText itself: run in one process, since importing it takes long.

For tiny Qwen3 models (scanned and not, tied and not) with random weights, writes into the folder given as argument:
checkpoints ``<model>-<format>/checkpoints/7`` through MaxText's own checkpointing, over four devices; ``<model>.npz``
with all Hugging Face tensors by MaxText's own converter, and the ids and float32 logits of MaxText's own forward pass;
``<model>.json`` with the resolved configuration.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["HF_HUB_OFFLINE"] = "1"

import jax
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules
from maxtext.checkpoint_conversion import to_huggingface
from maxtext.checkpoint_conversion.utils.utils import detect_and_extract_checkpoint, load_orbax_checkpoint
from maxtext.common import checkpointing
from maxtext.configs import pyconfig
from maxtext.utils import train_utils
from maxtext.utils.globals import MAXTEXT_PKG_DIR

STEP = 7
FORMATS = {"ocdbt": (True, True), "zarr": (False, False)}
MODELS = {
    f"{'scanned' if scanned else 'unscanned'}-{'tied' if tied else 'untied'}": {
        "scan_layers": scanned,
        "logits_via_embedding": tied,
    }
    for scanned in (True, False)
    for tied in (True, False)
}


def configure(folder: Path, name: str, **overrides: object) -> pyconfig.HyperParameters:
    keys = {
        "base_output_directory": folder,
        "run_name": name,
        "hardware": "cpu",
        "skip_jax_distributed_system": True,
        "attention": "dot_product",
        "enable_goodput_recording": False,
        "model_name": "qwen3-0.6b",
        "override_model_config": True,
        "base_emb_dim": 64,
        "base_num_query_heads": 4,
        "base_num_kv_heads": 2,
        "base_mlp_dim": 96,
        "base_num_decoder_layers": 3,
        "head_dim": 16,
        "vocab_size": 272,
        "max_target_length": 32,
        "per_device_batch_size": 1,
        "dataset_type": "synthetic",
        "steps": 10,
        "checkpoint_period": 1,
        "async_checkpointing": False,
        "enable_checkpointing": True,
        "dtype": "float32",
        "matmul_precision": "highest",
        **overrides,
    }
    base = str(Path(MAXTEXT_PKG_DIR) / "configs" / "base.yml")
    return pyconfig.initialize(["reference", base, *(f"{key}={value}" for key, value in keys.items())])


def randomise(model: nnx.Module) -> None:
    """Every weight another: norms around one, all else small, so that logits are of a trained model's size."""
    generator = np.random.default_rng(0)
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        value = variable.get_value()
        noise = generator.standard_normal(value.shape, dtype=np.float32) * 0.1
        variable.set_value(jax.device_put(noise + float("scale" in path), value.sharding))
        nnx.update(model, nnx.State.from_flat_path({path: variable}))


def make(folder: Path, name: str, **model: object) -> None:
    config = configure(folder, f"{name}-ocdbt", **model)
    loop = train_utils.setup_train_loop(config, None)
    mesh = next(part for part in loop if isinstance(part, jax.sharding.Mesh))
    state = loop[-1]
    randomise(state.model)
    done = state.optimizer.step.get_value()
    state.optimizer.step.set_value(jax.device_put(np.asarray(STEP + 1, done.dtype), done.sharding))
    ids = np.random.default_rng(1).integers(0, config.vocab_size, (4, config.max_target_length), dtype=np.int32)
    positions = np.broadcast_to(np.arange(config.max_target_length, dtype=np.int32), ids.shape)
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        logits = state.model(
            decoder_input_tokens=ids,
            decoder_positions=positions,
            decoder_segment_ids=np.ones_like(ids),
            enable_dropout=False,
        )
    nnx.pop(state.model, nnx.Intermediate)
    for kind, (ocdbt, zarr3) in FORMATS.items():
        directory = folder / f"{name}-{kind}" / "checkpoints"
        manager = checkpointing.create_orbax_checkpoint_manager(
            str(directory), True, False, 1, use_ocdbt=ocdbt, use_zarr3=zarr3
        )
        checkpointing.maybe_save_checkpoint(manager, state, config, None, STEP)
        checkpointing.wait_until_finished(manager)
    converted = convert(folder, name, **model)
    np.savez(folder / f"{name}.npz", __ids=ids, __logits=np.asarray(logits, np.float32), **converted)
    keys = config.get_keys()
    (folder / f"{name}.json").write_text(
        json.dumps({key: keys[key] for key in keys}, default=lambda v: getattr(v, "value", str(v)))
    )


def convert(folder: Path, name: str, **model: object) -> dict[str, np.ndarray]:
    """All tensors by MaxText's own converter, float32."""
    path = folder / f"{name}-ocdbt" / "checkpoints" / str(STEP) / "items"
    config = configure(folder, f"{name}-convert", load_parameters_path=path, weight_dtype="float32", **model)
    described = {
        "num_hidden_layers": config.num_decoder_layers,
        "hidden_size": config.emb_dim,
        "intermediate_size": config.mlp_dim,
        "num_attention_heads": config.num_query_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    mappings = to_huggingface._get_model_mappings("qwen3-0.6b", config.scan_layers, described, config)
    found = detect_and_extract_checkpoint(load_orbax_checkpoint(config))
    mapping = {key: value for key, value in mappings["param_mapping"].items() if key in found}
    assert found.keys() == mapping.keys()
    return to_huggingface._transform_weights_to_full_model(
        config, list(mapping), found, mapping, mappings["hook_fn_mapping"], mappings["shape_mapping"]
    )


if __name__ == "__main__":
    gc.freeze()  # MaxText's converter collects garbage after each tensor, over all that importing it has made
    for model_name, overrides in MODELS.items():
        make(Path(sys.argv[1]), model_name, **overrides)
