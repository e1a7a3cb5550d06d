"""The numbers of the study: recomputed by other code, and nothing said where nothing is."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comparisons
import measure_study
import numpy as np
import pages
import pytest
import study_claims
import study_figures
import study_readings
import study_rules
import study_tables
import study_texts
from recomputing_study import tables
from study_full_tables import FULL_TABLES
from study_short_tables import SHORT_TABLES
from study_worlds import FULL, text, world

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.reasoner import problem
from experiments.report.bootstrap import Bootstrap
from experiments.store.store import Store
from experiments.store.study import Study

SMALL = Path(__file__).parent / "data" / "small"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of four easy problems under three methods."""
    return Path(shutil.copytree(SMALL, tmp_path_factory.mktemp("study") / "small"))


def naive(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """By method and problem: what a text is at twice full attention's length, by plain means."""
    raw: dict[str, dict[str, Any]] = {}
    for record in Store(folder):
        meta = record.meta
        if meta.get("detector") is None and not meta["cell"]["penalties"]:
            raw.setdefault(meta["cell"]["backend"]["name"], {})[meta["item_id"]] = record.trace()
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, traces in raw.items():
        for item, trace in traces.items():
            level, split, index = item.split("/")
            drawn = problem(level, split, int(index))
            n = min(2 * len(raw["full"][item].new_ids), len(trace.new_ids))
            cut = n < len(trace.new_ids) or trace.finish != "eos"
            text = b"".join(trace.pieces[:n]).decode()
            boxes = re.findall(r"\\boxed\{(\d+)\}", text)
            said = re.search(rf"\b{drawn.goal} is {drawn.answer}(?![0-9])", text)
            ends = list(accumulate(map(len, trace.pieces)))
            until = None if said is None else sum(end < said.end() for end in ends[:n]) + 1
            before, after = None, None
            for check in trace.checks:
                if check.tokens <= n:
                    before = check
                if check.tokens >= n and after is None:
                    after = check
            share = (
                0 if before.tokens == n else (n - before.tokens) / (after.tokens - before.tokens)
            )
            found.setdefault(name, {})[item] = {
                "tokens": n,
                "solved": not cut and boxes[-1:] == [drawn.answer],
                "until": until,
                "keys": before.keys_read + share * (after.keys_read - before.keys_read),
            }
    return found


def test_all_numbers_again_by_other_code(small: Path) -> None:
    document = study_readings.read_stores([small], worlds=2)
    assert document["caps"] == [2]
    level = document["levels"]["easy"]
    other = naive(small)
    full = other["full"]
    told = level["full"]["2"]
    assert told["tokens"] == sum(one["tokens"] for one in full.values())
    assert told["classes"]["other"] == 0
    rows = {row["backend"]: row for row in level["at"]["2"]["rows"]}
    assert set(rows) == {"h2o", "quest"}
    for name, row in rows.items():
        mine, found = other[name], row["against_full"]
        assert sum(row["classes"].values()) == row["tokens"]
        assert row["tokens"] == sum(one["tokens"] for one in mine.values())
        assert row["solved"] == sum(one["solved"] for one in mine.values())
        assert row["ever_right"] == sum(one["until"] is not None for one in mine.values())
        assert found["lost"] == sum(full[x]["solved"] and not mine[x]["solved"] for x in mine)
        assert found["gained"] == sum(mine[x]["solved"] and not full[x]["solved"] for x in mine)
        both = [x for x in mine if mine[x]["solved"] and full[x]["solved"]]
        assert found["ratio_solved"]["n"] == len(both)
        ratio = found["ratio_solved"]["estimate"]
        if both:
            logs = [math.log(mine[x]["tokens"] / full[x]["tokens"]) for x in both]
            assert ratio == pytest.approx(math.exp(sum(logs) / len(logs)))
        else:
            assert ratio is None
        right = [x for x in mine if mine[x]["until"] is not None and full[x]["until"] is not None]
        assert found["until_right"]["n"] == len(right)
        if right:
            gaps = [mine[x]["until"] - full[x]["until"] for x in right]
            assert found["until_right"]["estimate"] == pytest.approx(sum(gaps) / len(gaps))
        keys = sum(one["keys"] for one in mine.values())
        assert row["cost"]["keys"] == pytest.approx(keys)
        if row["solved"]:
            assert row["per_solved"]["keys"]["estimate"] == pytest.approx(keys / row["solved"])
        more = row["tokens"] - told["tokens"]
        assert found["excess"]["tokens"] == sum(found["excess"]["by_class"].values()) == more
    assert rows["quest"]["solved"] > 0
    assert {one["detector"] for one in document["detectors"]} >= {"cycle"}


def test_tokens_until_right_and_after_it_by_hand() -> None:
    h2o, full = ("h2o", 64), FULL[:2]
    pairs = [
        (text(0, 130, h2o, first_right=70), text(0, 100, full, first_right=50)),  # +20, +10
        (text(1, 90, h2o, first_right=40), text(1, 100, full, first_right=50)),  # -10, 0
        (text(2, 90, h2o, first_right=None), text(2, 100, full, first_right=50)),
        (text(3, 90, h2o, first_right=40), text(3, 100, full, first_right=None)),
    ]
    found = comparisons.compared(pairs, 8, Bootstrap(0, 100))
    assert (found["until_right"]["estimate"], found["until_right"]["n"]) == (5, 2)
    assert (found["after_right"]["estimate"], found["after_right"]["n"]) == (5, 2)
    assert (found["right_here_alone"], found["right_there_alone"]) == (1, 1)
    assert found["excess"]["tokens"] == 0
    assert (found["excess"]["longer"], found["excess"]["longer_by_end"]) == (1, {"solved": 30})


def test_seconds_of_another_processor_are_not_compared() -> None:
    h2o = ("h2o", 64)
    made = {
        FULL: {str(at): text(at, 100, FULL[:2]) for at in range(8)},
        (*h2o, False): {str(at): text(at, 90, h2o) for at in range(8)},
    }
    for at in ("6", "7"):
        made[*h2o, False][at] = dataclasses.replace(made[*h2o, False][at], processor="another")
    cells = study_texts.timed(made)
    pairs = [(cells[*h2o, False][at], cells[FULL][at]) for at in made[FULL]]
    told = comparisons.compared(pairs, 8, Bootstrap(0, 100))["per_solved_ratio"]
    assert (told["seconds"]["n"], told["keys"]["n"]) == (6, 8)
    found = comparisons.alone([*cells[*h2o, False].values()], 8, 1, Bootstrap(0, 100))
    assert found["cost"]["seconds"] is None
    assert "seconds" not in found["per_solved"]
    assert found["timed"] == 6  # the others' answers and seconds are both left out
    assert found["solved_per_cpu_hour"] == 3600 * 6 / (6 * 90)
    assert found["cost"]["keys"] > 0
    nobody = [one.untimed() for one in cells[FULL].values()]
    assert comparisons.alone(nobody, 8, 1, Bootstrap(0, 100))["solved_per_cpu_hour"] is None
    assert (
        comparisons.alone([*cells[FULL].values()], 8, 1, Bootstrap(0, 100))["cost"]["seconds"] > 0
    )


def test_a_null_world_says_nothing_and_an_effect_is_said() -> None:
    for effect in (0.0, 0.5):
        found = world(effect)
        said = {row["backend"]: row["said"] for row in found["rows"]}
        assert said["dither"] is None
        assert said["quest"] is None
        assert said["oracle"] is None  # of 60 problems none differs: more may elsewhere
        assert said["h2o"] == ("longer" if effect else None)
        assert found["sparsity_free"] == []  # no more than 1% lost cannot be said of 60 problems
        even = {one["backend"]: one for one in found["break_even"] if one["cost"] == "tokens"}
        assert even["h2o"]["dearer" if effect else "open"] == [64]
        (h2o,) = (one for one in found["selection"] if one["backend"] == "h2o")
        assert h2o["n"] == 60


def test_documents_of_other_levels_are_joined() -> None:
    first = {"caps": [2], "margin": 0.05, "threads": 1, "workers": 1, "intensity": 1.0,
             "prices": {}, "missing": 1, "levels": {"hard": 1}, "detectors": [1],
             "penalties": [3]}  # fmt: skip
    second = first | {"levels": {"easy": 2}, "detectors": [2], "missing": 2,
                      "penalties": []}  # fmt: skip
    whole = study_readings.joined([first, second])
    assert whole["levels"] == {"hard": 1, "easy": 2}
    assert (whole["missing"], whole["detectors"], whole["penalties"]) == (3, [1, 2], [3])
    assert first["levels"] == {"hard": 1}
    for wrong, said in (
        (second | {"levels": {"hard": 2}}, "a level"),
        (second | {"caps": [4]}, "caps"),
    ):
        with pytest.raises(InvalidValue, match=said):
            study_readings.joined([first, wrong])


def test_stores_that_are_read_apart_give_the_same(small: Path, tmp_path: Path, capsys: Any) -> None:
    alone = study_readings.read_stores([small], worlds=2)
    found = study_readings.read_apart([small], worlds=2)
    assert found == alone
    assert study_readings.main([str(small), str(tmp_path / "nowhere"), "--json"]) == 2
    assert "study_readings:" in capsys.readouterr().err
    with pytest.raises(InvalidValue, match="a level in several"):
        study_readings.read_apart([small, small], worlds=1)


def test_of_few_problems_that_differ_the_most_that_may_is_counted() -> None:
    bound = math.log(8)
    for same, differ, within in ((200, 0, True), (60, 0, False), (199, 1, False), (599, 2, True)):
        logs = [0.0] * same + [0.1] * differ
        found = comparisons.geometric(logs, Bootstrap(0, 200), bound=bound)
        assert found["within"] is within, (same, differ)
    assert comparisons.at_most(0, 600) == pytest.approx(1 - 0.025 ** (1 / 600))
    assert comparisons.at_most(5, 5) == 1


def test_the_rule_is_silent_in_nearly_all_worlds_of_swapped_sides() -> None:
    draw = np.random.default_rng(1)
    sizes = {"ratio_all": 1.0, "ratio_solved": 1.0, "until_right": 50.0, "after_right": 50.0}
    cells: list[dict[str, list[float]]] = []
    for _ in range(2):  # they are swapped, whatever they are
        more = {name: list(size * draw.normal(0.4, 0.3, 30)) for name, size in sizes.items()}
        cells.append(more | {"answers": list(draw.choice((-1.0, 0.0), 30))})
    found = study_claims.null_worlds(cells, 30, 0)
    assert found["worlds"] == 30
    assert found["spoke"].keys() == cells[0].keys()
    assert max(found["spoke"].values()) <= 4
    assert study_claims.CHANGE == study_rules.LEAST_CHANGE
    for rule in cells[0]:  # and as they are, every rule speaks
        assert study_claims.speaks(rule, [cell[rule] for cell in cells], Bootstrap(0, 1000)), rule


def test_tables_show_what_was_counted(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, results = tmp_path / "STUDY.md", tmp_path / "study.md"
    document = tmp_path / "found.json"
    monkeypatch.setattr(study_tables, "PAGE", page)
    monkeypatch.setattr(study_tables, "RESULTS", results)
    monkeypatch.setattr(study_tables, "KEPT", tmp_path / "kept.json")
    found = study_readings.read_stores([small], worlds=2)
    document.write_text(json.dumps(found))
    for one, names in (
        (page, ["brief", "sentences", "advice", *SHORT_TABLES]),
        (results, [*FULL_TABLES]),
    ):
        places = (f"<!-- {x}: scripts/pages/{study_tables.NAME} -->\n{pages.END}\n"
                  for x in names)  # fmt: skip
        one.write_text("# Text\n" + "\n".join(places) + "\nMore.\n")
    assert study_tables.main(["--chosen", str(document)]) == 0
    assert "held out" not in page.read_text()
    assert study_tables.main(["--held-out", str(document)]) == 0
    assert study_tables.main(["--without", f"forget={document}"]) == 0
    healed = {"of": 40, "estimate": 0.5, "low": 0.352, "high": 0.648}
    one = {"runs": 41, "refused": 1, "not_reproduced": 0, "seconds_each": 2.25,
           "healed": {"16 drawn": healed, "4 most missed": healed},
           "only_missed": 9, "only_drawn": 1, "agreed": 12.5, "to_the_end": 3,
           "missed_in_prompt": 0.125, "missed_in_output": 0.875}  # fmt: skip
    document.write_text(json.dumps({"quest": one}))
    assert study_tables.main(["--why", str(document)]) == 0
    assert study_tables.main(["--check"]) == 0  # what is kept gives the same pages again
    heads = "| method | texts | seconds each | 4 most missed | 16 drawn | tokens alike then | to"
    assert heads in page.read_text()
    told = "50.0 [35.2, 64.8] of 40"
    assert f"| quest | 40 | 2.2 | {told} | {told} | 12.5 | 3 | 12 |" in page.read_text()
    assert re.search(r"\| as it ships \|.*\n\| without forget \|", page.read_text())
    text = results.read_text()
    (quest,) = (r for r in found["levels"]["easy"]["at"]["2"]["rows"] if r["backend"] == "quest")
    ratio = quest["against_full"]["ratio_solved"]["estimate"]
    for which in ("chosen", "held out"):
        told = f"| {which} | easy | 2 | quest 64 | {quest['solved']} of 4 |"
        (line,) = (one for one in text.splitlines() if one.startswith(told) and "alone" not in one)
        assert f"| {ratio:.3f} |" in line
    short = [one for one in page.read_text().splitlines() if one.startswith("| quest 64 |")]
    assert any(f"| {quest['solved']} of 4 |" in one and f"| {ratio:.2f} |" in one for one in short)
    assert "| held out |" in page.read_text()
    for one in (page, results):
        told = one.read_text()
        assert told.startswith("# Text\n")
        assert told.endswith("More.\n")
        one.write_text(told.replace("| quest 64 |", "| quest 65 |"))
        assert study_tables.main(["--check"]) == 1
        one.write_text(told)


def test_a_model_that_is_not_here_has_the_shape_of_another(small: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(small, tmp_path / "other"))
    (manifest,) = (store / "sweeps").glob("*.json")
    gone = manifest.read_text().replace('"reasoner"', '"/nowhere/without-forget"')
    manifest.write_text(gone)
    with pytest.raises(InvalidValue, match="without-forget"):
        study_readings.read_stores([store], worlds=1)
    found = study_readings.read_stores([store], worlds=1, shape="reasoner")
    assert found["prices"] == study_readings.read_stores([small], worlds=1)["prices"]


def test_corrected_chance_says_nothing() -> None:
    one = {"p": 0.01, "low": 1.01, "high": 1.3, "differs": 20, "within": False}
    assert study_claims.claim(one, None) == "longer"
    assert study_claims.claim(one | {"p_holm": 0.06}, None) is None
    assert study_claims.claim(one, {"low": 0.9, "high": 1.05}) is None
    assert study_claims.claim(one | {"differs": 5}, None) is None


def test_a_store_that_cannot_be_read_so_is_refused(
    small: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert study_readings.main([str(tmp_path / "nowhere")]) == 2
    assert "study_readings:" in capsys.readouterr().err
    study = Study.open(small)
    object.__setattr__(study.config, "cap", "500")
    with pytest.raises(InvalidValue, match="2x-full"):
        study_texts.caps_of([study])


def test_the_parts_are_the_plans_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for part in measure_study.parts(tmp_path, 900, 3, 2, 1):
        names.append(part.name)
        at = part.command.index("sweep")
        assert main([*part.command[at:], "--dry-run"]) == 0, part.name
        found = json.loads(capsys.readouterr().out)
        assert (found["config"]["offset"], found["config"]["cap"]) == (900, "8x-full")
        tried = "penalties" in part.name or "honest" in part.name
        assert found["config"]["null"] == ("auto" if tried else "dither")
        assert len(found["config"]["penalties"]) == (4 if tried else 1)
        whole = part.name in ("hard-methods-900", "hard-honest-900")
        assert found["config"]["limit"] == (3 if whole else 2)
        if part.name == "hard-methods-900":
            cells = {(one["backend"], one["budget"]) for one in found["cells"]}
            assert {("quest", 96), ("infllm", 640), ("h2o", 384), ("sink", 1024)} <= cells
            assert {("oracle", 8), ("oracle", 1024), ("dither", None)} <= cells
    assert len(names) == len(set(names)) >= 17
    assert measure_study.oracle("hard", shipped=False)[-1] == "oracle(budget=96)"
    assert measure_study.budgets("retold")["quest"] == (48, 64, 128)
    fits, not_ = measure_study.kept("hard", 282)
    assert "h2o(budget=384, keep_prompt=true)" in fits
    assert "random(budget=256, keep_prompt=true)" in not_


def test_figures_show_the_documents_numbers(small: Path) -> None:
    document = study_readings.read_stores([small], worlds=1)
    drawn = dict(study_figures.figures({"chosen": document}))
    rows = document["levels"]["easy"]["at"]["2"]["rows"]
    wanted = {(row["budget"], row["accuracy"]["estimate"]) for row in rows}
    ratios = [(row["budget"], row["against_full"]["ratio_solved"]["estimate"]) for row in rows]

    def points(axis: Any) -> set[tuple[float, float]]:
        marked = [one for one in axis.get_lines() if one.get_marker() not in ("None", "")]
        return {(x, y) for one in marked for x, y in zip(*one.get_data(), strict=True)}

    assert points(drawn["lengths"].axes[0]) == wanted
    assert points(drawn["lengths"].axes[1]) == {one for one in ratios if one[1] is not None}
    tall = sum(bar.get_height() for bar in drawn["excess"].axes[0].patches)
    of = {row["backend"]: row for row in rows}
    told = [of[name]["against_full"]["excess"]["tokens"] / of[name]["n"] for name in of]
    assert tall == pytest.approx(sum(told))


def test_a_cell_is_beside_the_next_smaller_budget() -> None:
    budgets = [("h2o", 64), ("quest", 256), ("h2o", 512), ("h2o", 128), ("quest", 32)]
    cells: list[study_texts.Cell] = [(name, budget, False) for name, budget in budgets]
    told = {more[:2]: less[:2] for more, less in study_readings.steps(cells)}
    assert told == {("h2o", 128): ("h2o", 64), ("h2o", 512): ("h2o", 128),
                    ("quest", 256): ("quest", 32)}  # fmt: skip
    ours = [tables.Cell(*cell) for cell in cells]
    again = {more[:2]: less[:2] for more, less in tables._smaller(ours).items()}
    assert again == told


def test_a_false_stop_is_one_whatever_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An action that few texts have is bound by all of full attention's."""

    class Watched:
        """A sweep of so many problems, the first of which is stopped."""

        config = None

        def __init__(self, action: str, n: int) -> None:
            self.samples_ = [
                dataclasses.replace(
                    text(at, 100, FULL[:2]).sample, detector="cycle", action=action,
                    stopped_at=None if at else 50,
                )
                for at in range(n)
            ]  # fmt: skip

        def samples(self, _: Any) -> Any:
            return SimpleNamespace(samples=self.samples_)

    monkeypatch.setattr(study_readings, "build_detectors", lambda _: [])
    found = study_readings.detected(
        [Watched("stop", 600), Watched("answer", 20)],  # type: ignore[list-item]
        {"hard": {}},
        Bootstrap(0, 100),
    )
    assert {one["action"]: (one["false"], one["of_full"]) for one in found} == {
        "stop": (1, 600), "answer": (1, 600),
    }  # fmt: skip
    assert all(one["same_bound"] for one in found)
