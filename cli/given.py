"""The run that a command was given, and what to give if it is a spec."""

from __future__ import annotations

from ..runs.errors import BadInput
from ..runs.record.run import Run, open_run
from ..runs.record.start import is_spec, last_of, this_person
from ..runs.spec.load import has_template, read_spec
from ..runs.spec.run_spec import is_spec_name


def open_given(source: str) -> Run:
    """Open the run in a directory.

    Raises:
      BadInput: there is no run; of a spec, the message names the directory to give.
    """
    try:
        return open_run(source)
    except BadInput:
        if not (is_spec_name(source) and is_spec(source)):
            raise
        cure = _directory_of(source)
        if cure is None:
            raise
    raise BadInput(f"{source}: is a spec, and this command wants the directory of its run: {cure}")


def _directory_of(source: str) -> str | None:
    """What to give in place of a spec; None if it cannot be read."""
    try:
        spec = read_spec(source, with_inputs=False)
    except BadInput:
        return None
    last = last_of(spec, this_person()) if has_template(spec) else spec.uri
    return last or f"below {spec.run.output}, where `elastic-tpu run {source}` puts one named {spec.run.name}"
