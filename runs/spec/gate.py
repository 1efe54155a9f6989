"""The evaluation gate: conditions such as ``heldout.loss <= 1.85`` on the metrics of an evaluation.

Pure and standard library only: the spec's validation parses the conditions, and the verdict is computed again
whenever it is read, so a changed gate needs no new evaluation. The gate fails closed: what is missing, not a number
or not finite does not pass. An evaluation that contradicts itself (no tokens, documents left out, worse than
guessing) is INVALID, which is another thing than a model that is not good enough: its figures say nothing.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import BadInput, Problem

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*(?P<metric>[A-Za-z_][\w.,/-]*)\s*(?P<operator><=|>=|<|>)\s*(?P<bound>\S+)\s*")
# What belongs to the metric itself (window, data, tokens, rounding): two figures that differ here do not compare.
SETTINGS = ("max_length", "prefix_token", "data_digest", "tokenizer_digest", "dtype")
# A model that guesses may come out this much above ln(vocabulary), in nats.
_ROUNDING = 1e-4

Outcome = Literal["passed", "failed", "invalid"]


@dataclass(frozen=True)
class Condition:
    """``metric operator bound``; the metric's name is dotted, e.g. ``heldout.loss``."""

    metric: str
    operator: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.bound}"


@dataclass(frozen=True)
class GateLine:
    """One condition and what became of it; `why` is empty when it holds."""

    metric: str
    operator: str
    bound: float
    value: object
    ok: bool
    why: str = ""

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'} {self.metric} {self.operator} {self.bound}: {self.value}" + (
            f" ({self.why})" if self.why else ""
        )


@dataclass(frozen=True)
class GateReport:
    """The gate's verdict: one line a condition, and why the evaluation itself cannot be trusted, if so."""

    outcome: Outcome
    lines: tuple[GateLine, ...]
    invalid: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the model may go on: every condition holds and the evaluation is valid."""
        return self.outcome == "passed"

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it did not pass; empty exactly when it did."""
        return (*(f"invalid: {why}" for why in self.invalid), *(str(line) for line in self.lines if not line.ok))

    def __str__(self) -> str:
        return "\n".join([f"gate {self.outcome}", *(f"INVALID {why}" for why in self.invalid), *map(str, self.lines)])


def parse_gate(text: str) -> Condition:
    """One condition from its text.

    Raises:
      BadInput: not ``metric operator number``, with the text and the cure.
    """
    match = _CONDITION.fullmatch(text) if isinstance(text, str) else None
    bound = _number(match["bound"]) if match else None
    if match is None or bound is None:
        cure = "write `metric <= number`, with one of " + " ".join(OPERATORS) + ", e.g. `heldout.loss <= 1.85`"
        raise BadInput([Problem("evaluate.gate", text, cure)])
    return Condition(match["metric"], match["operator"], bound)


def evaluate_gate(expressions: Sequence[str], metrics: Mapping[str, object], *, min_tokens: int = 1) -> GateReport:
    """Judge an evaluation.

    Args:
      expressions: conditions, all of which must hold.
      metrics: the evaluation's results, nested (``{"heldout": {"loss": 1.7}}``) or with dotted names.
      min_tokens: an evaluation that scored fewer tokens is invalid.
    Raises:
      BadInput: a condition cannot be read.
    """
    conditions = [parse_gate(text) for text in expressions]
    groups = sorted(
        {c.metric.partition(".")[0] for c in conditions} | ({"heldout"} & {k.partition(".")[0] for k in metrics})
    )
    invalid = tuple(why for group in groups for why in _contradictions(group, metrics, min_tokens))
    lines = tuple(_judge(condition, metrics) for condition in conditions)
    outcome: Outcome = "invalid" if invalid else "passed" if all(line.ok for line in lines) else "failed"
    return GateReport(outcome, lines, invalid)


def incomparable(baseline: Mapping[str, object], candidate: Mapping[str, object]) -> tuple[str, ...]:
    """The settings in which two evaluations differ, so that their figures must not be compared; empty if none."""
    return tuple(
        f"{name}: {baseline.get(name)!r} and {candidate.get(name)!r}"
        for name in SETTINGS
        if baseline.get(name) is None or baseline.get(name) != candidate.get(name)
    )


def _judge(condition: Condition, metrics: Mapping[str, object]) -> GateLine:
    found, value = _look_up(condition.metric, metrics)
    why = _unusable(value) if found else "the evaluation has no such metric"
    if not why and not OPERATORS[condition.operator](_float(value), condition.bound):
        why = f"not {condition.operator} {condition.bound}"
    return GateLine(condition.metric, condition.operator, condition.bound, value, not why, why)


def _contradictions(group: str, metrics: Mapping[str, object], min_tokens: int) -> list[str]:
    """Why the results of `group` cannot be true, whatever the conditions say."""

    def number(name: str) -> float | None:
        found, value = _look_up(f"{group}.{name}", metrics)
        return _float(value) if found and not _unusable(value) else None

    why = []
    has_tokens, tokens = _look_up(f"{group}.tokens", metrics)
    if has_tokens and (_unusable(tokens) or _float(tokens) < min_tokens):
        why.append(f"{group}.tokens is {tokens!r}, at least {min_tokens} must be scored")
    has_documents, documents = _look_up(f"{group}.documents", metrics)
    has_expected, expected = _look_up(f"{group}.documents_expected", metrics)
    if (has_documents or has_expected) and (_unusable(documents) or documents != expected):
        why.append(f"{group}.documents is {documents!r} but the files hold {expected!r}")
    loss, uniform, perplexity = number("loss"), number("uniform_loss"), number("perplexity")
    if uniform is not None and loss is not None and loss > uniform + _ROUNDING:
        why.append(f"{group}.loss {loss:.4g} is worse than guessing ({uniform:.4g} nats a token)")
    elif uniform is not None and perplexity is not None and math.log(max(perplexity, 1e-300)) > uniform + _ROUNDING:
        why.append(f"{group}.perplexity {perplexity:.4g} is above the vocabulary's size {math.exp(uniform):.0f}")
    return why


def _look_up(name: str, metrics: Mapping[str, object]) -> tuple[bool, object]:
    """A metric by its dotted name, in nested mappings or flat ones."""
    if name in metrics:
        return True, metrics[name]
    for at in [i for i, letter in enumerate(name) if letter == "."]:
        inner = metrics.get(name[:at])
        if isinstance(inner, Mapping):
            found, value = _look_up(name[at + 1 :], inner)
            if found:
                return True, value
    return False, None


def _unusable(value: object) -> str:
    """Why a value cannot be compared; empty if it can."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{type(value).__name__} is not a number"
    try:
        return "" if math.isfinite(value) else "not finite"
    except OverflowError:
        return "too large to compare"


def _float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _number(text: str) -> float | None:
    """A finite number written plainly, or None."""
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
