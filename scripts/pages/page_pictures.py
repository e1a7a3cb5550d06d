"""Take the pictures of a sweep's report in docs/pictures: the page, and the terminal's.

    lil sweep                                          # the demo, once
    python scripts/pages/page_pictures.py lil-out/demo  # needs the extra `browser` and Chromium
    python scripts/pages/page_pictures.py STORE --out FOLDER --chromium PATH

The page's figures in light and dark and at the width of a telephone, and a run beside full
attention's; the beginning and the end of what the terminal shows at 80 columns.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.cli.show import open_store, show

ROOT = Path(__file__).parents[2]
WIDE, NARROW, HIGH, TEXT = 1280, 400, 1200, 700
COLUMNS = 80
PART = 1000  # pixels of the terminal's beginning and of its end

#: Rich's own format asks the network for a font; this one takes what the machine has.
TERMINAL = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px "DejaVu Sans Mono", monospace; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", type=Path, help="folder of a sweep")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--chromium", help="the browser (default: the one on the path)")
    args = parser.parse_args()
    where = args.chromium or shutil.which("chromium") or shutil.which("chromium-browser")
    if where is None:
        parser.error("no Chromium on the path: apt-get install chromium, or --chromium PATH")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        terminal = Path(folder) / "terminal.svg"
        terminal.write_text(printed(args.store, page), encoding="utf-8")
        take(where, page, terminal, args.out)
    for picture in sorted(args.out.glob("*.png")):
        print(f"{picture} {picture.stat().st_size:,} bytes")
    return 0


def printed(store: Path, page: Path) -> str:
    """What `lil report` prints, as SVG; it writes the page on the way."""
    notes = Console(stderr=True)
    console = Console(record=True, width=COLUMNS, file=sys.stderr, force_terminal=True)
    show(open_store(store, notes), console, notes, None, page)
    return console.export_svg(title=f"lil report {store}", code_format=TERMINAL)


def take(where: str, page: Path, terminal: Path, out: Path) -> None:
    """Every picture, with one browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=where, args=["--no-sandbox"])
        for name, width, scheme in (
            ("report-light", WIDE, "light"),
            ("report-dark", WIDE, "dark"),
            ("report-narrow", NARROW, "light"),
        ):
            view = browser.new_page(viewport={"width": width, "height": HIGH}, color_scheme=scheme)
            view.goto(page.as_uri())
            view.wait_for_selector("#list button")
            view.evaluate("document.querySelector('#figures').scrollIntoView()")
            view.screenshot(path=out / f"{name}.png")
            open_a_loop(view)
            if scheme == "dark":  # where the detector fired; in light, where the texts part
                view.locator(".tools button", has_text=", token").first.click()
            view.screenshot(path=out / f"{name}-trace.png")
            view.close()
        view = browser.new_page(viewport={"width": TEXT, "height": 800})
        view.goto(terminal.as_uri())
        size = view.evaluate(
            "(({width, height}) => [width, height])(document.documentElement.viewBox.baseVal)"
        )
        high = round(TEXT * size[1] / size[0])
        view.set_viewport_size({"width": TEXT, "height": high})
        for name, top in (("tables", 0), ("finding", high - PART)):
            clip = {"x": 0, "y": top, "width": TEXT, "height": PART}
            view.screenshot(path=out / f"terminal-{name}.png", clip=clip)
        browser.close()


def open_a_loop(view: Any) -> None:
    """A run of H2O that a detector stops, wrong though full attention is right, if there is one."""
    for name, wanted in (("backend", "h2o"), ("budget", "512")):
        select = view.locator(f'[data-name="{name}"] select')
        if wanted in select.locator("option").all_text_contents():
            select.select_option(label=wanted)
    lost = view.locator('[data-name="answer"] select')
    lost.select_option("lost")
    fired = view.locator('[data-name="fired"] select')
    for value in fired.locator("option").evaluate_all("all => all.map(one => one.value)"):
        if value.startswith("fired guardian"):
            fired.select_option(value)
    if not view.locator("#list [data-run]").count():
        lost.select_option("")
    view.locator("#list [data-run]").last.click()
    view.wait_for_selector("#trace pre")
    view.evaluate("document.querySelector('#traces').scrollIntoView()")


if __name__ == "__main__":
    sys.exit(main())
