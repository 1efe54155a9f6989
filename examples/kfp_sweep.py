"""A KFP pipeline to copy: trains every spec of a list, some at a time, and gives all slices back at its end.

    python examples/kfp_sweep.py sweep.yaml

All specs have the same `run.output`. KFP runs an exit task only around a whole pipeline, and it takes no output of a
loop's tasks: so the release takes that output, and finds by the holder which runs are this pipeline's.
"""

import sys
from typing import Any

from elastic_tpu.components.kfp import provision_slices, release_slices, train_elastic
from kfp import compiler, dsl

IMAGE = "REGISTRY/elastic-tpu:0.1.0"  # yours: deploy/launcher.Dockerfile


def step(component: Any, **inputs: Any) -> Any:
    """A task of one pipeline run, which drives all of its runs as one holder."""
    task = component(holder=dsl.PIPELINE_JOB_ID_PLACEHOLDER, **inputs)
    return task.set_container_image(IMAGE).set_caching_options(False)


@dsl.pipeline(name="sweep")
def sweep(specs: list, output: str) -> None:
    at_end = step(release_slices, run=output, last=True)
    with dsl.ExitHandler(at_end), dsl.ParallelFor(specs, parallelism=2) as spec:
        pinned = step(provision_slices, run=spec).outputs["spec_hash"]
        train = step(train_elastic, run=spec, spec_hash=pinned)
        step(release_slices, run=spec, spec_hash=pinned).after(train)


if __name__ == "__main__":
    compiler.Compiler().compile(sweep, sys.argv[1])
