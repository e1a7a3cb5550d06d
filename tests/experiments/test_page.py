"""The HTML page: the same numbers as the rows, the same texts as the traces, in a real browser."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.table import Table
from rich.text import Text
from synthetic_samples import demo, failed, guarded, sample, sparse
from synthetic_traces import HOSTILE, ITEM, MODEL, POISON, study

from experiments.cli import main
from experiments.report import tables
from experiments.report.chart_sets import chart_sets
from experiments.report.headline import finding
from experiments.report.measures import rows
from experiments.report.page import traces
from experiments.report.page.chosen import RULE, by_worth, page_runs
from experiments.report.page.page import PageFile, chart_values, write
from experiments.report.pooled import detector_pools
from experiments.report.row import ReportRow
from experiments.report.tables.grid import WIDTH, escape
from experiments.store import manifest
from experiments.store.samples.sample import Sample
from experiments.store.study import Study
from lil import detectors

SMALL = Path(__file__).parent / "data" / "small"
WATCHING = [detectors.get("guardian", f=20, rate=0.3), detectors.get("budget", tokens=25)]


class Report(NamedTuple):
    """A page with everything it was made of."""

    study: Study
    samples: list[Sample]
    rows: list[ReportRow]
    tables: list[Table]
    finding: str
    written: PageFile

    @property
    def html(self) -> str:
        return self.written.path.read_text(encoding="utf-8")


def report(of: Study, path: Path, watching: Sequence[Any], **limits: int) -> Report:
    samples = of.samples(watching).samples
    found = rows(samples, seed=0)
    made = tables.every_grid(found, (), ())
    about = manifest.public(of.manifest) | {"finding": finding(found)}
    sets = chart_sets(found, samples, detector_pools(samples, 0))
    written = write(path, of, samples, found, sets, made, about, **limits)
    shown = [tables.rich_table(grid) for grid in made]
    return Report(of, samples, found, shown, about["finding"], written)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Texts, names and ids that would do harm, with marks and partings that are known."""
    folder = tmp_path_factory.mktemp("page")
    return report(study(folder / "store"), folder / "report.html", WATCHING)


def block(page: str, name: str) -> Any:
    found = re.search(
        rf'<script type="application/x-lil-traces" id="{name}">([^<]*)</script>', page
    )
    assert found, name
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def listed(page: str) -> list[dict[str, Any]]:
    """Every run of the index, with what its block holds."""
    index = block(page, "index")
    lines = [dict(zip(index["columns"], line, strict=True)) for line in index["runs"]]
    blocks = {at: block(page, f"problem-{at}") for at in {line["block"] for line in lines}}
    return [line | {"held": blocks[line["block"]]["runs"][line["at"]]} for line in lines]


# ---------------------------------------------------------------- what is on the page


def test_every_run_is_there_as_its_samples_say(tmp_path: Path) -> None:
    """A sweep with penalties and with detectors that stop, answer, chop and go on."""
    from experiments.grid.detectors import build_detectors

    of = Study.open(SMALL)
    small = report(of, tmp_path / "p.html", build_detectors(of.config))
    runs = listed(small.html)
    plain = {
        (*one.pair[1:], one.backend, one.budget, one.penalty): one
        for one in small.samples
        if one.detector == "none"
    }
    assert len(runs) == len(plain) == small.written.kept == small.written.of == 24
    acted = 0
    for run in runs:
        key = (run["dataset"], run["item"], run["sample"], run["backend"], run["budget"])
        one = plain[(*key, run["penalty"])]
        held = run["held"]
        assert (run["tokens"], run["correct"], run["status"]) == (
            one.tokens, one.correct, one.status,
        )  # fmt: skip
        assert held["text"] == one.text
        assert sum(held["lengths"]) == len(one.text or "")
        assert held["keys"][-1][0] == one.tokens
        watched = [
            s for s in small.samples if s.detector != "none" and s.pair == one.pair
            and (s.backend, s.budget, s.penalty) == (one.backend, one.budget, one.penalty)
        ]  # fmt: skip
        assert [(w["at"], w["tokens"], w["correct"], w["action"]) for w in held["watched"]] == [
            (s.stopped_at, s.tokens, s.correct, s.action) for s in watched
        ]
        for told, s in zip(held["watched"], watched, strict=True):
            assert told["text"] in (None, s.text)
            assert (one.text or "").startswith(s.text or "") == (told["text"] is None)
            acted += told["text"] is not None
    assert acted > 3
    assert {run["penalty"] for run in runs} == {"none", "lz"}


