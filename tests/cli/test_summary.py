"""What the last line of a run tells a person to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from elastic_tpu.cli.summary import summary
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.tests.support import Case


@pytest.mark.parametrize(
    ("metrics", "gate", "lines"),
    [
        (
            {"heldout": {"loss": 1.0, "perplexity": 2.718, "bits_per_byte": 0.7, "tokens": 10, "uniform_loss": 5.5}},
            [],
            [
                "held-out       loss 1.0000 a token, perplexity 2.72, 0.700 bits a byte",
                "               10 tokens; a model that knows nothing: loss 5.5000",
                "gate           no gate",
            ],
        ),
        (
            {"heldout": {"loss": float("nan"), "tokens": 10}},
            [],
            [
                "               10 tokens",
                "evaluation     INVALID: heldout.loss is nan: not finite",
                "gate           no gate",
            ],
        ),
        (
            {"heldout": {"loss": 1.0}},
            ["heldout.loss <= 2"],
            ["held-out       loss 1.0000 a token", "gate           ok   heldout.loss <= 2.0: 1.0"],
        ),
        ({"mine": {"score": 1}}, [], ["evaluation     INVALID: heldout was not measured", "gate           no gate"]),
    ],
)
def test_what_an_evaluation_comes_to(
    make_case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, metrics: object, gate: list[str], lines: list[str]
) -> None:
    case = make_case(export={}, evaluate={"gate": gate}, data={"eval": "valid.parquet"})
    run = create_run(read_spec(str(case.spec)))
    monkeypatch.setattr("elastic_tpu.cli.summary.evaluation_of", lambda run: ({"metrics": metrics}, ""))
    assert summary(run, {}, 0, "")[2:] == lines


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
