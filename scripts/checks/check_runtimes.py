"""Problems of the demo's hard level decoded by both runtimes, and their rows compared run by run.

    PYTHONPATH=. .venv-vllm/bin/python scripts/checks/check_runtimes.py STORE
    PYTHONPATH=. .venv-vllm/bin/python scripts/checks/check_runtimes.py STORE \\
        --problems 200 --offset 1000

The same sweep runs twice into one store, by transformers and by vLLM, with full attention and with
each method in a form that both take. What is stored is not decoded again, so a call that was ended
goes on, and `--compare` decodes nothing. Tokens of each pair of runs have to be equal. Where they
part, `lil.decode`'s model reads the common tokens again under the same method, and the gap from the
likeliest score to the lower one of the two tokens that were chosen is told: below `TIE` rounding
decides. Above it, a method that chooses blocks may have chosen others for the same reason before:
the text is read once more with torch, and told is the closest choice, the smallest difference
between the last block chosen and the first left out as a share of their worth. Up to `CHOICE_TIE`
rounding decides: "choice" where one such choice made the other way round gives the other's token,
"tied" where none of those that were tried does. Pairs with equal tokens have to have read the same
keys per step and to have the same answer.

Seconds per solved problem are prefill and decode of all rows over the problems solved, a step's
shared among its rows. Exit code 1 where a pair parts without a tie of either kind, where equal
tokens have other keys or answers, or where a run is missing or failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from choice_ties import CHOICE_TIE, TiedChoices, backend_of, tied_choices  # noqa: E402
from compare_stores import Parting, scores  # noqa: E402

from attention.errors import InvalidValue  # noqa: E402
from experiments.grid import models, presets  # noqa: E402
from experiments.grid.config import Config  # noqa: E402
from experiments.grid.identity import OWN_RUNTIME, RUNTIMES  # noqa: E402
from experiments.grid.plan import Run  # noqa: E402
from experiments.store.samples.sample import Sample  # noqa: E402
from experiments.store.store import Store  # noqa: E402
from experiments.store.study import Study  # noqa: E402
from experiments.sweep import sweep  # noqa: E402
from experiments.sweep.backlog import Preparation  # noqa: E402
from lil import Trace  # noqa: E402

#: Scores closer than that are one and the same in float32, after some layers.
TIE = 1e-4
#: Texts that are read together where they part.
ROWS = 16
#: Forms that both runtimes take: whole blocks of 32, keys where they were seen.
METHODS = (
    "full",
    "quest(page=32)",
    'sink(positions="absolute", sinks=32)',
    "window",
    'infllm(block=32, n_init=32, topk=1, repr_topk=32, far_position="absolute")',
)


@dataclass(frozen=True)
class RunPair:
    """One problem under one method, as both runtimes decoded it.

    Args:
        method: and budget.
        item: the problem.
        kind: "equal", "tie" of scores, "choice" or "tied" of blocks, "parts" or, of what is not
            stored or failed, "missing".
        tokens: that are common.
        gap: between the scores where they part; None where they do not.
        choices: of blocks in the common text; None where nobody looked.
        keys: whether equal tokens read the same keys per step.
        answers: whether equal tokens are the same answer, judged alike.
    """

    method: str
    item: str
    kind: str
    tokens: int
    gap: float | None
    keys: bool
    answers: bool
    choices: TiedChoices | None = None


@dataclass(frozen=True)
class RuntimeCost:
    """What one runtime took for one method.

    Args:
        method: and budget.
        runtime: that decoded.
        problems, solved: how many.
        tokens: of all outputs.
        tokens_per_second: of prefill and decode.
        keys_per_solved, seconds_per_solved: None where nothing is solved.
    """

    method: str
    runtime: str
    problems: int
    solved: int
    tokens: int
    tokens_per_second: float | None
    keys_per_solved: float | None
    seconds_per_solved: float | None


def config_of(args: argparse.Namespace) -> Config:
    """The sweep, as the default runtime decodes it.

    Raises:
        InvalidValue: a value that it cannot have.
    """
    values = {
        "datasets": "hard",
        "split": "test",
        "limit": args.problems,
        "offset": args.offset,
        "backends": args.methods,
        "budgets": str(args.budget),
        "detectors": "none",
        "batch_size": args.batch_size,
        "max_new_tokens": args.max_new_tokens,
    }
    return presets.load("demo", values)


class RunNotes(sweep.Progress):
    """Says how many runs are done, and what a sweep notes.

    Args:
        runtime: that decodes.
    """

    def __init__(self, runtime: str) -> None:
        self._runtime, self._done = runtime, 0

    def run_done(self, weight: float) -> None:
        """One more run is stored."""
        del weight
        self._done += 1
        print(f"{self._runtime}: {self._done} runs", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Say it."""
        print(f"{self._runtime}: {text}", file=sys.stderr, flush=True)


