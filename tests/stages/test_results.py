"""What a stage's end comes to: the gate of an evaluation, and the error of a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from elastic_tpu.runs.errors import ExitCode, GateFailed
from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.stages.results import RESULTS, error_of
from elastic_tpu.tests.support import Case


def test_an_invalid_evaluation_is_no_success_even_without_a_condition(make_case: Callable[..., Case]) -> None:
    case = make_case(export={}, evaluate={"gate": []}, data={"eval": "valid.parquet"})
    run = create_run(read_spec(str(case.spec)))
    heldout = {"loss": 9.0, "uniform_loss": 5.0, "tokens": 10, "documents": 1, "documents_expected": 1}
    with pytest.raises(GateFailed, match="worse than guessing"):
        RESULTS["evaluate"](run, {"metrics": {"heldout": heldout}, "key": "k"})
    (event,) = case.events("gate.failed")
    assert "worse than guessing" in event.data["lines"][0]


@pytest.mark.parametrize(
    ("heldout", "said"),
    [
        ({"loss": float("nan")}, "heldout.loss is nan: not finite"),
        ({"loss": float("inf")}, "heldout.loss is inf: not finite"),
        ({"loss": None}, "heldout.loss is null"),
        ({}, "heldout.loss is missing"),
        ({"loss": 0.94, "perplexity": 18.9}, "heldout.perplexity is 18.9, but exp"),
        ({"loss": 0.94, "tokens": 0}, "heldout.tokens is 0, at least 1 must be scored"),
    ],
)
def test_no_gate_makes_no_success_of_a_loss_that_is_none(
    make_case: Callable[..., Case], heldout: dict[str, object], said: str
) -> None:
    run = create_run(read_spec(str(make_case(export={}, evaluate={}, data={"eval": "valid.parquet"}).spec)))
    with pytest.raises(GateFailed, match=re.escape(said)):
        RESULTS["evaluate"](run, {"metrics": {"heldout": heldout}, "key": "k"})
    assert (run.read("gate.json") or {})["outcome"] == "invalid"


@pytest.mark.parametrize(
    ("gate", "summary"),
    [([], "held-out loss 2.9400, no gate"), (["heldout.loss <= 3"], "held-out loss 2.9400, gate passed")],
)
def test_a_gate_passes_only_where_there_is_one(make_case: Callable[..., Case], gate: list[str], summary: str) -> None:
    run = create_run(read_spec(str(make_case(export={}, evaluate={"gate": gate}, data={"eval": "valid.parquet"}).spec)))
    result = RESULTS["evaluate"](run, {"metrics": {"heldout": {"loss": 2.94}}, "key": "k"})
    assert result.summary == summary


@pytest.mark.parametrize(
    ("code", "error"), [(0, ExitCode.BUG), (1, ExitCode.BUG), (-9, ExitCode.BUG), (75, ExitCode.INFRASTRUCTURE)]
)
def test_no_failure_has_the_code_of_a_success(code: int, error: ExitCode) -> None:
    assert error_of(Verdict("done", "failed", code=code)).code is error
