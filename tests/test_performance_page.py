"""docs/results/performance.md is what the benchmarks printed, its aims said by rule."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import performance_page
import performance_tables

ROOT = Path(__file__).parent.parent


def layer(backend, batch, context, full, sdpa, floor, read):
    return {
        "backend": backend,
        "batch": batch,
        "context": context,
        "ms": 1.0,
        "cold_ms": 2.0,
        "faster_than_full": full,
        "faster_than_full_cold": full,
        "faster_than_transformers": sdpa,
        "of_floor": floor,
        "read_bytes": read,
        "held_bytes": 1e6,
    }


ROWS = [
    layer("full", 1, 32_768, None, 9.0, 0.5, 1000),
    layer("sink", 1, 32_768, 24.9, 99.0, 0.6, 30),
    layer("quest", 1, 32_768, 8.1, 70.0, 0.49, 100),
    layer("full", 16, 1024, None, 0.9, 0.5, 100),
    layer("quest", 16, 1024, 1.0, 5.0, 0.5, 101),
    layer("infllm", 16, 1024, 0.9, 5.0, 0.5, 99),
]


def test_aims_of_a_layer_are_said_to_be_reached_where_they_are() -> None:
    found = {what: (asked, got, said) for what, asked, got, said in performance_tables._aims(ROWS)}
    assert found == {
        "`full` against transformers, 32,768, batch 1": ("8.0", "9.0", "reached"),
        "`full` against transformers, anywhere": ("1.0", "0.9", "missed"),
        "`sink`, 32,768, batch 1: times `full`": ("25.0", "24.9", "missed"),
        "`sink`, 32,768, batch 1: share of its floor": ("60%", "60%", "reached"),
        # Ten times fewer bytes, of which 0.8 is asked for.
        "`quest`, 32,768, batch 1: times `full`, of 10.0 by bytes": ("8.0", "8.1", "reached"),
        "`quest`, 32,768, batch 1: share of its floor": ("50%", "49%", "missed"),
        # Quest reads more than full attention there, so nothing is asked.
        "`infllm`, 1,024, batch 16: times `full`": ("1.0", "0.9", "missed"),
    }


def test_costs_that_grow_are_said_to_grow() -> None:
    rows = [
        {"backend": name, "context": context, "ms": ms, "of_shortest": ms}
        for name, context, ms in [
            ("sink", 1024, 1.0),
            ("sink", 65_536, 1.09),
            ("h2o", 1024, 1.0),
            ("h2o", 65_536, 1.11),
        ]
    ]
    text = "\n".join(performance_tables.long({"rows": rows}))
    assert "| `sink` | 1.000 | 1.090 | 1.09 | within 10% |" in text
    assert "| `h2o` | 1.000 | 1.110 | 1.11 | not within 10% |" in text


def test_peers_that_did_not_run_reach_nothing() -> None:
    least = {
        "seconds": 2.0,
        "prompts_s": 0.5,
        "model_s": 1.0,
        "steps": 10,
        "read_bytes": 1e9,
        "read_s": 0.5,
    }
    found = {
        "rows": [{"peer": "vLLM", "seconds": None}],
        "bound": least,
        "shared_bound": None,
        "reached": {
            "one_process": {"of_bound": 0.79, "times_vllm": None, "times_one": 12.5},
            "processes": {"of_bound": None, "times_vllm": None, "times_one": None},
            "sparse_slower_than_full": ["infllm 128, cpp, forced"],
        },
        "aims": {"of_bound": 0.8, "times_vllm": 2.0, "times_one": 12.0},
    }
    text = "\n".join(performance_tables.peers(found))
    assert "| vLLM | not run |" in text
    assert "one process: share of the bound | 0.80 | 0.79 | missed |" in text
    assert "times vLLM |" not in text
    assert "times one at a time | 12.00 | 12.50 | reached |" in text
    assert "several processes" not in text
    assert "Bound of one process: 2.00 s" in text
    assert "Bound of the slowest" not in text
    assert "missed by infllm 128, cpp, forced" in text


def test_an_aim_in_vllm_is_reached_where_all_couples_reach_it() -> None:
    said = {
        (0.98, 0.97, 0.99): "reached",
        (0.98, 0.969, 0.99): "above on the whole",
        (0.96, 0.95, 0.97): "below on the whole",
        (0.95, 0.94, 0.969): "missed",
    }
    for shares, expected in said.items():
        one = dict(zip(("share", "least", "most"), shares, strict=True))
        found = {"throughput": {"cycle": one, "dry": one}, "batch": 2, "tokens": 9}
        found |= {"tokens_per_second_without": 1e3, "steps_a_turn": 5}
        lines = "\n".join(performance_tables.serving(found)).splitlines()
        (cycle,) = [line for line in lines if line.startswith("| cycle")]
        (dry,) = [line for line in lines if line.startswith("| dry")]
        assert cycle.endswith(f"| 0.97 | {expected} |")
        assert dry.endswith("|  |  |")


def test_the_first_table_has_what_is_aimed_at() -> None:
    def peer(name, backend, forced, processes, compiled, rate, **ratios):
        row = dict.fromkeys(("times_one", "times_vllm", "times_full", "of_bound"))
        row |= {"peer": name, "backend": backend, "forced": forced, "processes": processes}
        return row | {"compiled": compiled, "tokens_per_s": rate, "seconds": 1.0} | ratios

    rows = [
        peer("vLLM", None, False, 1, False, 9.0),
        peer("full, cpp", "full", False, 1, False, 10.0, times_one=5.0, times_full=1.0),
        peer("full, c", "full", False, 1, True, 21.0, times_one=20.0, times_full=2.1),
        peer("full, c, forced", "full", True, 1, True, 99.0, times_full=1.0),
        peer("h2o, forced", "h2o", True, 1, True, 9.0, times_full=0.99),
        peer("sink, forced", "sink", True, 1, True, 30.0, times_full=1.5),
        peer("raas, forced", "raas", True, 1, True, 0.0) | {"seconds": None},
    ]
    aims = {"of_bound": 0.8, "times_vllm": 2.0, "times_one": 20.0}
    step = {"backend": "full", "ratio": 1.7}
    models = {"model": "m", "dtype": "d", "rows": [{**step, "batch": 1}, {**step, "batch": 8}]}
    found = {"peers": {"rows": rows, "aims": aims}, "compiled-qwen": models}
    told = {what: (round(value, 2), aim) for what, value, aim in performance_page.in_short(found)}
    missing = [what for what, (value, _) in told.items() if value != value]
    assert missing == [
        f"tokens/s, full, c: {what}" for what in ("times vLLM", "share of the bound")
    ]
    assert {what: got for what, got in told.items() if what not in missing} == {
        "tokens/s, full attention, compiled: times not compiled": (2.1, "2.0"),
        "tokens/s, full, c: times transformers, one at a time": (20.0, "20"),
        "the slowest on full attention's tokens, h2o, forced: times full": (0.99, "1.0"),
        "the fastest on full attention's tokens, sink, forced: times full": (1.5, ""),
        "a compiled step, m, d, batch 1: times the model as it is": (1.7, ""),
        "a compiled step, m, d, batch 8: times the model as it is": (1.7, ""),
    }
    assert performance_page._said(2.0, 2.0) == "reached"
    assert performance_page._said(1.99, 2.0) == "missed"


def test_the_page_is_what_was_found() -> None:
    command = [sys.executable, "scripts/pages/performance_page.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_what_other_pages_say_of_these_numbers() -> None:
    page = (ROOT / "docs" / "results" / "performance.md").read_text()
    shares = page.partition("## In vLLM, with detectors and penalties")[2].partition("\n## ")[0]
    kept = [float(one) for one in re.findall(r"^\| [a-z_ ]+ \| (0\.\d+) ", shares, re.MULTILINE)]
    told = f"vLLM kept {100 * min(kept):.0f} to {100 * max(kept):.0f}% of its throughput"
    assert told in (ROOT / "docs" / "serving.md").read_text()
    compiled = re.findall(r"^(\S+), \w+, (\d+) layers: compiled in (\d+) s", page, re.MULTILINE)
    own = {int(seconds) for name, _, seconds in compiled if name == "reasoner"}
    others = {int(seconds): int(layers) for name, layers, seconds in compiled if name != "reasoner"}
    few, many = min(others.values()), max(others.values())
    told = (
        f"Compiling took {min(own)} s for the shipped model and {min(others)} to {max(others)} s "
        f"for models of {few} and {many} layers"
    )
    assert len(own) == 1
    assert told in re.sub(r"\s+", " ", (ROOT / "docs" / "engines.md").read_text())
