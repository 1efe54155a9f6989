"""What a scheduler pays for `import elastic_tpu.components`, over a bare interpreter: a new process each time.

Prints a table and, last, one JSON object: `value` is the median in milliseconds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from rich.console import Console
from rich.table import Table

GOAL_MS = 20.0
RUNS = 15
TIMED = (
    "import time; t = time.perf_counter(); import elastic_tpu.components; import elastic_tpu.stages.stage; "
    "print((time.perf_counter() - t) * 1000)"
)


def main() -> None:
    taken = [
        float(subprocess.run([sys.executable, "-c", TIMED], capture_output=True, check=True).stdout)
        for _ in range(RUNS)
    ]
    value = statistics.median(taken)
    table = Table("import of elastic_tpu.components and its stage protocol", "ms")
    for name, figure in (("fastest", min(taken)), ("median", value), ("slowest", max(taken))):
        table.add_row(name, f"{figure:.1f}")
    Console().print(table)
    print(
        json.dumps(
            {"name": "imports", "value": round(value, 2), "goal": GOAL_MS, "unit": "ms", "pass": value <= GOAL_MS}
        )
    )


if __name__ == "__main__":
    main()
