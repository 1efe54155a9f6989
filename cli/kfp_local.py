"""`elastic-tpu run --via kfp-local`: the same run as a KFP pipeline on this machine, followed in the same display."""

from __future__ import annotations

from ..components.stage import Step
from ..pipelines.local import LocalPipeline
from ..runs import person
from . import follow as by_cli
from .display import make_display
from .summary import summary


def follow(source: str, take_over: bool) -> int:
    """Drive a run to its end; returns the exit code, the same as without a pipeline."""
    who = person.holder()
    started = person.start(source, who)
    run = started.run
    with by_cli._sigterm_as_interrupt(), make_display() as display:
        display.say(f"run {run.uri}" + (" (going on with it)" if started.resumed else ""))
        driver = _Driver(run, who, take_over, display)
        code = driver.drive()
    for line in summary(run, driver.results, code, driver.error, superseded=driver.superseded):
        print(line)  # noqa: T201 - the command's own output
    return code


class _Driver(by_cli._Driver):
    """Drives one stage, the pipeline, where the other drives all; Ctrl-C, errors and release are the same."""

    def _stage(self, step: Step) -> None:
        if step is not by_cli.STAGES[0]:
            return  # the pipeline has driven it
        pipeline = LocalPipeline(self._run, self._who, take_over=self._take_over, tell=self._display.say)
        try:
            try:
                pipeline.submit()
                self._watch(pipeline)
            finally:
                self._term = pipeline.term or self._term
        except KeyboardInterrupt:
            self._cancel(pipeline)
            raise
        finally:
            pipeline.close()
            self.results |= pipeline.results
        pipeline.collect()
