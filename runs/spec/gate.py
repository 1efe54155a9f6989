"""The evaluation gate: conditions such as ``heldout.loss <= 1.85`` on the metrics of an evaluation.

Pure and standard library only. The spec's validation parses the conditions; the verdict is computed whenever it is
read, so a changed gate needs no new evaluation. A metric that is missing or not a number does not pass. An evaluation
that contradicts itself (a figure that is not finite, a loss and a perplexity that do not agree, no tokens, documents
left out, worse than guessing) is INVALID, not failed, also where there is no gate: its figures say nothing about the
model.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# A model that guesses may come out this much above ln(vocabulary), in nats.
_ROUNDING = 1e-4
# Relative; figures of another evaluator may be rounded to a few digits.
_AGREES = 0.01
# What this product measures: definitions and units are those of `HeldoutResult`.
HELDOUT = "heldout"
# The metrics that a gate may name, but for an evaluator of the user's own.
METRICS = tuple(
    f"{HELDOUT}.{name}"
    for name in ("loss", "perplexity", "bits_per_byte", "uniform_loss", "tokens", "documents", "bytes")
)

# "none": there is no gate, and nothing speaks against the evaluation.
Outcome = Literal["passed", "failed", "invalid", "none"]


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
    """One condition and its result; `why` is empty when it holds."""

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
    """The gate's verdict: a line for each condition, and in `invalid` why the evaluation cannot be trusted, if so."""

    outcome: Outcome
    lines: tuple[GateLine, ...]
    invalid: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether there is a gate, every condition holds and the evaluation is valid."""
        return self.outcome == "passed"

    @property
    def words(self) -> str:
        """The verdict in two words."""
        return "no gate" if self.outcome == "none" else f"gate {self.outcome}"

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the evaluation is no success; empty exactly when the gate passed or there is none."""
        return (*(f"invalid: {why}" for why in self.invalid), *(str(line) for line in self.lines if not line.ok))

    @property
    def why(self) -> str:
        """The problems as one sentence; empty when there are none."""
        if not self.problems:
            return ""
        what = "the evaluation cannot be trusted" if self.invalid else "the gate did not pass"
        return f"{what}: {'; '.join(self.problems)}"

    def __str__(self) -> str:
        return "\n".join([self.words, *(f"INVALID {why}" for why in self.invalid), *map(str, self.lines)])


def parse_gate(text: str) -> Condition:
    """One condition from its text.

    Raises:
      BadInput: the text is not ``metric operator number``.
    """
    match = _CONDITION.fullmatch(text) if isinstance(text, str) else None
    bound = _number(match["bound"]) if match else None
    if match is None or bound is None:
        cure = "write `metric <= number`, with one of " + " ".join(OPERATORS) + ", e.g. `heldout.loss <= 1.85`"
        raise BadInput([Problem("evaluate.gate", text, cure)])
    return Condition(match["metric"], match["operator"], bound)


def evaluate_gate(
    expressions: Sequence[str], metrics: Mapping[str, object], *, min_tokens: int = 1, required: Sequence[str] = ()
) -> GateReport:
    """Judge an evaluation.

    Args:
      expressions: conditions, all of which must hold.
      metrics: the evaluation's results, nested (``{"heldout": {"loss": 1.7}}``) or with dotted names.
      min_tokens: an evaluation that scored fewer tokens is invalid.
      required: groups of metrics without which it is invalid.

    Raises:
      BadInput: a condition cannot be read.
    """
    conditions = [parse_gate(text) for text in expressions]
    there = {name.partition(".")[0] for name in metrics}
    groups = sorted({c.metric.partition(".")[0] for c in conditions} | ({HELDOUT} & there))
    invalid = (
        *(f"{group} was not measured" for group in required if group not in there),
        *_not_finite(metrics),
        *(why for group in groups for why in _contradictions(group, metrics, min_tokens)),
        *(_disagreements(metrics) if HELDOUT in there else ()),
    )
    lines = tuple(_judge(condition, metrics) for condition in conditions)
    judged: Outcome = "none" if not lines else "passed" if all(line.ok for line in lines) else "failed"
    return GateReport("invalid" if invalid else judged, lines, invalid)


def has_figure(metrics: Mapping[str, object]) -> bool:
    """Whether anything was measured: a number is among the metrics, finite or not."""
    return any(True for _ in _numbers(metrics))


def is_figure(value: object) -> bool:
    """Whether a metric is a finite number."""
    return not _unusable(value)


def _judge(condition: Condition, metrics: Mapping[str, object]) -> GateLine:
    found, value = _look_up(condition.metric, metrics)
    why = _unusable(value) if found else "the evaluation has no such metric"
    if not why and not OPERATORS[condition.operator](_float(value), condition.bound):
        why = f"not {condition.operator} {condition.bound}"
    return GateLine(condition.metric, condition.operator, condition.bound, value, not why, why)


def _numbers(metrics: Mapping[str, object], above: str = "") -> Iterator[tuple[str, int | float]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{above}{name}", value


def _not_finite(metrics: Mapping[str, object]) -> list[str]:
    return [f"{name} is {_short(value)}: {why}" for name, value in _numbers(metrics) if (why := _unusable(value))]


def _number_of(metrics: Mapping[str, object], name: str) -> float | None:
    found, value = _look_up(name, metrics)
    return _float(value) if found and not _unusable(value) else None


def _disagreements(metrics: Mapping[str, object]) -> list[str]:
    """Held-out figures that are missing or no numbers, or that do not agree with one another."""
    why = []
    for name in ("loss", "perplexity", "bits_per_byte", "bytes"):
        found, value = _look_up(f"{HELDOUT}.{name}", metrics)
        if not found and name == "loss":
            why.append(f"{HELDOUT}.loss is missing")
        elif found and value is None:
            why.append(f"{HELDOUT}.{name} is null: it was not finite, or not measured")
        elif found and (isinstance(value, bool) or not isinstance(value, int | float)):
            why.append(f"{HELDOUT}.{name} is {_short(value)}: {_unusable(value)}")
    loss, perplexity, bits, size, tokens = (
        _number_of(metrics, f"{HELDOUT}.{name}") for name in ("loss", "perplexity", "bits_per_byte", "bytes", "tokens")
    )
    if loss is None:
        return why
    if loss < -_ROUNDING:
        why.append(f"{HELDOUT}.loss is {loss:.6g}: a mean of negative log-likelihoods is not below 0")
    if perplexity is not None and not math.isclose(perplexity, _exp(loss), rel_tol=_AGREES):
        why.append(f"{HELDOUT}.perplexity is {perplexity:.6g}, but exp({HELDOUT}.loss) is {_exp(loss):.6g}")
    if bits is not None and size is not None and tokens is not None:
        expected = loss * tokens / math.log(2) / size if size > 0 else math.nan
        if not math.isclose(bits, expected, rel_tol=_AGREES, abs_tol=1e-9):
            counted = f"{tokens:.0f} tokens in {size:.0f} bytes of loss {loss:.6g}"
            why.append(f"{HELDOUT}.bits_per_byte is {bits:.6g}, but {counted} give {expected:.6g}")
    return why


def _contradictions(group: str, metrics: Mapping[str, object], min_tokens: int) -> list[str]:
    """Why the results of `group` cannot be true, whatever the conditions say."""

    def number(name: str) -> float | None:
        return _number_of(metrics, f"{group}.{name}")

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


def _short(value: object) -> str:
    """A value for a message, however long it is."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:30]}... ({len(text)} characters)"


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


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
