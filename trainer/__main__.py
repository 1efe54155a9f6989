"""The trainer image's command.

    python -m elastic_tpu.trainer train    --run gs://bucket/runs/my-run
    python -m elastic_tpu.trainer export   --run gs://bucket/runs/my-run
    python -m elastic_tpu.trainer evaluate --run gs://bucket/runs/my-run

Exit codes: 0 complete, 64 bad spec or input, 70 a bug or user error, 75 infrastructure or stalled (a relaunch resumes),
76 ended on request or superseded, 77 a limit of the spec is spent, 143 evicted.
"""

from __future__ import annotations

import argparse
import logging
import sys

from ..runs.errors import ElasticTPUError
from ..runs.record.run import open_run
from .session import TrainerSession, leave


def main() -> None:
    """Run one job of one run."""
    parser = argparse.ArgumentParser(
        prog="python -m elastic_tpu.trainer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=["train", "export", "evaluate"])
    parser.add_argument("--run", required=True, help="URI of the run directory")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    logging.getLogger("pathwaysutils.elastic.elastic").setLevel(logging.WARNING)  # a line at every look for a slice
    logging.raiseExceptions = True  # a DATA_LOSS raised while a record is formatted must not be swallowed
    try:
        run = open_run(args.run)
        if args.job == "train":
            from .training.train import train

            session = TrainerSession(run)
            session.catch_sigterm()
            code = train(session)
        else:
            from .jobs import run_job

            code = run_job(run, args.job)
    except ElasticTPUError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - nothing else is there to say it
        code = int(error.code)
    leave(code)


if __name__ == "__main__":
    main()
