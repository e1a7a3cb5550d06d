"""Problems of the demo's hard level decoded by both runtimes, and their rows compared run by run.

    PYTHONPATH=. .venv-vllm/bin/python scripts/checks/check_runtimes.py STORE
    PYTHONPATH=. .venv-vllm/bin/python scripts/checks/check_runtimes.py STORE \\
        --problems 200 --offset 1000

The same sweep runs twice into one store, by transformers and by vLLM, with full attention and with
each method in a form that both take. What is stored is not decoded again, so a call that was ended
goes on, and `--compare` decodes nothing. Tokens of each pair of runs have to be equal. Where they
part, `lil.decode`'s model reads the common tokens again under the same method, and the gap from the
likeliest score to the lower one of the two tokens that were chosen is told: below `TIE` rounding
decides. Above it, the text is read again 16 times with torch, with each linear layer's outputs
changed by up to a last bit or two: where some of these readings are followed by the one token and
some by the other, rounding decides. Where that does not show it, a method that chooses blocks may
have chosen others for the same reason before: told is the closest choice, the smallest difference
between the last block chosen and the first left out as a share of their worth. Up to `CHOICE_TIE`
rounding decides. A pair is traced where one such choice or all of them, made otherwise with all
else as it is, give the other's token while the text as it is, read beside it, does not; where no
way that was tried does, it is not explained. Pairs with equal tokens have to be equally long, to
have read the same keys per step and to have the same answer.

Seconds per solved problem are prefill and decode of all rows over the problems solved, a step's
shared among its rows. Exit code 1 where a pair parts and is not explained, where equal tokens have
other keys or answers, or where a run is missing or failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from choice_ties import CHOICE_TIE, backend_of, tied_choices  # noqa: E402
from compare_stores import Parting, scores  # noqa: E402
from rounded_readings import LAST_BIT, rounded_readings  # noqa: E402
from runtime_pairs import (  # noqa: E402
    RunPair,
    RuntimeCost,
    cost_of,
    counts_of,
    is_good,
    parts_at,
    same_answers,
    same_keys,
    why,
)

from attention.errors import InvalidValue  # noqa: E402
from experiments.grid import models, presets  # noqa: E402
from experiments.grid.config import Config  # noqa: E402
from experiments.grid.identity import OWN_RUNTIME, RUNTIMES  # noqa: E402
from experiments.grid.plan import Run  # noqa: E402
from experiments.store.files.records import Record  # noqa: E402
from experiments.store.store import Store  # noqa: E402
from experiments.store.study import Study  # noqa: E402
from experiments.sweep import sweep  # noqa: E402
from experiments.sweep.backlog import Preparation  # noqa: E402

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
        "budgets": args.budgets,
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
                found[at] = replace(found[at], gap=gap, kind="score tie")
                continue
            readings = rounded_readings(self._model(), parted[at])
            found[at] = replace(found[at], gap=gap, readings=readings, kind="other rounding")
            if readings.both:
                continue
            choices = tied_choices(self._model(), parted[at])
            untraced = "untraced choice" if choices.count else "parts"
            kind = "traced choice" if choices.traced else untraced
            found[at] = replace(found[at], choices=choices, kind=kind)
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
            whole = one.tokens == two.tokens
            return RunPair(told, item, "equal", tokens, None, keys, answers, whole), None
        parting = self._parting(mine, at, two.new_ids[at])
        return RunPair(told, item, "parts", at, None, keys=True, answers=True), parting

    @staticmethod
    def _parting(mine: Record, at: int, other: int) -> Parting:
        one = mine.trace()
        cell, reused = dict(mine.meta["cell"]), min(one.reused_tokens, at)
        tokens = (one.new_ids[at], other)
        return Parting("", cell, one.prompt_ids, one.new_ids[:at], reused, tokens)

    def equal_read_again(self, pairs: Sequence[RunPair], most: int) -> dict[str, dict[str, int]]:
        """What shows in equal outputs that are read again as those are that part.

        By method: outputs "read", those with a choice at a tie ("tied"), their "tokens", and the
        tokens in whose place a reading with other last bits has another ("changed").

        Args:
            pairs: of all runs, in the order of the plan.
            most: outputs of each method that are read again, the first ones.
        """
        found: dict[str, dict[str, int]] = {}
        for run, pair in zip(self._studies[OWN_RUNTIME].runs(), pairs, strict=True):
            names = ("read", "tied", "tokens", "changed")
            of = found.setdefault(pair.method, dict.fromkeys(names, 0))
            mine = self._studies[OWN_RUNTIME].served(run)
            if pair.kind != "equal" or of["read"] >= most or mine is None:
                continue
            last = mine.trace().tokens - 1
            parting = self._parting(mine, last, mine.trace().new_ids[last])
            of["read"] += 1
            of["tied"] += bool(tied_choices(self._model(), parting, trace=False).count)
            of["tokens"] += last - parting.reused
            of["changed"] += rounded_readings(self._model(), parting).changed
        return found

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


def shown(pairs: Sequence[RunPair], costs: Sequence[RuntimeCost]) -> None:
    """Print counts, every pair that is not equal, and costs."""
    print(f"{'method':<14}{'equal':>7}{'tie':>5}{'rounding':>10}{'traced':>8}{'untraced':>10}{'part':>6}{'missing':>9}{'cut':>5}"
          f"{'other keys':>12}{'other answers':>15}{'tokens equal':>14}")  # fmt: skip
    for method, of in counts_of(pairs).items():
        print(f"{method:<14}{of['equal']:>7}{of['score tie']:>5}{of['other rounding']:>10}"
              f"{of['traced choice']:>8}{of['untraced choice']:>10}{of['parts']:>6}"
              f"{of['missing']:>9}{of['cut']:>5}{of['other_keys']:>12}{of['other_answers']:>15}"
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


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Decode, compare, print; 0 if all that parts is explained."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, help="folder of both runtimes' runs")
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--offset", type=int, default=0, help="leave out the first so many")
    parser.add_argument("--methods", default=",".join(METHODS), help="as lil sweep takes backends")
    parser.add_argument("--budgets", default="128", help="of all methods")
    parser.add_argument(
        "--again",
        type=int,
        default=0,
        metavar="N",
        help="equal outputs of each method that are read again as well, to compare",
    )
    parser.add_argument("--batch-size", type=int, default=16, help="rows decoded together")
    parser.add_argument("--max-new-tokens", type=int, default=2048, help="of full attention")
    parser.add_argument("--compare", action="store_true", help="what is stored; decode nothing")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    args = parser.parse_args(argv)
    try:
        if args.again < 0:
            raise InvalidValue("again", args.again, "0 or more")
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
    again = compared.equal_read_again(pairs, args.again) if args.again else {}
    if args.json:
        told = {
            "tie": TIE,
            "choice_tie": CHOICE_TIE,
            "counts": counts_of(pairs),
            "pairs": [asdict(one) for one in pairs],
            "last_bit": LAST_BIT,
            "equal_read_again": again,
        }
        print(json.dumps(told | {"costs": [asdict(one) for one in costs]}))
    else:
        shown(pairs, costs)
        for method, of in again.items():
            print(f"{method}: of {of['read']} equal outputs a choice at a tie in {of['tied']}; "
                  f"{of['changed']} of {of['tokens']:,} tokens decided by last bits")  # fmt: skip
    return 0 if is_good(pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