def test_a_token_counts_what_a_browser_counts() -> None:
    pieces = ["a🦊".encode()[:3], "a🦊".encode()[3:], b"\xff", "é".encode()[:1]]
    text, lengths = traces.spelled(pieces)
    assert text == b"".join(pieces).decode(errors="replace") == "a🦊\ufffd\ufffd"
    assert lengths == [1, 2, 1, 1]  # a surrogate pair is two
    assert traces.spelled([b"ab", b"", b"c"]) == ("abc", [2, 0, 1])


def test_where_there_is_no_room_some_of_every_kind_are_kept(made: Report, tmp_path: Path) -> None:
    all_of = page_runs(made.study, made.samples)
    order = list(by_worth(all_of))
    assert sorted(map(id, order)) == sorted(map(id, all_of))
    seen = set()
    for one in order:
        assert one.run.configuration.is_full or one.plain.pair in seen, (
            "full attention's comes first"
        )
        seen |= {one.plain.pair} if one.run.configuration.is_full else set()
    # The longest of each configuration comes before anyone's second.
    configurations = {one.configuration for one in all_of}
    first = {}
    for one in order:
        if not one.run.configuration.is_full:
            first.setdefault(one.configuration, one)
    for configuration, one in first.items():
        mine = [other for other in all_of if other.configuration == configuration]
        assert one.plain.tokens == max(other.plain.tokens or 0 for other in mine)
    assert len(configurations) == 6

    heavy = made.written.heavy * 2 // 3
    few = report(made.study, tmp_path / "few.html", WATCHING, heavy=heavy)
    kept = listed(few.html)
    assert 0 < few.written.kept == len(kept) < few.written.of == len(all_of) == 18
    assert heavy // 2 < few.written.heavy <= heavy
    assert {(run["model"], run["dataset"], run["item"], run["backend"], run["budget"])
            for run in kept} == {
        (*one.plain.pair[:3], one.plain.backend, one.plain.budget)
        for one in order[: few.written.kept]
    }  # fmt: skip
    assert f"{few.written.kept} of 18 runs: {RULE}." in html.unescape(few.html)


