"""Exports of the tiny random models that MaxText makes, and MaxText's own logits of them: for tests/torch_check.py.

    python tests/torch_exports.py FOLDER

Writes ``<model>/``, the export, and ``<model>.npz``, ids and logits, for each model of
tests/trainer/export/maxtext_reference.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from elastic_tpu.tests.trainer import tiny
from elastic_tpu.trainer.export.export import export_checkpoint
from elastic_tpu.trainer.export.qwen3 import architecture_from_maxtext

REFERENCE = Path(__file__).parent / "trainer" / "export" / "maxtext_reference.py"


def main(folder: Path) -> None:
    """Write all of them; what was there is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    made = folder / "maxtext"
    made.mkdir(parents=True)
    done = subprocess.run([sys.executable, REFERENCE, made], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    tokenizer = tiny.write_tokenizer(folder / "tokenizer")
    for resolved in sorted(made.glob("*.json")):
        name = resolved.stem
        export_checkpoint(
            str(made / f"{name}-zarr" / "checkpoints" / "7"),
            str(folder / name),
            architecture=architecture_from_maxtext(json.loads(resolved.read_text(encoding="utf-8"))),
            tokenizer=str(tokenizer),
            dtype="float32",
            spec_hash="none",
            proof_digest="none",
            progress=lambda done, total: None,
        )
        reference = np.load(made / f"{name}.npz")
        np.savez(folder / f"{name}.npz", ids=reference["__ids"], logits=reference["__logits"])


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
