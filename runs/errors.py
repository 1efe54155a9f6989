"""What each exit code means, and the errors of this package, each with its exit code.

Trainer, platforms, orchestrators and the command agree on these codes (docs/contracts.md 8).
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Self

from . import masking

Outcome = Literal["none", "complete", "failed", "cancelled", "superseded"]
"""How a job or a step ended; none while it goes on."""

Act = Literal["none", "relaunch", "user"]
"""Who must act: nobody, what relaunches jobs (a platform, an orchestrator), or the user."""

Process = Literal["trainer", "job", "command"]
"""The trainer, a job (the trainer's, export or evaluation), or the command `elastic-tpu`."""

_ALL: tuple[Process, ...] = ("trainer", "job", "command")

# What a message shows: characters of a text (a path is to be seen whole) and of other values, and number of problems.
_LONGEST_TEXT, _LONGEST_VALUE, _MOST_PROBLEMS = 300, 80, 50


class ExitCode(IntEnum):
    """Every exit code and what follows from it. No other module has a table of codes.

    Attributes:
      words: what it means, for people.
      outcome: how a process that exits with it ended.
      act: who must act.
      processes: which processes exit with it. A step of a pipeline may exit with any of them.
    """

    words: str
    outcome: Outcome
    act: Act
    processes: tuple[Process, ...]

    def __new__(
        cls,
        value: int,
        words: str = "",
        outcome: Outcome = "failed",
        act: Act = "user",
        processes: tuple[Process, ...] = _ALL,
    ) -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.words, member.outcome, member.act, member.processes = words, outcome, act, processes
        return member

    COMPLETE = 0, "complete", "complete", "none"
    BAD_INPUT = 64, "bad spec or input", "failed", "user"
    GATE_FAILED = 65, "the gate did not pass", "failed", "user", ("job", "command")
    HELD_BY_ANOTHER = 69, "held by another", "superseded", "none", ("command",)
    BUG = 70, "a bug or user error", "failed", "user"
    INFRASTRUCTURE = 75, "infrastructure, or stalled", "failed", "relaunch"
    ENDED_ON_REQUEST = 76, "ended on request", "cancelled", "none"
    LIMIT_SPENT = 77, "a limit of the spec is spent", "failed", "user"
    INTERRUPTED = 130, "interrupted with Ctrl-C", "cancelled", "none", ("command",)
    EVICTED = 143, "evicted", "failed", "relaunch", ("trainer", "job")

    @classmethod
    def of(cls, code: int | None, process: Process | None = None) -> ExitCode:
        """What an exit means. A signal and an exit that was not observed are INFRASTRUCTURE, unknown codes are BUG.

        Args:
          code: as `subprocess` reports it: negative for a signal; None if the exit was not observed.
          process: what ended; codes that only other processes exit with are unknown. None: any process.
        """
        if code is None or code < 0:
            return cls.INFRASTRUCTURE
        known = next((member for member in cls if member == code), cls.BUG)
        return known if process is None or process in known.processes else cls.BUG

    @property
    def relaunched(self) -> bool:
        """Whether a platform relaunches a trainer or a job that exits with it."""
        return self.act == "relaunch"

    @property
    def retried(self) -> bool:
        """Whether an orchestrator retries a step that exits with it."""
        return self.act == "relaunch"

    @property
    def resumable(self) -> bool:
        """Whether running again goes on with the run: it was interrupted, neither refused nor failed for good."""
        return self.act == "relaunch" or self.outcome == "cancelled"


def final_codes(process: Process) -> list[int]:
    """The codes of this process's failures that a relaunch would only repeat, ascending."""
    return sorted(int(code) for code in ExitCode if code and process in code.processes and not code.relaunched)


def describe_codes(process: Process) -> str:
    """The exit codes of this process, for its help."""
    codes = [code for code in ExitCode if process in code.processes]
    listed = "; ".join(f"{code} {code.words}" for code in codes)
    resumable = ", ".join(str(code) for code in codes if code.resumable)
    return f"Exit codes: {listed}. After {resumable}, running again goes on with the run."


def exit_words(code: int | None) -> str:
    """The exit of a trainer or a job, in words; `code` as in `ExitCode.of`."""
    if code is None:
        return "has not ended, or its exit was not observed"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    known = ExitCode.of(code, "job")
    return known.words if known == code else "not a code of the trainer"


class ElasticTPUError(Exception):
    """Base of every error that this package raises on purpose; the message is for the user, credentials masked."""

    code: ExitCode = ExitCode.BUG

    def __init__(self, *args: object) -> None:
        super().__init__(*(masking.mask(arg) if isinstance(arg, str) else arg for arg in args))


@dataclass(frozen=True)
class Problem:
    """One thing wrong with an input: where (dotted field path), what value, and how to cure it."""

    path: str
    value: object
    cure: str

    def __str__(self) -> str:
        path = _cut(self.path, _LONGEST_TEXT)
        whole = f"{path}: {self.cure}" if self.value is None else f"{path}: {_shown(self.value)}, {self.cure}"
        return masking.mask(whole)


def _shown(value: object) -> str:
    """A value for a message: text in quotes; what is long is cut."""
    if isinstance(value, str):
        return repr(_cut(value, _LONGEST_TEXT))
    items = f" ({len(value):,} items)" if isinstance(value, (list, dict)) else ""
    return _cut(str(value), _LONGEST_VALUE, items)


def _cut(text: str, longest: int, note: str = "") -> str:
    return text if len(text) <= longest else f"{text[:longest]}...{note}"


class BadInput(ElasticTPUError):
    """The user's input is wrong; nothing was created. Carries every problem that was found (its message: 50)."""

    code = ExitCode.BAD_INPUT

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems: tuple[Problem, ...] = () if isinstance(problems, str) else tuple(problems)
        lines = [problems] if isinstance(problems, str) else [str(problem) for problem in problems[:_MOST_PROBLEMS]]
        if len(self.problems) > len(lines):
            lines.append(f"and {len(self.problems) - len(lines):,} more problems")
        super().__init__("\n".join(lines))


class Damaged(BadInput):
    """A small file of a run is cut short, or holds something else; a file of a newer version is not damaged."""


class NoBucket(BadInput):
    """There is no bucket of this name."""


class GateFailed(ElasticTPUError):
    """The evaluation gate did not pass."""

    code = ExitCode.GATE_FAILED


class HeldByAnother(ElasticTPUError):
    """Another orchestrator run drives this run; nothing was changed."""

    code = ExitCode.HELD_BY_ANOTHER


class Infrastructure(ElasticTPUError):
    """Something around the run failed (machine, network, storage); a relaunch resumes."""

    code = ExitCode.INFRASTRUCTURE


class EndedOnRequest(ElasticTPUError):
    """The run was cancelled, or another driver or trainer took this one's place."""

    code = ExitCode.ENDED_ON_REQUEST


class LimitSpent(ElasticTPUError):
    """A limit of the spec is spent; the message names it."""

    code = ExitCode.LIMIT_SPENT


class NotFound(ElasticTPUError):
    """The object is not in the store."""

    code = ExitCode.BAD_INPUT


class Exists(ElasticTPUError):
    """Create-if-absent found an object of that name."""


class Changed(ElasticTPUError):
    """Compare-and-swap found another generation than the one that was read."""


class Unreachable(Infrastructure):
    """The storage or the cluster did not answer: unknown, not lost."""


_FAILURES = (BadInput, GateFailed, HeldByAnother, Infrastructure, EndedOnRequest, LimitSpent)


def error_for(code: ExitCode, message: str) -> ElasticTPUError:
    """The error that a failure with this code is raised as."""
    error = next((kind for kind in _FAILURES if kind.code == code), ElasticTPUError)(message)
    error.code = code
    return error
