"""A real trainer process that trains one run after another, so that MaxText is imported once for many scenarios.

It is `trainer.train.train` on real MaxText, Orbax and pathwaysutils with simulated slices; only the process start is
saved. Reads run URIs from standard input, a line each; writes `<exit code>` a line to the descriptor in argv[1].
"""

import logging
import os
import sys

from elastic_tpu.runs.record.run import open_run
from elastic_tpu.trainer.session import TrainerSession
from elastic_tpu.trainer.training.train import train


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    for line in sys.stdin:
        code = train(TrainerSession(open_run(line.strip()), capture_log=False))
        answers.write(f"{code}\n")
        answers.flush()


if __name__ == "__main__":
    main()