class Comparison:
    """Both runtimes' runs of one sweep, in one store.

    Args:
        out: the store.
        prepared: by runtime.
    """

    def __init__(self, out: Path, prepared: dict[str, Preparation]) -> None:
        store = Store(out)
        self._source = prepared[OWN_RUNTIME].sources[0]
        self._studies = {name: Study(store, one.plan, one.config) for name, one in prepared.items()}
        # Without detectors each run has one sample, in the order of the plan.
        self._samples = {
            name: {
                run.id: sample
                for run, sample in zip(study.runs(), study.samples([]).samples, strict=True)
            }
            for name, study in self._studies.items()
        }

    def pairs(self) -> list[RunPair]:
        """Every pair of runs; those that part are read again."""
        found: list[RunPair] = []
        parted: dict[int, Parting] = {}
        both = zip(*(self._studies[name].runs() for name in RUNTIMES), strict=True)
        for run, other in both:
            pair, parting = self._pair(run, other)
            if parting is not None:
                parted[len(found)] = parting
            found.append(pair)
        for at, gap in self._gaps(parted).items():
            if gap < TIE:
                found[at] = replace(found[at], gap=gap, kind="tie")
                continue
            choices = tied_choices(self._model(), parted[at])
            kind = "choice" if choices.explained else "tied" if choices.count else "parts"
            found[at] = replace(found[at], gap=gap, choices=choices, kind=kind)
        return found

    def _model(self) -> Any:
        return models.load(self._source, "float32", "cpu").model

    def _pair(self, run: Run, other: Run) -> tuple[RunPair, Parting | None]:
        told, item = run.cell.told, run.item_id
        mine = self._studies[OWN_RUNTIME].served(run)
        theirs = self._studies["vllm"].served(other)
        if mine is None or theirs is None:
            return RunPair(told, item, "missing", 0, None, keys=False, answers=False), None
        one, two = mine.trace(), theirs.trace()
        at = parts_at(one, two)
        if at is None:
            samples = (self._samples[OWN_RUNTIME][run.id], self._samples["vllm"][other.id])
            tokens = min(one.tokens, two.tokens)
            keys, answers = same_keys(one, two), same_answers(one, two, *samples)
            return RunPair(told, item, "equal", tokens, None, keys, answers), None
        parting = Parting(
            told,
            dict(mine.meta["cell"]),
            one.prompt_ids,
            one.new_ids[:at],
            min(one.reused_tokens, at),
            (one.new_ids[at], two.new_ids[at]),
        )
        return RunPair(told, item, "parts", at, None, keys=True, answers=True), parting

    def _gaps(self, parted: dict[int, Parting]) -> dict[int, float]:
        """From the likeliest score to the lower of the two tokens chosen, where runs part."""
        groups: dict[str, list[int]] = defaultdict(list)
        for at, parting in parted.items():
            groups[json.dumps(parting.cell["backend"], sort_keys=True)].append(at)
        found: dict[int, float] = {}
        for places in groups.values():
            model = self._model()
            for start in range(0, len(places), ROWS):
                some = places[start : start + ROWS]
                those = [parted[at] for at in some]
                read = scores(model, backend_of(those[0]), those)
                for at, parting, row in zip(some, those, read, strict=True):
                    lower = min(float(row[token]) for token in parting.tokens)
                    found[at] = float(row.max()) - lower
        return found

    def costs(self) -> list[RuntimeCost]:
        """What each runtime took for each method, of the runs that it has."""
        found = []
        for cells in zip(*(study.plan.cells for study in self._studies.values()), strict=True):
            for (name, study), cell in zip(self._studies.items(), cells, strict=True):
                samples = [self._samples[name][run.id] for run in study.plan.runs(cell)]
                found.append(cost_of(cell.told, name, samples))
        return found


def parts_at(one: Trace, two: Trace) -> int | None:
    """The step at which two outputs part; None where they are equal as far as both go.

    One may have been cut earlier: caps follow from how long full attention's output was in the same
    runtime.
    """
    pairs = zip(one.new_ids, two.new_ids, strict=False)
    at = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return None if at == min(one.tokens, two.tokens) else at


def same_keys(one: Trace, two: Trace) -> bool:
    """Whether two outputs of the same tokens read the same keys per step, to rounding.

    Of outputs that are not equally long nothing is known, and nothing said.
    """
    if one.tokens != two.tokens:
        return True
    means = (one.keys_read_mean or 0.0, two.keys_read_mean or 0.0)
    return one.keys_read_max == two.keys_read_max and math.isclose(*means, rel_tol=1e-6)


def same_answers(one: Trace, two: Trace, mine: Sample, theirs: Sample) -> bool:
    """Whether two outputs of the same tokens are the same answer; of unequally long ones it may
    not be.
    """
    return one.tokens != two.tokens or (mine.answer, mine.correct) == (
        theirs.answer,
        theirs.correct,
    )


def cost_of(method: str, runtime: str, samples: Sequence[Sample]) -> RuntimeCost:
    """What the samples of a method took; those that failed or are missing are left out."""
    usable = [one for one in samples if one.tokens is not None]
    seconds = sum((one.prefill_sec or 0.0) + (one.decode_sec or 0.0) for one in usable)
    tokens, solved = sum(one.tokens or 0 for one in usable), sum(bool(s.correct) for s in usable)
    keys = sum(one.keys_read or 0.0 for one in usable)
    return RuntimeCost(
        method,
        runtime,
        len(usable),
        solved,
        tokens,
        tokens / seconds if seconds else None,
        keys / solved if solved else None,
        seconds / solved if solved else None,
    )


