"""By hand, where PyTorch is installed: an export loads in transformers, complete, and gives our logits.

    python tests/torch_check.py EXPORT_FOLDER [EXPORT_FOLDER ...]

Exits with 1 if tensors are missing, left over or misshapen, or if float32 logits differ by more than 1e-4.
"""

from __future__ import annotations

import sys

import numpy as np

TOLERANCE = 1e-4


def check(folder: str) -> str:
    """Why the export does not do, or nothing."""
    import torch
    from elastic_tpu.trainer.evaluate.forward import forward, load_config, load_params
    from elastic_tpu.trainer.export.manifest import verify_export
    from transformers import AutoModelForCausalLM, AutoTokenizer

    verify_export(folder)
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    incomplete = {name: sorted(found) for name, found in report.items() if found}
    if incomplete:
        return f"transformers found it incomplete: {incomplete}"
    config = load_config(folder)
    length = min(64, config.max_position_embeddings)
    size = min(len(AutoTokenizer.from_pretrained(folder)), config.vocab_size)
    ids = np.random.default_rng(0).integers(0, size, (2, length), dtype=np.int32)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids.astype(np.int64))).logits.numpy()
    found = np.asarray(forward(config, load_params(folder, config), ids, head_bf16=False))
    difference = float(np.abs(found - expected).max())
    sys.stdout.write(f"{folder}: largest difference of logits {difference:.2e}\n")
    return "" if difference <= TOLERANCE else f"logits differ by {difference:.2e}, more than {TOLERANCE}"


if __name__ == "__main__":
    wrong = {folder: why for folder in sys.argv[1:] if (why := check(folder))}
    for folder, why in wrong.items():
        sys.stderr.write(f"{folder}: {why}\n")
    sys.exit(1 if wrong or len(sys.argv) < 2 else 0)
