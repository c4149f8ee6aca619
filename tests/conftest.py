"""Who a test is for, and the account of skipped tests.

A skipped test is a hole in the net. With MINISANDBOX_STRICT_SKIPS=1, as in CI, a skip whose reason
has no line in tests/allowed-skips.txt fails the run, and so does a run in which no test ran.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

ALLOWED_SKIPS = Path(__file__).with_name("allowed-skips.txt")


class SkipAccount:
    """Counts what ran and keeps every skip that no allowed reason covers."""

    def __init__(self) -> None:
        lines = ALLOWED_SKIPS.read_text(encoding="utf-8").splitlines()
        self.allowed = [line for line in lines if line and not line.startswith("#")]
        self.unexpected: list[str] = []
        self.ran = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self.ran += 1
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in self.allowed):
            self.unexpected.append(f"{report.nodeid}: {reason}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """With pytest-xdist: of skipped modules only the process that met them knows."""
        found = getattr(node, "workeroutput", {}).get("unexpected_skips", [])
        self.unexpected.extend(skip for skip in found if skip not in self.unexpected)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["unexpected_skips"] = self.unexpected
            return
        if session.exitstatus != pytest.ExitCode.OK or session.config.option.collectonly:
            return
        if self.unexpected:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif not self.ran:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unexpected:
            terminalreporter.section("skips that tests/allowed-skips.txt does not name", red=True)
            for line in self.unexpected:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    # A shell has jobs in the background ignore Ctrl-C, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("MINISANDBOX_STRICT_SKIPS") == "1":
        config.pluginmanager.register(SkipAccount(), "skip-account")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.getuid() != 0:
        pytest.skip("needs to be root")
    if item.get_closest_marker("user") and os.getuid() == 0:
        pytest.skip("needs to be an ordinary user")
