"""Decides whether a job's process that ended is started again (docs/contracts.md 8). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...runs.errors import ExitCode


@dataclass(frozen=True)
class Decision:
    """What to do with a job whose process ended.

    Attributes:
      again: start the process once more.
      code: exit code of the process; of the job, if it is not started again.
      reason: why, for people; empty if the exit code says it.
    """

    again: bool
    code: int
    reason: str


def decide(exit_code: int, restarts: int, allowed: int, wanted: bool, stopped: bool = False) -> Decision:
    """Relaunch after 75, 143 and deaths by signal only, at most `allowed` times without a new proven step.

    Args:
      exit_code: of the process; negative for a signal.
      restarts: relaunches since the last new proven step.
      allowed: `recovery.head_restarts`.
      wanted: False if the run was stopped, is being released, or is driven by nobody.
      stopped: the claim says stop, so a process that died by 75, 143 or a signal ended on request (76).
    """
    if exit_code == ExitCode.COMPLETE:
        return Decision(False, 0, "")
    dead = f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited {exit_code}"
    if not ExitCode.of(exit_code).relaunched:
        return Decision(False, exit_code, "")
    if stopped:
        return Decision(False, ExitCode.ENDED_ON_REQUEST, f"the run was stopped on request; the process {dead}")
    if not wanted:
        return Decision(False, exit_code, f"the process {dead} and the run is being ended")
    if restarts >= allowed:
        reason = f"recovery.head_restarts ({allowed}) is spent: the process {dead} with no new proven checkpoint since"
        return Decision(False, ExitCode.LIMIT_SPENT, reason)
    return Decision(True, exit_code, f"the process {dead}; restart {restarts + 1} of {allowed}")