def test_an_estimate_that_was_too_low_does_not_break_the_limit(
    made: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = page_runs(made.study, made.samples)
    whole = traces.pack(made.study, runs, made.rows, 10**6)
    packed = traces.deflated
    monkeypatch.setattr(traces, "deflated", lambda v: "" if "lengths" in v else packed(v))
    less = traces.pack(made.study, runs, made.rows, whole.size // 2)
    assert 0 < less.kept < whole.kept
    assert less.size <= whole.size // 2


def test_charts_and_tables_without_room_are_counted_and_said(made: Report, tmp_path: Path) -> None:
    light = made.written.light - 4000
    less = report(made.study, tmp_path / "less.html", WATCHING, light=light)
    assert less.written.light <= light
    assert less.written.left_out >= 1
    assert f"{less.written.left_out} charts or tables are not on this page" in less.html
    assert less.html.count("<table>") == len(made.tables) - less.written.left_out
    assert "are not on this page" not in made.html


class Cells(HTMLParser):
    """Text of every cell, line by line, and which elements there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[list[str]] = []
        self.tags: list[str] = []
        self.is_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.is_cell = tag in ("td", "th") or (self.is_cell and tag == "b")
        if tag == "tr":
            self.lines.append([])
        elif tag in ("td", "th"):
            self.lines[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.is_cell = self.is_cell and tag == "b"

    def handle_data(self, data: str) -> None:
        if self.is_cell:
            self.lines[-1][-1] += data


def plain_cells(table: Table) -> list[list[str]]:
    """Header and lines as the terminal shows them; names that only repeat are left out."""
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    names = [column.justify != "right" for column in table.columns]
    return [
        [Text.from_markup(cell).plain for cell, name in zip(line, names, strict=True)
         if cell or not name]
        for line in zip(*columns, strict=True)
    ]  # fmt: skip


def test_tables_have_the_terminals_cells() -> None:
    found = rows(demo(problems=6, budgets=(16, 32), backends=("h2o", "quest")), seed=0)
    for width in (WIDTH, 60, 45):
        for number, grid in enumerate(tables.every_grid(found, (), (), width)):
            table = tables.rich_table(grid, width)
            text = tables.html_table(grid, number, width)
            read = Cells(text)
            assert read.lines == plain_cells(table)
            assert read.tags.count("b") == sum(
                str(cell).count("[bold]") for column in table.columns for cell in column.cells
            )
            assert text.count('class="n"') >= len(table.rows)
    assert '<th scope="row" rowspan="2">h2o</th>' in tables.html_table(
        tables.every_grid(found, (), ())[0], 0
    )


def test_charts_hold_the_rows_numbers_and_say_what_is_missing() -> None:
    samples = [sample(i) for i in range(3)]
    samples += [
        sparse(i, budget=b, correct=b > 16 or i > 0) for b in (16, 32, 64) for i in range(3)
    ]
    samples += [sparse(i, budget=128, correct=False) for i in range(3)]
    samples += [sparse(0, budget=256), sparse(1, budget=256), failed(2, budget=256)]
    samples += [guarded(one, 50) for one in samples if one.budget in (16, 32, 64, 128)]
    found = rows(samples, seed=0)
    (of,) = chart_sets(found, samples, detector_pools(samples, 0))
    made = chart_values(of)
    plain = [row for row in found if row.budget and row.detector == "none"]
    named = {
        "Accuracy": "accuracy",
        "Output length, tokens": "mean_tokens",
        "Cost of a solved problem, times full attention's": "keys_read_per_solved_ratio",
        "Compression ratio": "compression_ratio",
    }
    for chart in made[:5]:
        (panel,) = chart["panels"]
        points = panel["lines"][0]["points"]
        assert [p["x"] for p in points] == [16, 32, 64, 128, 256]
        if field := named.get(chart["title"]):
            measured = [getattr(row, field) for row in plain]
            assert [(p["y"], p["low"], p["high"]) for p in points] == [
                (of.estimate, of.low, of.high) for of in measured
            ]
        else:
            assert [p["y"] for p in points] == [0, 0, 0, 0, None]  # cut at the cap
    cost = made[3]["panels"][0]
    assert cost["absent"] == ["none solved: h2o 128", "2 of 3 samples, not comparable: h2o 256"]
    (level,) = cost["levels"]
    assert level["points"][0]["y"] == 1
    full = next(row for row in found if row.is_baseline)
    (level,) = made[0]["panels"][0]["levels"]
    (at,) = level["points"]
    assert (at["y"], at["low"], at["high"]) == (
        full.accuracy.estimate, full.accuracy.low, full.accuracy.high,
    )  # fmt: skip
    length = made[1]["panels"][0]["lines"]
    assert length[1]["dotted"]
    assert {p["y"] for p in length[1]["points"]} == {50}
    (saved,) = made[5]["panels"]
    (line,) = saved["lines"]
    assert {p["x"] for p in line["points"]} == {0.5}
    (total,) = line["total"]
    assert (total["x"], total["y"]) == (0.5, 0)
    assert saved["frontier"] == ((0.5, 0.0),)
    assert chart_sets(rows([sample(0)], seed=0)) == []


def test_no_text_becomes_an_element(made: Report) -> None:
    assert made.study.plan.configurations[0].model == MODEL
    read = Cells(made.html)
    blocks = len({run["block"] for run in listed(made.html)})
    assert read.tags.count("script") == 1 + 1 + 1 + blocks  # charts, index, problems, the script
    assert not {"img", "b"} & set(Cells(escape(MODEL + HOSTILE + ITEM)).tags)
    assert "img" not in read.tags
    assert made.html.index("</main>") < made.html.index('id="index"')  # though a name says where
    assert "\ufffd" in escape(ITEM)
    runs = listed(made.html)
    assert {run["item"] for run in runs} == {"0", "1", ITEM}
    assert all(POISON in run["held"]["text"] for run in runs)
    assert made.written.light <= 300_000


def test_a_page_that_cannot_be_written_loses_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "small"
    shutil.copytree(SMALL, store)
    (sweep,) = manifest.paths(store)
    said_of = json.loads(sweep.read_text())
    said_of["config"]["detectors"] = ["guardian"]  # the others take their time
    sweep.write_text(json.dumps(said_of))
    (store / "report.html").mkdir()
    shutil.rmtree(store / "cache", ignore_errors=True)
    before = sorted(store.rglob("*"))
    assert main(["report", str(store), "--json", "--no-figures"]) == 2
    printed, said = capfd.readouterr()
    document = json.loads(printed)
    assert len(document["rows"]) >= 10
    assert document["manifest"]["page"] is None
    assert said.count("lil: error: page = ") == 1
    kept = {store / "cache", *(store / "cache").rglob("*")}
    assert sorted(set(store.rglob("*")) - kept) == before
    elsewhere = tmp_path / "new" / "page.html"
    assert main(["report", str(store), "--json", "--no-figures", "--page", str(elsewhere)]) == 0
    assert json.loads(capfd.readouterr().out)["manifest"]["page"] == str(elsewhere)
    assert elsewhere.read_text().endswith("</html>\n")
    kept = {store / "cache", *(store / "cache").rglob("*")}
    assert sorted(set(store.rglob("*")) - kept) == before


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    where = next((found for name in names if name and (found := shutil.which(name))), None)
    if where is None:
        pytest.skip("needs Chromium (apt-get install chromium, or CHROMIUM=path)")
    with api.sync_playwright() as play:
        running = play.chromium.launch(executable_path=where, args=["--no-sandbox"])
        yield running
        running.close()


class Opened(NamedTuple):
    """A page in the browser, with all it asked for and complained about."""

    page: Any
    asked: list[str]
    said: list[str]

    def run(self, **wanted: object) -> int:
        """The number of the run that is so in the index, for its button in the list."""
        runs = listed(Path(self.page.url.partition("#")[0].removeprefix("file://")).read_text())
        (number,) = [
            at for at, run in enumerate(runs) if wanted.items() <= run.items()
        ]  # fmt: skip
        return number

    def open(self, **wanted: object) -> dict[str, Any]:
        """Open a run's text; what the file holds of it."""
        number = self.run(**wanted)
        self.page.click(f'[data-run="{number}"]')
        self.page.wait_for_selector("#trace pre")
        runs = listed(Path(self.page.url.partition("#")[0].removeprefix("file://")).read_text())
        return runs[number]


@pytest.fixture
def opened(browser: Any, made: Report) -> Iterator[Opened]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    one = Opened(page, [], [])
    page.on("request", lambda request: one.asked.append(request.url))
    page.on("console", lambda message: one.said.append(message.text))
    page.on("pageerror", lambda error: one.said.append(str(error)))
    page.goto(made.written.path.as_uri())
    page.wait_for_selector("#list button")
    yield one
    assert one.said == []
    assert [url.partition("#")[0] for url in one.asked] == [made.written.path.as_uri()]
    assert page.evaluate("window.harmed") is None
    assert page.locator("img").count() == 0
    page.close()


@pytest.mark.slow
def test_a_browser_shows_the_finding_the_tables_and_the_charts(
    opened: Opened, made: Report
) -> None:
    page = opened.page
    assert page.text_content(".finding") == made.finding
    assert page.text_content("#finding .conditions code") == "0" * 32
    read = page.evaluate(
        "[...document.querySelectorAll('table')].map(t => [...t.rows].map(r => "
        "[...r.cells].map(c => c.textContent)))"
    )
    assert read == [plain_cells(table) for table in made.tables]
    row = next(r for r in made.rows if (r.dataset, r.budget, r.detector) == ("easy", 32, "none"))
    assert any(
        line[:2] == ["h2o", "32"]
        and line[2].startswith(f"{100 * (row.accuracy.estimate or 0):.0f} [")
        for line in read[0]
    )
    assert row.length_ratio.estimate is not None
    assert any(f"{row.length_ratio.estimate:.2f} [" in cell for line in read[0] for cell in line)
    drawn = page.evaluate(
        "[...document.querySelectorAll('figure')[0].querySelectorAll('.panel')].map(p => "
        "[...p.querySelectorAll('.mark:not(.hollow)')].map(m => +m.dataset.y))"
    )
    assert drawn == [
        [
            r.accuracy.estimate
            for r in made.rows
            if r.dataset == d and r.budget and r.detector == "none"
        ]
        for d in ("easy", HOSTILE)
    ]
    page.focus("figure svg[role=img]")
    page.keyboard.press("ArrowRight")
    told = page.text_content("figure .readout")
    assert re.fullmatch(r"easy, h2o, budget 32: 0.0% \[0.0%, .*; 3 of 3 cut at the cap", told)


@pytest.mark.slow
def test_filters_leave_what_they_say(opened: Opened, made: Report) -> None:
    page = opened.page
    runs = listed(made.html)

    def shows(**values: str) -> list[int]:
        page.eval_on_selector_all("#filters select", "all => all.forEach(s => { s.value = ''; })")
        for name, value in (values or {"answer": ""}).items():
            page.select_option(f"#filters [data-name={name}] select", value)
        found = page.eval_on_selector_all("[data-run]", "all => all.map(b => +b.dataset.run)")
        assert page.text_content("#count") == f"{len(found)} of 18 runs"
        return list(found)

    def those(keep: Any) -> list[int]:
        return [at for at, run in enumerate(runs) if keep(run)]

    full = {run["block"]: run["correct"] for run in runs if run["full"]}
    assert shows() == list(range(18))
    assert shows(dataset=f"= {HOSTILE}") == those(lambda r: r["dataset"] == HOSTILE)
    assert shows(backend="= full") == shows(budget="= null") == those(lambda r: r["full"])
    assert shows(budget="= 64", answer="right") == those(
        lambda r: r["budget"] == 64 and r["correct"]
    )
    lost = those(lambda r: not r["correct"] and full[r["block"]])
    assert shows(answer="lost") == lost != shows(answer="wrong", ending="capped") != []
    assert shows(ending="capped") == those(lambda r: r["status"] == "capped")
    for name in ("guardian", "budget"):
        fired = those(lambda r, name=name: name in r["fired"])
        assert 0 < len(fired) < 18
        assert shows(fired=f"fired {name}") == fired
    assert shows(fired="none") == those(lambda r: not r["fired"])
    gained = those(lambda r: r["correct"] and not full[r["block"]])
    assert shows(answer="gained") == gained != []
    assert shows(answer="gained", ending="capped") == []
    hidden = "#filters label[hidden]"
    assert page.eval_on_selector_all(hidden, "all => all.map(l => l.dataset.name)") == [
        "model", "penalty",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_text_is_its_traces_with_marks_at_the_right_tokens(opened: Opened, made: Report) -> None:
    page = opened.page
    before = "m => { const r = document.createRange(); r.setStart(m.closest('pre'), 0); "
    before += "r.setEndBefore(m); return r.toString(); }"
    for dataset, item in (("easy", "0"), (HOSTILE, "1"), ("easy", ITEM)):
        run = opened.open(dataset=dataset, item=item, backend="h2o", budget=32)
        (of_run,) = [
            one for one in page_runs(made.study, made.samples)
            if one.plain.pair[1:3] == (dataset, item) and one.plain.budget == 32
        ]  # fmt: skip
        (whole,) = [
            one for one in page_runs(made.study, made.samples)
            if one.plain.pair[1:3] == (dataset, item) and one.plain.backend == "full"
        ]  # fmt: skip
        mine, theirs = page.query_selector_all(".texts pre")
        assert mine.text_content() == of_run.plain.text
        assert theirs.text_content() == whole.plain.text
        stored = [made.study.store.get(one.run.id).trace() for one in (of_run, whole)]  # type: ignore[union-attr]
        pieces = [one.pieces for one in stored]

        fired = {s.detector: s.stopped_at for s in of_run.watched}
        assert fired["budget"] == 25
        assert fired["guardian"] in (20, 40, 60)
        marks = {
            mark.get_attribute("data-label").split()[1]: mark
            for mark in mine.query_selector_all(".fired")
        }
        assert set(marks) == set(fired)
        for name, at in fired.items():
            said = b"".join(pieces[0][:at]).decode(errors="replace")
            assert page.evaluate(before, marks[name]) == said, name
            marks[name].hover()
            told = page.text_content("#trace .readout")
            assert told.startswith(f"{name} fired at token {at} (action stop): {at} tokens")

        parts = next(at for at, (a, b) in enumerate(zip(*pieces, strict=False)) if a != b)
        assert parts == run["held"]["parts"] == 10 + int(run["block"]) % 3
        same = b"".join(pieces[0][:parts]).decode(errors="replace")
        for pre in (mine, theirs):
            flag = pre.query_selector(".parting")
            assert page.evaluate(before, flag) == same
            dimmed = pre.query_selector_all(".same")
            assert "".join(span.text_content() for span in dimmed) == same
        facts = page.text_content("#trace .facts")
        assert "✗ wrong" in facts
        assert f"gold {run['block'] % 3}" in facts
        assert f"{run['tokens']} tokens, 2.00 times" in facts
        assert "cut at the cap" in facts
        assert page.locator("#trace .curves .upright").count() == 2 * 3  # two charts and a key
        assert not page.query_selector(".texts b, .texts script, #trace img")


@pytest.mark.slow
def test_a_long_text_is_scrolled_to_where_it_parts(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 400, "height": 700})
    page.evaluate("document.documentElement.style.fontSize = '40px'")  # so that little fits
    opened.open(dataset="easy", item="1", backend="h2o", budget=32)
    inside = (
        "all => all.map(p => { const f = p.querySelector('.parting').getBoundingClientRect(), "
        "b = p.getBoundingClientRect(); return f.top >= b.top && f.bottom <= b.bottom; })"
    )
    assert page.eval_on_selector_all(".texts pre", inside) == [True, True]
    page.click("text=end")
    page.click("text=where they part")
    assert page.eval_on_selector_all(".texts pre", inside) == [True, True]


@pytest.mark.slow
def test_the_keyboard_alone_reaches_and_opens_a_text(opened: Opened) -> None:
    page = opened.page
    here = "document.activeElement"
    page.focus("#filters label:last-child select")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{here}.dataset.run") == "0"
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.evaluate(f"{here}.dataset.run") == "2"
    assert page.evaluate(f"getComputedStyle({here}).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("#trace pre")
    assert page.evaluate("document.querySelector('[aria-current]').dataset.run") == "2"
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(f"{here}.dataset.run") == "2"
    page.keyboard.press("End")
    assert page.evaluate(f"{here}.dataset.run") == "17"
    page.keyboard.press("Tab")
    assert page.evaluate(f"{here}.id") == "beside"
    page.keyboard.press("Space")
    assert page.locator(".texts pre").count() == 1
    assert page.evaluate(f"{here}.id") == "beside"
    page.keyboard.press("Space")
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.add(page.evaluate(f"{here}.getAttribute('class') || {here}.localName"))
    assert {"button", "pre", "parting", "svg", "summary"} <= seen
    assert any(name.startswith("fired") for name in seen)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, a, [tabindex]')].filter(e => !e.hidden && "
        "!(e.ariaLabel || e.textContent.trim() || e.labels?.length || "
        "e.getAttribute('aria-labelledby'))).map(e => e.outerHTML)"
    )
    assert unnamed == []


@pytest.mark.slow
def test_nothing_is_wider_than_a_telephone(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 400, "height": 800})
    opened.open(dataset=HOSTILE, item=ITEM, backend="h2o", budget=32)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    wide = page.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg') && "
        "e.getBoundingClientRect().right > 400).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollWidth") == 400


CONTRAST = r"""() => {
  const channels = (c) => c.match(/[\d.]+/g).map(Number);
  const light = (c) => channels(c).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor, [, , , alpha] = channels(colour);
      if (alpha !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const said = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    const label = getComputedStyle(e, "::before").content.startsWith('"');
    if (!(said || label) || !e.checkVisibility() || e.closest("script")) continue;
    const style = getComputedStyle(e), ink = e.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), e.outerHTML.slice(0, 60)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_both_schemes(opened: Opened, scheme: str) -> None:
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    opened.open(dataset="easy", item="0", backend="h2o", budget=32)
    page.mouse.move(0, 0)
    for pressed in (scheme == "dark", scheme != "dark"):
        assert page.get_attribute("#theme", "aria-pressed") == str(pressed).lower()
        contrasts = page.evaluate(CONTRAST)
        assert len(contrasts) > 300
        assert contrasts[0][0] >= 4.5, contrasts[:5]
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(21, 23, 26)") == pressed
        page.click("#theme")
