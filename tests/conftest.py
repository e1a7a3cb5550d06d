"""Thins out modules of many equal cases, and counts skipped tests by reason at the end."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long a case takes depends on what else the machine does.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

#: Every run takes each test's first case and about one in so many of the others, always the same;
#: `slow` takes the rest.
THINNED = {
    "test_decode_endings": 2,
    "test_dense": 5,
    "test_ending": 2,
    "test_families": 7,
    "test_penalties_generate": 5,
    "test_prompt_columns": 5,
    "test_prompts": 5,
    "test_replay": 3,
    "test_rewind": 6,
    "test_speculation": 5,
    "test_stopping": 3,
    "test_tables": 2,
    "test_why": 3,
}


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads a compiled step that a user keeps, nor leaves one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.hookimpl(tryfirst=True)  # before the mark is read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most cases of modules of many as `slow`."""
    seen: dict[str, int] = {}
    for item in items:
        share = THINNED.get(item.path.stem, 1)
        test = item.nodeid.partition("[")[0]
        if "[" in item.nodeid and not item.get_closest_marker("slow"):
            turn = seen[test] = seen.get(test, -1) + 1
            # A digest, since every n-th would always be the same value of an inner parameter.
            if turn and zlib.crc32(item.nodeid.encode()) % share:
                item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count skips by reason."""
    reasons = Counter(
        " ".join(report.longrepr[2].removeprefix("Skipped: ").split())
        for report in terminalreporter.stats.get("skipped", [])
    )
    if reasons:
        parts = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"{reasons.total()} skipped: {parts}")
