"""Says at the end how many cases of how many properties were looked at."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long a case takes says how busy the machine is.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the cases that `properties.holding.holds` recorded, wherever the tests ran."""
    cases: dict[str, int] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, number in getattr(report, "user_properties", ()):
                if name == "cases" and report.when == "call":
                    test = report.nodeid.partition("[")[0]
                    cases[test] = cases.get(test, 0) + number
    if cases:
        terminalreporter.write_line(
            f"properties: {sum(cases.values())} cases of {len(cases)} properties"
        )
