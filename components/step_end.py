"""How a KFP step that failed says why, in the last line of its log.

A backend shows no exit code of a step, no message and none of its artifacts: its pod ends with 1 whatever the code is
(KFP 2.17). The end of the log is what people see.
"""

from __future__ import annotations

from contextlib import suppress

from ..runs.errors import ElasticTPUError, ExitCode
from ..runs.units import without_middle

REPORT = "report.html"
"""Name of the report in a run directory."""


def why(name: str, code: ExitCode, reason: str, uri: str, source: str) -> list[str]:
    """Lines of the log, the last of which says all: step, code, reason, run and report.

    Args:
      uri: of the run; empty if none was opened.
      source: the step's parameter `run`.
    """
    error = "" if code.outcome in ("complete", "cancelled") else "error: "  # a stop is none
    short = without_middle("; ".join(line.strip() for line in reason.splitlines() if line.strip()))
    above = [] if short == reason else [f"{name}: {error}{reason}"]
    last = [f"{name}: {error}exit code {int(code)} ({code.words}): {short}"]
    if not uri:
        return [*above, f"{last[0]}; spec {source}"]
    last.append(f"run {uri}")
    if code != ExitCode.EVICTED and _has_report(uri):  # after SIGTERM there may be no time to look
        last.append(f"report {uri}/{REPORT}")
    return [*above, "; ".join(last)]


def _has_report(uri: str) -> bool:
    from ..runs.store.open import open_store

    with suppress(ElasticTPUError):
        return any(entry.name == REPORT for entry in open_store(uri).list(REPORT))
    return False
