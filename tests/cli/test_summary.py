"""What the last line of a run tells a person to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from elastic_tpu.cli.summary import summary
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.tests.support import Case


@pytest.mark.parametrize(
    ("code", "stage", "advice", "never"),
    [
        (75, "train", "elastic-tpu run ", "logs"),
        (130, "train", "elastic-tpu run ", "logs"),
        (77, "train", "under another run.name", "elastic-tpu run "),  # going on would spend the same limit again
        (65, "evaluate", "elastic-tpu report ", "logs"),
        (70, "train", "elastic-tpu logs ", "--job"),
        (70, "export", " --job export", "elastic-tpu run "),
        (64, "evaluate", " --job evaluate", "elastic-tpu run "),
    ],
)
def test_the_advice_fits_the_failure(
    make_case: Callable[..., Case], code: int, stage: str, advice: str, never: str
) -> None:
    case = make_case()
    text = "\n".join(summary(create_run(read_spec(str(case.spec))), {}, code, "why", stage=stage))
    assert advice in text
    assert never not in text