def counts_of(pairs: Sequence[RunPair]) -> dict[str, dict[str, int]]:
    """By method, how many pairs are what, and how many have other keys or answers."""
    found: dict[str, dict[str, int]] = {}
    for one in pairs:
        names = (
            "equal",
            "tie",
            "choice",
            "tied",
            "parts",
            "missing",
            "other_keys",
            "other_answers",
            "tokens",
        )
        of = found.setdefault(one.method, dict.fromkeys(names, 0))
        of[one.kind] += 1
        of["tokens"] += one.tokens
        if one.kind == "equal":
            of["other_keys"] += not one.keys
            of["other_answers"] += not one.answers
    return found


def shown(pairs: Sequence[RunPair], costs: Sequence[RuntimeCost]) -> None:
    """Print counts, every pair that is not equal, and costs."""
    print(f"{'method':<14}{'equal':>7}{'tie':>5}{'choice':>8}{'tied':>6}{'part':>6}{'missing':>9}"
          f"{'other keys':>12}{'other answers':>15}{'tokens equal':>14}")  # fmt: skip
    for method, of in counts_of(pairs).items():
        print(f"{method:<14}{of['equal']:>7}{of['tie']:>5}{of['choice']:>8}{of['tied']:>6}{of['parts']:>6}"
              f"{of['missing']:>9}{of['other_keys']:>12}{of['other_answers']:>15}"
              f"{of['tokens']:>14,}")  # fmt: skip
    for one in pairs:
        if one.gap is not None:
            print(f"{one.method} {one.item}: {one.tokens} tokens common, gap {one.gap:.1e}: "
                  f"{why(one)}")  # fmt: skip
    print(f"{'method':<14}{'runtime':<14}{'problems':>9}{'solved':>8}{'tokens':>9}{'tokens/s':>10}"
          f"{'keys/solved':>14}{'s/solved':>10}")  # fmt: skip
    for cost in costs:
        print(f"{cost.method:<14}{cost.runtime:<14}{cost.problems:>9}{cost.solved:>8}"
              f"{cost.tokens:>9,}{_told(cost.tokens_per_second):>10}"
              f"{_told(cost.keys_per_solved):>14}{_told(cost.seconds_per_solved):>10}")  # fmt: skip


def why(one: RunPair) -> str:
    """Why two runs part, as far as it is known."""
    if one.kind == "tie":
        return "a tie"
    if one.choices is None or not one.choices.count:
        return "NO TIE"
    some = f"{one.choices.count} choices at a tie, the closest {one.choices.closest:.1e} apart"
    shown = "one of them gives the other token" if one.choices.explained else "not traced to one"
    return f"{some}, {shown}"


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def is_good(pairs: Sequence[RunPair]) -> bool:
    """Whether nothing but ties parts, and equal tokens have equal keys and answers."""
    return all(
        one.kind in ("tie", "choice", "tied") or (one.kind == "equal" and one.keys and one.answers)
        for one in pairs
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Decode, compare, print; 0 if only ties part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, help="folder of both runtimes' runs")
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--offset", type=int, default=0, help="leave out the first so many")
    parser.add_argument("--methods", default=",".join(METHODS), help="as lil sweep takes backends")
    parser.add_argument("--budget", type=int, default=128, help="of all methods")
    parser.add_argument("--batch-size", type=int, default=16, help="rows decoded together")
    parser.add_argument("--max-new-tokens", type=int, default=2048, help="of full attention")
    parser.add_argument("--compare", action="store_true", help="what is stored; decode nothing")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    args = parser.parse_args(argv)
    try:
        if args.compare and not (args.store / "traces").is_dir():
            allowed = "the folder of a store, with traces/ in it"
            raise InvalidValue("store", str(args.store), allowed)
        config = config_of(args)
        prepared = {}
        for runtime in RUNTIMES:
            prepared[runtime] = sweep.prepare(replace(config, runtime=runtime), args.store)
        for runtime, one in () if args.compare else prepared.items():
            print(f"check_runtimes: {runtime}", file=sys.stderr, flush=True)
            arguments = list(sys.argv[1:] if argv is None else argv)
            sweep.run(
                one,
                args.store,
                preset="demo",
                arguments=arguments,
                progress=RunNotes(runtime),
                retry_failed=True,
            )
        compared = Comparison(args.store, prepared)
    except InvalidValue as error:
        print(f"check_runtimes: {error}", file=sys.stderr)
        return 2
    pairs, costs = compared.pairs(), compared.costs()
    if args.json:
        told = {
            "tie": TIE,
            "choice_tie": CHOICE_TIE,
            "counts": counts_of(pairs),
            "pairs": [asdict(one) for one in pairs],
        }
        print(json.dumps(told | {"costs": [asdict(one) for one in costs]}))
    else:
        shown(pairs, costs)
    return 0 if is_good(pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
