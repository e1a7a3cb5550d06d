"""Thins out modules of many cases; says at the end what was skipped, and which cases were seen."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

from tests.skips import skips_by_reason

# How long a case takes says how busy the machine is.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
# For who wants to know whether a test fails, and not on which smallest case.
settings.register_profile("unshrunk", deadline=None, phases=(Phase.explicit, Phase.generate))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test finds a compiled step that somebody keeps, nor leaves one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


#: Modules of many equal cases: every run takes each test's first and about one in so many of the
#: others, always the same ones; `slow` takes the rest.
THINNED = {
    "test_attention_speed": 5,
    "test_copies": 2,
    "test_decode_endings": 2,
    "test_dense": 5,
    "test_ending": 2,
    "test_families": 4,
    "test_generate_matrix": 4,
    "test_naive_families": 3,
    "test_naive_others": 4,
    "test_naive_paper": 2,
    "test_penalties_generate": 5,
    "test_prompt_columns": 3,
    "test_prompts": 3,
    "test_recompute_study": 3,
    "test_replay": 3,
    "test_rewind": 4,
    "test_speculation": 3,
    "test_stopping": 3,
    "test_tables": 2,
    "test_why": 3,
}


@pytest.hookimpl(tryfirst=True)  # before the mark is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most cases `slow` in modules of many."""
    seen: dict[str, int] = {}
    for item in items:
        share = THINNED.get(item.path.stem, 1)
        test = item.nodeid.partition("[")[0]
        if "[" in item.nodeid and not item.get_closest_marker("slow"):
            turn = seen[test] = seen.get(test, -1) + 1
            # Not each so-manieth: that would always be the same of an inner parameter's values.
            if turn and zlib.crc32(item.nodeid.encode()) % share:
                item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count skips by reason, and the cases that `properties.holding.holds` recorded."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.write_line(skips_by_reason(report.longrepr[2] for report in skipped))
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
