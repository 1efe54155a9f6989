"""Whether a trainer that ended is started again (contracts.md 8): pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...runs.errors import ExitCode


@dataclass(frozen=True)
class Decision:
    """`again`: start the trainer once more. Otherwise the job is over with `code`."""

    again: bool
    code: int
    reason: str


def decide(exit_code: int, restarts: int, allowed: int, wanted: bool, stopped: bool = False) -> Decision:
    """Only 75, 143 and deaths by signal are relaunched, at most `allowed` times without a new proven step.

    Args:
      exit_code: of the process; negative for a signal.
      restarts: relaunches since the last new proven step.
      allowed: `recovery.head_restarts`.
      wanted: False when the run was stopped, released or nobody drives it.
      stopped: somebody asked for the end, so that the process did what it was told, with or without a save.
    """
    if exit_code == ExitCode.COMPLETE:
        return Decision(False, 0, "")
    dead = f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited {exit_code}"
    if exit_code >= 0 and exit_code not in (ExitCode.INFRASTRUCTURE, ExitCode.EVICTED):
        return Decision(False, exit_code, "")
    if stopped:
        return Decision(False, ExitCode.ENDED_ON_REQUEST, f"the run was stopped on request; the process {dead}")
    if not wanted:
        return Decision(False, exit_code, f"the process {dead} and the run is being ended")
    if restarts >= allowed:
        reason = f"recovery.head_restarts ({allowed}) is spent: the process {dead} with no new proven checkpoint since"
        return Decision(False, ExitCode.LIMIT_SPENT, reason)
    return Decision(True, exit_code, f"the process {dead}; restart {restarts + 1} of {allowed}")
