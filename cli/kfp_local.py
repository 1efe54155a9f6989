"""`elastic-tpu run --via kfp-local`: the same run as a KFP pipeline on this machine, followed in the same display."""

from __future__ import annotations

from contextlib import suppress

from ..pipelines.local import LocalPipeline
from ..runs.errors import Unreachable
from ..stages.stage import Stage
from .follow import Follower
from .follow import follow as by_cli


def follow(source: str, take_over: bool, moved: bool = False, detach: bool = False) -> int:
    """Drive a run to its end; returns the exit code, the same as without a pipeline."""
    return by_cli(source, take_over, moved, how=PipelineFollower)


class PipelineFollower(Follower):
    """Follows one stage that is the whole pipeline; Ctrl-C, errors and release are handled as without a pipeline."""

    def _goes_on_alone(self, stage: Stage) -> bool:
        return False  # the pipeline is a process of this one

    def do_stages(self) -> None:
        """Run the pipeline to its end. Raises the error of the first step that fails."""
        pipeline = LocalPipeline(self.run, self.who, take_over=self.take_over, tell=self.say)
        try:
            self.follow_stage(pipeline)
        finally:
            pipeline.close()
            with suppress(Unreachable):  # a step may have taken the run just before it was killed
                self._term = pipeline.term or self._term
            self.results |= pipeline.results
            self.failed = pipeline.failed
        pipeline.collect()
