"""A pytest plugin for the closing lines: which tests could not run on this machine, and why.

A suite that runs anywhere must say what it left out. On a developer's machine a missing tool skips the tests that need
it; with ``CI=true`` the same is a failure, since there everything is to be installed. Registered in pyproject.toml.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from _pytest.terminal import TerminalReporter
from elastic_tpu.tests.controlplane.binaries import impossible
from elastic_tpu.tests.fast import SLOW


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, without pytest's own prefix."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _skipped(config: pytest.Config) -> Counter[str]:
    """Tests that cannot run here, by reason; a file skipped as a whole counts once, however many workers collected it.

    What `--fast` leaves out could run here and is not among them.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if isinstance(reporter, TerminalReporter) else []
    reasons = {report.nodeid: _reason(report) for report in reports}
    return Counter(reason for reason in reasons.values() if not reason.startswith(SLOW))


def _leaves_out(config: pytest.Config, marker: str) -> bool:
    return f"not {marker}" in config.option.markexpr


def _cannot_run(config: pytest.Config) -> list[str]:
    """What cannot run on this machine and why, a line each; also what `make test` leaves to another target."""
    lines = [f"{n} {'test' if n == 1 else 'tests'}: {reason}" for reason, n in sorted(_skipped(config).items())]
    if _leaves_out(config, "controlplane") and (reason := impossible()):
        lines.append(f"the tests on a Kubernetes control plane: {reason}")
    return lines


def _forbidden() -> bool:
    return os.environ.get("CI") == "true"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    on_worker = hasattr(session.config, "workerinput")
    passed = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if passed and not on_worker and _forbidden() and _cannot_run(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    if _leaves_out(config, "airflow"):
        terminalreporter.write_line("Not among these: the tests in an Airflow: make test-airflow")
    if _leaves_out(config, "controlplane") and not impossible():
        terminalreporter.write_line("Not among these: the tests on a Kubernetes control plane: make test-controlplane")
    cannot_run = _cannot_run(config)
    for line in cannot_run:
        terminalreporter.write_line(f"Not run here: {line}")
    if cannot_run and _forbidden():
        terminalreporter.write_line("CI=true: a test that cannot run is a failure.", red=True)
