"""A pytest plugin: `--fast` leaves out the slow tests, which is what `make test-fast` does.

A test is slow if it has one of the markers in `MARKERS` or starts a process: a server, a browser, a launcher. No list
says which tests start processes. The start is refused and the test is skipped there, so a new test needs no mark. One
that is slow for another reason gets the marker `slow`. The closing lines count what was left out.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Generator
from multiprocessing.process import BaseProcess

import pytest
from _pytest.terminal import TerminalReporter

SLOW = "slow: "  # how the reasons begin; tests/reporting.py knows by it that the test could have run here
MARKERS = {
    "maxtext": "import MaxText",
    "full": "take minutes",
    "soak": "take hours",
    "airflow": "need an Airflow home",
    "controlplane": "need a Kubernetes control plane",
    "slow": "take seconds of computing",
}
PROCESS = "start a process"
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "multiprocessing"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the tests that take long: see tests/fast.py")


def why_slow(markers: set[str]) -> str:
    """Why a test is left out before it begins; "" = it is begun."""
    return next((text for name, text in MARKERS.items() if name in markers), "")


class Guard:
    """Skips the test that starts a process in its own thread. What it puts in stays for the life of the interpreter."""

    def __init__(self) -> None:
        self.active = False
        sys.addaudithook(self._hear)
        start = BaseProcess.start

        def refuse_or_start(process: BaseProcess) -> None:
            self._hear("multiprocessing", ())
            start(process)

        setattr(BaseProcess, "start", refuse_or_start)  # noqa: B010 - Python tells no audit hook of it

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.active and event in _STARTS and threading.current_thread() is threading.main_thread():
            pytest.skip(SLOW + PROCESS)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        config.pluginmanager.register(Fast(), "elastic-tpu-fast")


class Fast:
    """The hooks of `--fast`."""

    def __init__(self) -> None:
        self._guard = Guard()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """After the plugins that add markers."""
        for item in items:
            if reason := why_slow({mark.name for mark in item.iter_markers()}):
                item.add_marker(pytest.mark.skip(reason=SLOW + reason))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        yield from self._guarded()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        yield from self._guarded()

    def _guarded(self) -> Generator[None]:
        self._guard.active = True
        try:
            return (yield)
        finally:
            self._guard.active = False

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        texts = [r.longrepr[2] for r in terminalreporter.stats.get("skipped", []) if isinstance(r.longrepr, tuple)]
        counts = Counter(text.partition(SLOW)[2] for text in texts if SLOW in text)
        if counts:
            each = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
            terminalreporter.write_line(f"Left out, slow: {counts.total()} tests ({each})")
