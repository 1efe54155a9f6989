"""An export loads in transformers, complete, and gives MaxText's logits. Runs where PyTorch is, without this package.

    python tests/torch_check.py FOLDER

FOLDER is what tests/torch_exports.py wrote. Exits with 1 if tensors are missing, left over or misshapen, or if logits
differ by more than `TOLERANCE`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Both compute in float32. MaxText multiplies by a tied embedding in bfloat16: 8 bits of each factor are left.
TOLERANCE = {"untied": 1e-4, "tied": 2e-2}


def check(model: Path) -> tuple[float, str]:
    """The largest difference of logits, and why the export does not do, or nothing."""
    AutoTokenizer.from_pretrained(model)
    loaded, report = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, output_loading_info=True)
    if incomplete := {name: sorted(found) for name, found in report.items() if found}:
        return float("nan"), f"transformers found it incomplete: {incomplete}"
    reference = np.load(model.with_suffix(".npz"))
    with torch.no_grad():
        logits = loaded(torch.from_numpy(reference["ids"].astype(np.int64))).logits.numpy()
    difference = float(np.abs(logits - reference["logits"]).max())
    allowed = TOLERANCE["untied" if "untied" in model.name else "tied"]
    return difference, "" if difference <= allowed else f"logits differ by {difference:.2e}, more than {allowed}"


def main(folder: Path) -> int:
    """Check all of them; returns the exit code."""
    models = sorted(path.with_suffix("") for path in folder.glob("*.npz"))
    failed = not models
    for model in models:
        difference, why = check(model)
        failed |= bool(why)
        sys.stdout.write(f"{model.name}: largest difference of logits {difference:.1e}  {why or 'ok'}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
