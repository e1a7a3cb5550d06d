"""Command lines that decode with a tiny model: most are good, of some a part is wrong.

A command is made of a seed and a number alone, so that any one can be tried again by itself.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzzing.model import save_word_model
from fuzzing.values import TEXTS

#: What a command works with; a command that was refused has changed none of it.
MODEL, PROBLEMS, TEMPLATE, PRESET, STORE = "m", "q.jsonl", "t.txt", "p.toml", "store"
#: What is other for each command.
TOML, TEXT, ROWS = "r.toml", "r.txt", "r.jsonl"

METHODS = '''
from dataclasses import dataclass
from typing import ClassVar

import lil
from attention.methods.sink import Sink


@dataclass(frozen=True, kw_only=True)
class Own(Sink):
    name: ClassVar[str] = "own"


@dataclass(frozen=True)
class Says(lil.Detector):
    """A word where a verdict belongs."""

    name: ClassVar[str] = "says"

    def watch(self, prompt=b""):
        return Saying(self)


class Saying(lil.Watcher):
    def push(self, piece):
        return "stop"


@dataclass(frozen=True)
class Few(lil.Detector):
    """Two tokens will do."""

    name: ClassVar[str] = "few"

    def watch(self, prompt=b""):
        return Counting(self)


class Counting(lil.Watcher):
    def push(self, piece):
        return lil.Verdict("few", self.tokens, {"step": self.tokens}) if self.tokens > 1 else None


class NoMethod:
    name = "none"
'''

_ROWS: tuple[dict[str, object], ...] = (
    {"question": "one + two", "answer": "7", "id": "a"},
    {"question": "the sum of 7 and \u001b[2J 12 \u202e", "answer": "\u001b]0;x\u0007", "id": "b"},
    {"question": "wait", "answer": "</script><script>1", "id": "[bold]<b>"},
)

#: What a sweep compares; `--backend` of a run is one of them.
_GRIDS = ("full", "full,h2o", "full,quest", "sink", "full,mine:Own", "infllm,tova", "raas")

_GOOD: dict[str, Sequence[str]] = {
    "--dataset": (PROBLEMS, PROBLEMS, "easy", f"{PROBLEMS},easy", "medium"),
    "--scorer": ("exact",),
    "--limit": ("1", "1", "2"),
    "--sample": ("1",),
    "--max-new-tokens": ("1", "3", "5", "8"),
    "--backend": ("full", "h2o", "quest", "sink", "mine:Own", "rkv", "snapkv", "oracle"),
    "--budget": ("32", "64"),
    "--penalty": (
        "none",
        "lz",
        "none,repetition(penalty=1.2)",
        "dry",
        "no_repeat_ngram",
        "frequency",
    ),
    "--detector": (
        *("none", "guardian", "cycle", "recurrence:answer", "budget", "guardian:regenerate"),
        *("margin", "stall", "mine:Few", "mine:Says", "guardian:densify", "chopper"),
    ),
    "--cap": ("2x-full", "none", "5", "1x-full"),
    "--temperature": ("0", "0.7", "1"),
    "--top-k": ("1", "3"),
    "--top-p": ("0.9", "1"),
    "--samples-per-problem": ("1", "2"),
    "--seed": ("0", "1"),
    "--dtype": ("float32", "float64", "bfloat16", "auto"),
    "--device": ("cpu", "auto"),
    "--engine": ("auto", "torch", "cpp"),
    "--batch-size": ("1", "2"),
    "--threads": ("1",),
    "--workers": ("1",),
    "--check-every": ("1", "4"),
    "--prompt-template": (TEMPLATE,),
    "--system": ("You are", ""),
    "--column": ("question=question,answer=answer", "question=id", "answer=answer"),
    "--preset": (PRESET, "demo-small"),
    "--set": (
        *("detector_params.guardian.f=2", "detector_params.guardian.rate=2.0", "seed=3"),
        *("backend_params.quest.page=8", "detector_params.budget.tokens=2", "guardian.f=2,5"),
        *("penalty_params.lz.alpha=0.5", "action_params.answer.cue='the'", "budget.tokens=2,3"),
        "guardian.rate=0.5,2",
    ),
    "--f": ("2", "2,5"),
    "--t": ("2", "3,5"),
    "--rate": ("0.5", "2.0"),
    "--codec": ("deflate", "lz77", "lzss"),
    "--decode": ("1",),
    "--every": ("10", "1000"),
    "--every-tokens": ("1", "2"),
    "--sweep": ("last", "all", "2"),
    "--csv": ("x.csv",),
    "--rows": ("x.csv", "x.md", "x.tex"),
    "--inspect": ("logs",),
    "--page": ("x.html",),
    "--plot": ("x.png",),
    "--weights": ("w.safetensors",),
    "--from": (STORE,),
    "--epochs": ("2",),
    "--split": ("test", "train"),
    "--held-out-limit": ("1",),
    "--keys": ("1", "1,4", "16"),
    "--top": ("1", "5"),
}

#: Values of which large ones would only take long.
_WORK = frozenset(
    {
        *("--limit", "--sample", "--max-new-tokens", "--samples-per-problem", "--batch-size"),
        *("--cap", "--workers", "--threads", "--decode", "--epochs", "--held-out-limit"),
        *("--budget", "--check-every", "--every", "--train-batch", "--executor", "--address"),
    }
)
#: What would draw pictures or ask a hub; seldom.
_SLOW = frozenset({"--figures", "--page", "--plot", "--inspect", "--check-live", "--codec"})
_OUTSIDE = frozenset({"--executor", "--address", "--gpus-per-worker", "--embedder", "--parquet"})


def prepare(folder: Path) -> None:
    """Put what commands work with into a folder: a model, problems, texts, methods and a store."""
    save_word_model(folder / MODEL)
    lines = [json.dumps(row) for row in _ROWS]
    (folder / PROBLEMS).write_text("\n".join(lines) + "\n")
    (folder / TEMPLATE).write_text("the {question} is\n")
    (folder / PRESET).write_text('datasets = "q.jsonl"\nlimit = 1\nmax_new_tokens = 4\n')
    (folder / "mine.py").write_text(METHODS)
    (folder / "essay.txt").write_text("word " * 300 + "\x1b[2J")


def base_store(folder: Path) -> list[str]:
    """The command that makes the store."""
    shutil.rmtree(folder / STORE, ignore_errors=True)
    asked = ["--model", f"./{MODEL}", "--dataset", PROBLEMS, "--scorer", "exact", "--limit", "2"]
    grid = ["--backend", "full,h2o", "--budget", "16", "--max-new-tokens", "24"]
    own = ["--detector", "guardian", "--set", "detector_params.guardian.f=4", "--temperature", "1"]
    return ["sweep", *asked, *grid, *own, "--threads", "1", "--out", STORE, "--no-figures"]


_KEYS = (
    *("models", "datasets", "limit", "backends", "budgets", "detectors", "penalties", "seed"),
    *("max_new_tokens", "cap", "temperature", "top_p", "dtype", "check_every", "system", "scorer"),
)
_TABLES = ("backend_params.quest", "detector_params.guardian", "penalty_params.lz", "x", "models")
_SLOTS = ("{problem}", "{question}", "{answer}", "{", "}", "{{", "is ", "\n", "\x1b[2J", "{id!r}")


def _any(rng: random.Random) -> object:
    """A value whose size makes no work."""
    kinds = (rng.choice(TEXTS), rng.choice((0, 1, 2, -1, 0.5, 10**20)), True, None, [1], ["full"])
    found = rng.choice((*kinds, {"a": 1}, [["x"]], {}, []))
    return "" if isinstance(found, str) and "reasoner" in found else found


def _toml(value: object) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items())
        return "{" + ", ".join(pairs) + "}"
    return "1e400" if value is None else json.dumps(value)


class Commands:
    """Command number n of a seed.

    Args:
        seed: of all of them.
        flags: of each noun, by option, whether it takes a value.
    """

    def __init__(self, seed: int, flags: dict[str, dict[str, bool]]) -> None:
        self.seed, self.flags = seed, flags

    def files(self, n: int) -> dict[str, str]:
        """What stands in the files that a command may name, good or not."""
        rng = random.Random(f"{self.seed}/{n}/files")
        keys = rng.sample((*_KEYS, "bugdets", ""), rng.randint(0, 3))
        lines = [f"{json.dumps(key)} = {_toml(_any(rng))}" for key in keys]
        lines += [f"[{rng.choice(_TABLES)}]\n{_toml(rng.choice(TEXTS))} = {_toml(_any(rng))}"]
        template = "".join(rng.choice(_SLOTS) for _ in range(rng.randint(0, 4)))
        columns = ("question", "problem", "answer", "id", "x")
        rows = [
            {name: _any(rng) for name in rng.sample(columns, rng.randint(1, 4))}
            | ({"question": "one", "answer": "7"} if rng.random() < 0.7 else {})
            for _ in range(rng.randint(1, 3))
        ]
        problems = [json.dumps(row) for row in rows] + ["{"] * (rng.random() < 0.1)
        made = {TOML: "\n".join(lines[: rng.randint(0, 4)]), TEXT: template}
        return made | {ROWS: "\n".join(problems)}

    def __call__(self, n: int) -> list[str]:
        """The words of a command."""
        rng = random.Random(f"{self.seed}/{n}")
        nouns = {
            "sweep": self._sweep,
            "run": self._run,
            "report": self._store_command,
            "replay": self._store_command,
            "calibrate": self._store_command,
            "curve": self._curve,
            "chopper": self._chopper,
            "list": self._plain,
            "bench": self._plain,
            "why": self._why,
        }
        (noun,) = rng.choices(list(nouns), weights=(30, 28, 14, 10, 6, 6, 2, 3, 1, 6))
        words = [noun, *nouns[noun](rng, noun)]
        if rng.random() < 0.3:
            words.append("--json")
        if rng.random() < 0.03:
            words.insert(rng.randrange(len(words) + 1), rng.choice(TEXTS))
        if rng.random() < 0.02:
            del words[rng.randrange(len(words))]
        return words

    def _sweep(self, rng: random.Random, noun: str) -> list[str]:
        words = [*self._asked(rng), "--out", f"o{rng.randrange(4)}"]
        words += ["--backend", rng.choice(_GRIDS)]
        words += [] if rng.random() < 0.04 else ["--no-figures"]
        words += [] if rng.random() < 0.1 else ["--no-page"]
        words += ["--budget", rng.choice(("32", "32", "16", "32,64"))] if rng.random() < 0.8 else []
        words += ["--dry-run"] if rng.random() < 0.1 else []
        return [*words, *self._more(rng, noun, words)]

    def _run(self, rng: random.Random, noun: str) -> list[str]:
        words = self._asked(rng)
        if rng.random() < 0.7:
            backend = rng.choice(_GOOD["--backend"])
            words += ["--backend", backend] + ([] if backend == "full" else ["--budget", "32"])
        return [*words, *self._more(rng, noun, words)]

    def _asked(self, rng: random.Random) -> list[str]:
        words = ["--model", f"./{MODEL}" if rng.random() < 0.97 else rng.choice(TEXTS)]
        problems = ROWS if rng.random() < 0.06 else rng.choice(_GOOD["--dataset"])
        words += ["--dataset", problems, "--scorer", "exact"]
        words += ["--preset", TOML] if rng.random() < 0.06 else []
        words += ["--prompt-template", TEXT] if rng.random() < 0.04 else []
        return [
            *words,
            "--limit",
            "1",
            "--max-new-tokens",
            str(rng.randint(1, 8)),
            "--threads",
            "1",
        ]

    def _store_command(self, rng: random.Random, noun: str) -> list[str]:
        words = [STORE] if rng.random() < 0.85 else [rng.choice((MODEL, "o0", "o1", "nothing", ""))]
        if noun == "report":
            words += [] if rng.random() < 0.04 else ["--no-figures"]
            words += [] if rng.random() < 0.1 else ["--no-page"]
        if noun == "calibrate":
            words += ["--detector", rng.choice(("guardian", "cycle", "recurrence", "mine:Few"))]
        return [*words, *self._more(rng, noun, words)]

    def _curve(self, rng: random.Random, noun: str) -> list[str]:
        words = [rng.choice(("essay.txt", f"{STORE}:", STORE, PROBLEMS, MODEL, "nothing"))]
        return [*words, *self._more(rng, noun, words)]

    def _chopper(self, rng: random.Random, noun: str) -> list[str]:
        words = ["train", "--epochs", "2", "--out", f"o{rng.randrange(4)}"]
        words += ["--from", STORE] if rng.random() < 0.7 else self._asked(rng)
        return [*words, *self._more(rng, noun, words)]

    def _why(self, rng: random.Random, noun: str) -> list[str]:
        # Of the store, of which no sparse run is greedy, and of others that a sweep has left.
        words = [STORE] if rng.random() < 0.5 else [rng.choice(("o0", "o1", "o2", "o3", MODEL))]
        words += rng.sample(("h2o", "quest", "sink", "full", "32", "a", "none"), rng.randint(0, 2))
        return [*words, *self._more(rng, noun, words)]

    def _plain(self, rng: random.Random, noun: str) -> list[str]:
        if noun == "bench":  # measures for seconds where it is right
            return [rng.choice(("h2", "meter", "attention:", "\u202e"))]
        return [rng.choice(("backends", "detectors", "presets", "datasets", "penalties", "x"))]

    def _more(self, rng: random.Random, noun: str, words: Sequence[str]) -> list[str]:
        """A few more flags; about one command in three has a wrong value."""
        found: list[str] = []
        known = [flag for flag in self.flags[noun] if flag not in words or rng.random() < 0.05]
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
            flag = rng.choice(known)
            if flag in _OUTSIDE or (flag in _SLOW and rng.random() < 0.85):
                continue
            if not self.flags[noun][flag]:
                found.append(flag)
                continue
            good = rng.random() < 0.75 and flag in _GOOD
            value = rng.choice(_GOOD[flag]) if good else self._wrong(rng, flag)
            found += [flag, value] if value and not value.startswith("-") else [f"{flag}={value}"]
        return found

    def _wrong(self, rng: random.Random, flag: str) -> str:
        while True:
            value = rng.choice(TEXTS)
            if flag in ("--figures", "--out") and value.startswith(("/", "~", "..")):
                continue  # a folder of this machine
            if flag in _WORK and (value == "all" or _is_much(value)):
                continue
            if flag == "--model" or value.partition(",")[0] not in ("reasoner", "gsm8k"):
                return value if value != "reasoner" else "reasonr"


def _is_much(value: str) -> bool:
    try:
        return float(value.removesuffix("x-full")) > 0 or "," in value
    except ValueError:
        return "," in value


def known_flags(parser: Callable[[], object]) -> dict[str, bool]:
    """A parser's options, each with whether it takes a value."""
    actions = parser()._actions  # type: ignore[attr-defined]
    return {
        action.option_strings[0]: action.nargs != 0
        for action in actions
        if action.option_strings and action.option_strings[0] not in ("-h", "--help")
    }
