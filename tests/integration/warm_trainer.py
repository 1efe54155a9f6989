"""A real trainer process that trains one run after another, so that MaxText is imported once for many scenarios.

It is `trainer.train.train` on real MaxText, Orbax and pathwaysutils with simulated slices; only the process start is
saved. Reads run URIs from standard input, a line each, after which the step may follow whose loss is to be NaN, once;
writes `<exit code>` a line to the descriptor in argv[1].
"""

import logging
import os
import sys
from typing import Any

from elastic_tpu.runs.record.run import open_run
from elastic_tpu.trainer.session import TrainerSession
from elastic_tpu.trainer.training.train import train


def spoil_loss_of(step: int) -> None:
    from maxtext.common.metric_logger import MetricLogger

    left = [step]
    kept = "_elastic_tpu_write_metrics"  # where the product keeps MaxText's own
    write = getattr(MetricLogger, kept, MetricLogger.write_metrics)

    def spoiled(self: Any, metrics: Any, at: int, metric_type: str = "train") -> Any:
        if metric_type == "train" and metrics and int(at) in left:
            left.remove(int(at))
            metrics["scalar"]["learning/loss"] = float("nan")
        return write(self, metrics, at, metric_type)

    setattr(MetricLogger, kept, spoiled)


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    for line in sys.stdin:
        uri, _, spoiled = line.strip().partition(" ")
        if spoiled:
            spoil_loss_of(int(spoiled))
        code = train(TrainerSession(open_run(uri), capture_log=False))
        answers.write(f"{code}\n")
        answers.flush()


if __name__ == "__main__":
    main()
