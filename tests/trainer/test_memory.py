"""The estimate of a step's memory against XLA's own figure, for MaxText's training step compiled for CPU devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.runs.spec import maxtext_config, memory
from elastic_tpu.tests.trainer import xla_memory

SMALL: dict[str, Any] = {
    "base_emb_dim": 128,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "base_mlp_dim": 384,
    "head_dim": 32,
    "base_num_decoder_layers": 4,
    "vocab_size": 4096,
    "max_target_length": 512,
    "per_device_batch_size": 4,
    "attention": "dot_product",
}
SHAPES: dict[str, dict[str, Any]] = {
    "many tokens": {"per_device_batch_size": 16},
    "a large vocabulary": {"vocab_size": 65_536},
    "long sequences": {"max_target_length": 2048},
    "tensor parallelism": {"vocab_size": 65_536, "ici_fsdp_parallelism": 1, "ici_tensor_parallelism": 2},
    "many layers that save much": {"base_num_decoder_layers": 24, "remat_policy": "minimal"},
}


@pytest.mark.full
def test_the_estimate_is_near_what_xla_says() -> None:
    fixed = {
        "run_name": "measure",
        "base_output_directory": "/nowhere",
        "model_name": "qwen3-0.6b",
        "override_model_config": True,
        "dataset_type": "synthetic",
        "hardware": "cpu",
        "enable_checkpointing": False,
        "skip_jax_distributed_system": True,
        "log_config": False,
        "steps": 3,
    }
    wanted = [{**SMALL, **shape} for shape in SHAPES.values()]
    script = Path(__file__).with_name("xla_memory.py")
    asked = json.dumps([fixed | keys for keys in wanted])
    done = subprocess.run([sys.executable, script], input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    shares = {}
    for name, keys, said in zip(SHAPES, wanted, json.loads(done.stdout), strict=True):
        found = memory.estimate(maxtext_config.resolved("qwen3-0.6b", keys), xla_memory.DEVICES, 1)
        assert found is not None
        assert found.step_gib is not None
        shares[name] = round(found.step_gib * 2**30 / said, 2)
    assert {name: share for name, share in shares.items() if not 0.85 <= share <= 1.2} == {}, shares
