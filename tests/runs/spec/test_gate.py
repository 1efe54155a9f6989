"""The gate: what passes, what fails, and what is no evaluation at all."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.spec.gate import Condition, evaluate_gate, parse_gate

GOOD: dict[str, Any] = {
    "loss": 1.7,
    "perplexity": math.exp(1.7),
    "uniform_loss": math.log(151936),
    "bits_per_byte": 1.7 * 1000 / math.log(2) / 4000,
    "bytes": 4000,
    "tokens": 1000,
    "documents": 10,
    "documents_expected": 10,
}


ONLY_LOSS = {name: figure for name, figure in GOOD.items() if name not in ("perplexity", "bits_per_byte")}


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("heldout.loss <= 1.85", Condition("heldout.loss", "<=", 1.85)),
        ("heldout.loss<2", Condition("heldout.loss", "<", 2.0)),
        (" arc_easy.acc_norm  >=  0.5 ", Condition("arc_easy.acc_norm", ">=", 0.5)),
        ("x > -1e-3", Condition("x", ">", -0.001)),
        ("arc.acc,none > 0", Condition("arc.acc,none", ">", 0.0)),
    ],
)
def test_conditions_are_read(text: str, condition: Condition) -> None:
    assert parse_gate(text) == condition
    assert parse_gate(str(condition)) == condition


@pytest.mark.parametrize(
    "text",
    [
        "",
        "heldout.loss",
        "heldout.loss = 1",
        "heldout.loss == 1",
        "heldout.loss <=> 1",
        "heldout.loss <= nan",
        "heldout.loss < inf",
        "heldout.loss <= 1.85 nats",
        "heldout.loss <= 5%",
        "1.85 >= heldout.loss",
        "<= 1",
        "a <= 1_0",
    ],
)
def test_what_is_no_condition_is_refused_with_the_text_and_the_cure(text: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_gate(text)
    (problem,) = raised.value.problems
    assert problem.value == text
    assert "heldout.loss <= 1.85" in problem.cure


@pytest.mark.parametrize(
    ("expression", "value", "outcome"),
    [
        ("heldout.loss <= 1.7", 1.7, "passed"),
        ("heldout.loss < 1.7", 1.7, "failed"),
        ("heldout.loss >= 1.7", 1.7, "passed"),
        ("heldout.loss > 1.7", 1.7, "failed"),
        ("heldout.loss <= 5.0", 5.0000001, "failed"),
        ("heldout.loss <= 0", 0, "passed"),
        ("heldout.loss <= 0", 0.001, "failed"),
        ("heldout.loss <= 100", math.nan, "invalid"),
        ("heldout.loss >= 0", math.nan, "invalid"),
        ("heldout.loss >= 0", math.inf, "invalid"),
        ("heldout.loss <= 100", -math.inf, "invalid"),
        ("heldout.loss <= 100", None, "invalid"),
        ("heldout.loss <= 100", "3.1", "invalid"),
        ("heldout.loss <= 100", True, "invalid"),
        ("heldout.loss <= 100", [1.0], "invalid"),
        ("heldout.loss >= 0", 10**400, "invalid"),
        ("heldout.lost <= 100", 1.7, "failed"),
        ("other.loss <= 100", 1.7, "failed"),
    ],
)
def test_one_condition(expression: str, value: object, outcome: str) -> None:
    report = evaluate_gate([expression], {"heldout": {**ONLY_LOSS, "loss": value}})
    assert report.outcome == outcome
    assert report.passed is (outcome == "passed")
    (line,) = report.lines
    assert line.ok is report.passed
    assert bool(line.why) is not line.ok
    assert expression.split()[0] in str(line)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"tokens": None}, "tokens is None"),
        ({"tokens": math.nan}, "tokens is nan"),
        ({"documents": 8}, "documents is 8 but the files hold 10"),
        ({"documents": None}, "documents is None"),
        ({"perplexity": 5.9e9}, "above the vocabulary's size 151936"),
        ({"loss": 13.0}, "worse than guessing"),
        ({"loss": 13.0, "perplexity": None}, "worse than guessing"),
        ({"loss": math.nan}, "heldout.loss is nan: not finite"),
        ({"loss": -math.inf}, "heldout.loss is -inf: not finite"),
        ({"loss": None}, "heldout.loss is null"),
        ({"loss": "1.7"}, "heldout.loss is 1.7: str is not a number"),
        ({"loss": -1.0}, "heldout.loss is -1: a mean of negative log-likelihoods is not below 0"),
        (
            {"loss": 0.94},
            "heldout.perplexity is 5.47395, but exp(heldout.loss) is 2.55998",
        ),  # 2.94 with one bit flipped
        ({"perplexity": math.inf}, "heldout.perplexity is inf: not finite"),
        ({"perplexity": None}, "heldout.perplexity is null"),
        (
            {"bits_per_byte": 0.7},
            "heldout.bits_per_byte is 0.7, but 1000 tokens in 4000 bytes of loss 1.7 give 0.613145",
        ),
        ({"bytes": 0}, "heldout.bits_per_byte is 0.613145, but 1000 tokens in 0 bytes"),
        ({"bits_per_byte": math.nan}, "heldout.bits_per_byte is nan: not finite"),
        ({"arc": {"acc": math.nan}}, "heldout.arc.acc is nan: not finite"),  # whatever else was measured
    ],
)
def test_an_evaluation_that_contradicts_itself_is_invalid_whatever_the_conditions(
    changed: dict[str, object], said: str
) -> None:
    for expressions in (["heldout.loss >= 0"], ["heldout.loss <= 0.1"], []):
        report = evaluate_gate(expressions, {"heldout": {**GOOD, **changed}})
        assert report.outcome == "invalid"
        assert not report.passed
        assert said in "\n".join(report.invalid)


def test_too_few_tokens_are_invalid_where_a_minimum_is_asked_for() -> None:
    assert evaluate_gate(["heldout.loss <= 2"], {"heldout": GOOD}, min_tokens=1000).passed
    assert evaluate_gate(["heldout.loss <= 2"], {"heldout": GOOD}, min_tokens=1001).outcome == "invalid"


def test_all_conditions_must_hold_and_each_has_its_line() -> None:
    report = evaluate_gate(["heldout.loss <= 2", "arc.acc >= 0.9"], {"heldout": GOOD, "arc": {"acc": 0.5}})
    assert [line.ok for line in report.lines] == [True, False]
    assert report.outcome == "failed"
    assert "FAIL arc.acc >= 0.9: 0.5 (not >= 0.9)" in str(report)


def test_metrics_may_be_flat_or_nested() -> None:
    flat = {f"heldout.{name}": value for name, value in GOOD.items()}
    assert evaluate_gate(["heldout.loss <= 2"], flat).passed
    assert evaluate_gate(["heldout.loss <= 2"], {**flat, "heldout.tokens": 0}).outcome == "invalid"


def test_a_model_that_guesses_is_bad_and_not_invalid() -> None:
    guessing = {**ONLY_LOSS, "loss": GOOD["uniform_loss"] * (1 + 1e-7), "perplexity": 151936 * (1 + 1e-6)}
    assert evaluate_gate(["heldout.loss <= 2"], {"heldout": guessing}).outcome == "failed"


def test_no_metrics_pass_no_gate() -> None:
    assert evaluate_gate(["heldout.loss <= 2"], {}).outcome == "failed"
    assert evaluate_gate([], {}, required=["heldout"]).outcome == "invalid"


def test_a_gate_that_is_not_there_does_not_pass() -> None:
    report = evaluate_gate([], {"heldout": GOOD}, required=["heldout"])
    assert (report.outcome, report.passed, report.problems) == ("none", False, ())
    assert str(report) == "no gate"
    assert str(evaluate_gate(["heldout.loss <= 2"], {"heldout": GOOD})).startswith("gate passed\n")


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"heldout": {}}, "heldout.loss is missing"),
        ({"heldout": {"perplexity": 2.0}}, "heldout.loss is missing"),
        ({"heldout.tokens": 7}, "heldout.loss is missing"),
        ({"mine": {"score": 1.0}}, "heldout was not measured"),
        ({"heldout": GOOD, "mine": {"score": math.nan}}, "mine.score is nan: not finite"),
    ],
)
def test_an_evaluation_without_its_loss_is_invalid_without_a_gate(metrics: dict[str, Any], said: str) -> None:
    report = evaluate_gate([], metrics, required=["heldout"])
    assert report.outcome == "invalid"
    assert said in report.invalid
    assert report.why.startswith("the evaluation cannot be trusted: invalid: ")


def test_figures_rounded_by_another_evaluator_agree() -> None:
    rounded = {"loss": 1.7, "perplexity": 5.474, "bits_per_byte": 0.613, "tokens": 1000, "bytes": 4000}
    assert evaluate_gate([], {"heldout": rounded}).problems == ()


def test_the_module_needs_only_the_standard_library() -> None:
    code = "import sys, elastic_tpu.runs.spec.gate; print(sorted({'pydantic', 'yaml', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_problems_are_empty_exactly_when_it_passes() -> None:
    assert evaluate_gate(["heldout.loss <= 2"], {"heldout": GOOD}).problems == ()
    (line,) = evaluate_gate(["heldout.loss <= 1"], {"heldout": GOOD}).problems
    assert line == "FAIL heldout.loss <= 1.0: 1.7 (not <= 1.0)"
    (line,) = evaluate_gate(
        [], {"heldout": {**ONLY_LOSS, "loss": 13.0}}
    ).problems  # no condition, and no success either
    assert line.startswith("invalid: heldout.loss 13 is worse than guessing")
