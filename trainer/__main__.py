"""The trainer image's command.

python -m elastic_tpu.trainer train    --run gs://bucket/runs/my-run
python -m elastic_tpu.trainer export   --run gs://bucket/runs/my-run
python -m elastic_tpu.trainer evaluate --run gs://bucket/runs/my-run
"""

from __future__ import annotations

import argparse
import logging
import sys

from ..runs import extras
from ..runs.errors import ElasticTPUError, describe_codes
from ..runs.record.run import open_for_work
from .session import TrainerSession, leave


def main() -> None:
    """Run one job of one run."""
    parser = argparse.ArgumentParser(
        prog="python -m elastic_tpu.trainer",
        description=__doc__,
        epilog=describe_codes("trainer"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", choices=["train", "export", "evaluate"])
    parser.add_argument("--run", required=True, help="URI of the run directory")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    logging.getLogger("pathwaysutils.elastic.elastic").setLevel(logging.WARNING)  # it logs every look for a slice
    logging.raiseExceptions = True  # a DATA_LOSS raised while a record is formatted must not be swallowed
    try:
        extras.require("trainer", "the trainer")
        run = open_for_work(args.run)
        if args.job == "train":
            from .training.train import train

            session = TrainerSession(run)
            session.catch_sigterm()
            code = train(session)
        else:
            from .jobs import run_job

            code = run_job(run, args.job)
    except ElasticTPUError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - there may be no log yet
        code = int(error.code)
    leave(code)


if __name__ == "__main__":
    main()
