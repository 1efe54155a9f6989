"""How fast a checkpoint is exported, as a share of `cp`'s speed on the same bytes, and in how much memory.

The checkpoint has the shapes of Qwen3-0.6B with scanned layers, float32, random values, in zarr v2 as an elastic run
writes it, sharded over eight devices. Each round copies the parameters' files with `cp` and exports them to bfloat16,
in turn, from a warm page cache; both end on the disk (`cp` is followed by `sync -f`, the export flushes its own files).
`cp` alone, which leaves its bytes in the page cache, is shown beside it. Run:

    python benchmarks/export.py [--pairs 5] [--devices 8] [--dtype bfloat16] [--layers 28]

The last line is one JSON object. It holds the machine's load: the export uses two cores and `cp` one, so that a busy
machine shows a smaller share than a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GOAL, PEAK_GOAL_MB = 0.5, 600
VOCABULARY, EMBEDDING, HEADS, KV_HEADS, HEAD, MLP = 151936, 1024, 16, 8, 128, 3072


def architecture(layers: int) -> Any:
    from elastic_tpu.trainer.export.qwen3 import Architecture

    return Architecture(HEADS, KV_HEADS, HEAD, EMBEDDING, MLP, layers, VOCABULARY, 1e6, 1e-6, 2048, tied=True)


def make_checkpoint(step_dir: Path, layers: int, devices: int) -> None:
    """Write the checkpoint as Orbax would from `devices` devices that share the embedding axis."""
    import numpy as np
    import tensorstore as ts
    from elastic_tpu.trainer.export.qwen3 import stored_arrays

    generator = np.random.default_rng(0)
    leaves = {}
    for array in stored_arrays(architecture(layers), scanned=True):
        shard = next((i for i, n in enumerate(array.shape) if n == EMBEDDING), None)
        chunk = [n // devices if i == shard else n for i, n in enumerate(array.shape)]
        name = ".".join(array.path)
        metadata = {"shape": array.shape, "chunks": chunk, "dtype": "<f4", "compressor": {"id": "zstd", "level": 1}}
        kvstore = f"file://{step_dir}/items/{name}/"
        store = ts.open({"driver": "zarr", "kvstore": kvstore, "metadata": metadata}, create=True).result()
        store.write(generator.standard_normal(array.shape, dtype=np.float32) * np.float32(0.02)).result()
        keys = [{"key": key, "key_type": 2} for key in array.path]
        leaves[str(array.path)] = {
            "key_metadata": keys,
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False, "write_shape": chunk},
        }
    (step_dir / "items" / "_METADATA").write_text(
        json.dumps({"tree_metadata": leaves, "use_ocdbt": False, "use_zarr3": False})
    )
    (step_dir / "_CHECKPOINT_METADATA").write_text(json.dumps({"custom_metadata": {"scan_layers": True}}))


def make_tokenizer(folder: Path) -> None:
    """A tokenizer of 256 bytes and three specials."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["<pad>", "<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    folder.mkdir()
    Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}))


def export_once(step_dir: Path, out: Path, tokenizer: Path, dtype: Any, layers: int) -> dict[str, float]:
    """In a process of its own: seconds, CPU seconds and peak memory of one export."""
    from elastic_tpu.trainer.export.export import export_checkpoint

    begin, cpu = time.monotonic(), time.process_time()
    manifest = export_checkpoint(
        str(step_dir),
        str(out),
        architecture=architecture(layers),
        tokenizer=str(tokenizer),
        dtype=dtype,
        spec_hash="benchmark",
        proof_digest="benchmark",
        progress=lambda done, total: None,
    )
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
    heavy = sorted({"jax", "torch", "maxtext", "transformers"} & sys.modules.keys())
    assert not heavy, f"the export imported {heavy}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "cpu": cpu, "peak_mb": peak, "params": manifest.params}


def copy_once(source: Path, target: Path) -> tuple[float, float]:
    """Seconds of `cp` alone and of `cp` with its bytes on the disk."""
    files = sorted(str(p) for p in source.glob("params.*"))
    target.mkdir()
    begin = time.monotonic()
    subprocess.run(["cp", "-r", *files, str(target)], check=True)
    copied = time.monotonic()
    subprocess.run(["sync", "-f", str(target)], check=True)
    return copied - begin, time.monotonic() - begin


def child(*arguments: object) -> dict[str, Any]:
    """Run this file in a process of its own, so that its peak memory is its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--folder", help="keep the checkpoint there for the next time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elastic-tpu-benchmark-") as temporary:
        folder = Path(options.folder or temporary)
        step_dir, tokenizer = folder / "checkpoints" / "1000", folder / "tokenizer"
        if not (step_dir / "_CHECKPOINT_METADATA").exists():
            child("make", step_dir, tokenizer, options.layers, options.devices)
        files = [p for p in (step_dir / "items").rglob("*") if p.is_file()]
        stored = sum(p.stat().st_size for p in files) / 1e9
        print(f"{stored:.2f} GB stored, {os.cpu_count()} CPUs, {options.devices} chunks an array, to {options.dtype}")
        print(f"{'round':>5} {'cp s':>7} {'cp+sync s':>9} {'export s':>9} {'share':>6} {'CPU s':>6} {'peak MB':>8}")
        rounds = []
        for number in range(options.pairs + 1):
            copy, out = Path(temporary) / "copy", Path(temporary) / "export"
            subprocess.run(["sync"], check=True)
            plain, durable = copy_once(step_dir / "items", copy)
            shutil.rmtree(copy)
            subprocess.run(["sync"], check=True)
            export = child("export", step_dir, out, tokenizer, options.dtype, options.layers)
            shutil.rmtree(out)
            share = durable / export["seconds"]
            print(
                f"{number or 'warm':>5} {plain:7.2f} {durable:9.2f} {export['seconds']:9.2f} {share:6.2f} "
                f"{export['cpu']:6.2f} {export['peak_mb']:8.0f}",
                flush=True,
            )
            if number:
                rounds.append((plain, durable, export["seconds"], export["cpu"], export["peak_mb"]))
    plain, durable, seconds, cpu = (statistics.median(r[i] for r in rounds) for i in range(4))
    peak = max(r[4] for r in rounds)
    value = round(durable / seconds, 3)
    print(
        json.dumps(
            {
                "name": "export",
                "value": value,
                "goal": GOAL,
                "unit": "share of cp's speed, both down to the disk",
                "pass": value >= GOAL and peak <= PEAK_GOAL_MB,
                "peak_mb": round(peak),
                "peak_goal_mb": PEAK_GOAL_MB,
                "share_of_cp_to_page_cache": round(plain / seconds, 3),
                "export_seconds": round(seconds, 2),
                "export_cpu_seconds": round(cpu, 2),
                "cp_seconds": round(durable, 2),
                "load": round(os.getloadavg()[0], 1),
                "stored_gb": round(stored, 2),
            }
        )
    )
    return 0


def run_child(task: str, *arguments: str) -> None:
    if task == "make":
        step_dir, tokenizer, layers, devices = arguments
        make_tokenizer(Path(tokenizer)) if not Path(tokenizer).exists() else None
        make_checkpoint(Path(step_dir), int(layers), int(devices))
        print("{}")
        return
    step_dir, out, tokenizer, dtype, layers = arguments
    print(json.dumps(export_once(Path(step_dir), Path(out), Path(tokenizer), dtype, int(layers))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(*sys.argv[2:])
    else:
        sys.exit(main())
