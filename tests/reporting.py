"""A pytest plugin for the closing lines: which tests could not run on this machine, and why.

A suite that runs anywhere must say what it left out. On a developer's machine a missing tool skips the tests that need
it; with ``CI=true`` the same is a failure, since there everything is to be installed. Registered in pyproject.toml.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from _pytest.terminal import TerminalReporter


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, without pytest's own prefix."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _skipped(config: pytest.Config) -> Counter[str]:
    """Skipped tests by reason; a file that is skipped as a whole counts once, however many workers collected it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if isinstance(reporter, TerminalReporter) else []
    return Counter({report.nodeid: _reason(report) for report in reports}.values())


def _forbidden() -> bool:
    return os.environ.get("CI") == "true"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    on_worker = hasattr(session.config, "workerinput")
    passed = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if passed and not on_worker and _forbidden() and _skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    skipped = _skipped(config)
    for reason, count in sorted(skipped.items()):
        terminalreporter.write_line(f"Not run here: {count} {'test' if count == 1 else 'tests'}: {reason}")
    if skipped and _forbidden():
        terminalreporter.write_line("CI=true: a test that cannot run is a failure.", red=True)
