"""The page: one file with headline, notices, tables, charts and the texts of the small store."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reports import SMALL, small_report

from experiments.report.charts import chart_sets
from experiments.report.page import page
from experiments.report.page.page import COLUMNS, spelled
from experiments.report.report import Report
from experiments.report.tables import every_grid
from experiments.store import manifest
from experiments.store.samples.replay import with_text
from experiments.store.store import Store

HOSTILE = "</script><script>alert(1)</script>{{traces}}"


@pytest.fixture(scope="module")
def report() -> Report:
    return small_report()


def written(report: Report, folder: Path, **limits: int) -> tuple[str, page.PageFile]:
    about = manifest.public(manifest.read(SMALL)) | {"name": HOSTILE}
    sets, path = chart_sets(report), folder / "report.html"
    file = page.write(path, report, Store(SMALL), sets, every_grid(report), about, **limits)
    return path.read_text(encoding="utf-8"), file


def blocks(html: str) -> dict[str, Any]:
    scripts = re.findall(r'x-lil-traces" id="([\w-]+)">([^<]*)</script>', html)
    return {name: json.loads(zlib.decompress(base64.b64decode(data))) for name, data in scripts}


def test_it_holds_the_report_and_every_text(report: Report, tmp_path: Path) -> None:
    report = replace(report, notices=["8 of 8 prompts hold <unk>"])
    html, file = written(report, tmp_path)
    assert re.sub(r"\s+", " ", report.headline).replace("'", "&#x27;") in html
    assert "8 of 8 prompts hold &lt;unk&gt;" in html
    for grid in every_grid(report):
        assert grid.title.split(":")[0] in html
    assert html.count("<script>") == 1
    assert HOSTILE not in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    charts = json.loads(re.search(r'id="chart-data">(.*?)</script>', html, re.S)[1])
    assert {"Accuracy", "Output length, tokens"} <= {chart["title"] for chart in charts}
    index = blocks(html).pop("index")
    assert index["columns"] == list(COLUMNS)
    assert len(index["runs"]) == file.packed == file.of
    texts = {
        (s.item_id, s.backend, s.penalty): s.text
        for s in with_text([s for s in report.samples if s.detector == "none"], Store(SMALL))
    }
    for line in index["runs"]:
        run = dict(zip(COLUMNS, line, strict=True))
        block = blocks(html)[f"problem-{run['block']}"]
        text = block["runs"][run["at"]]["text"]
        (backend,) = {name for _, name, _ in texts if run["backend"].split(" ")[0] == name}
        assert text == texts[run["item"], backend, run["penalty"]]


def test_what_does_not_fit_is_left_out_and_counted(report: Report, tmp_path: Path) -> None:
    _, whole = written(report, tmp_path)
    html, file = written(report, tmp_path, most=whole.size // 2)
    assert 0 < file.packed < file.of
    assert file.size <= whole.size // 2
    assert f"{file.packed} of {file.of} runs: the first problems of every data set" in html
    assert len(blocks(html)["index"]["runs"]) == file.packed


def test_lengths_are_those_a_browser_counts() -> None:
    assert spelled([b"ab", b"c"]) == ("abc", [2, 1])
    assert spelled([b"a\xf0\x9f", b"\x98\x80", b"\xff"]) == ("a😀\ufffd", [1, 2, 1])
    assert spelled([]) == ("", [])


@pytest.mark.slow
def test_a_browser_shows_charts_and_a_trace(report: Report, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    written(report, tmp_path)
    errors: list[str] = []
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch()
        except playwright.Error as error:
            pytest.skip(f"no browser: {error}")
        tab = browser.new_page()
        tab.on("console", lambda message: message.type == "error" and errors.append(message.text))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto((tmp_path / "report.html").as_uri())
        tab.wait_for_selector("#charts svg")
        tab.locator("#list li").first.click()
        tab.wait_for_selector("#trace pre, #trace .text")
        browser.close()
    assert errors == []
