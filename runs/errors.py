"""Errors named for who must act, each with the exit code that says so.

Exit codes are the contract between the trainer, its supervisor and the orchestrators:
only ``INFRASTRUCTURE`` (75), 143 and deaths by signal are ever relaunched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the trainer and of the ``elastic-tpu`` command."""

    COMPLETE = 0
    BAD_INPUT = 64
    GATE_FAILED = 65
    HELD_BY_ANOTHER = 69
    BUG = 70
    INFRASTRUCTURE = 75
    ENDED_ON_REQUEST = 76
    LIMIT_SPENT = 77
    INTERRUPTED = 130
    EVICTED = 143


class ElasticTPUError(Exception):
    """Base of every error that this package raises on purpose; the message is for the user."""

    code: ExitCode = ExitCode.BUG


@dataclass(frozen=True)
class Problem:
    """One thing wrong with an input: where (dotted field path), what value, and how to cure it."""

    path: str
    value: object
    cure: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f" {self.value!r}" if isinstance(self.value, str) else f" {self.value}"
        return f"{self.path}:{shown}, {self.cure}" if shown else f"{self.path}: {self.cure}"


class BadInput(ElasticTPUError):
    """The user's input is wrong; nothing was created. Carries every problem that was found."""

    code = ExitCode.BAD_INPUT

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems: tuple[Problem, ...] = () if isinstance(problems, str) else tuple(problems)
        super().__init__(problems if isinstance(problems, str) else "\n".join(str(p) for p in self.problems))


class GateFailed(ElasticTPUError):
    """The evaluation gate did not pass."""

    code = ExitCode.GATE_FAILED


class HeldByAnother(ElasticTPUError):
    """Another orchestrator run drives this run; nothing of it was touched."""

    code = ExitCode.HELD_BY_ANOTHER


class Infrastructure(ElasticTPUError):
    """Something around the run failed (machine, network, storage); a relaunch resumes."""

    code = ExitCode.INFRASTRUCTURE


class EndedOnRequest(ElasticTPUError):
    """The run was cancelled, or another driver or trainer superseded this one."""

    code = ExitCode.ENDED_ON_REQUEST


class LimitSpent(ElasticTPUError):
    """A limit of the spec is spent; the message names which."""

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
