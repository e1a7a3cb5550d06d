"""Problems to decode: the reasoner's levels, three mathematical data sets, local JSONL files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attention.errors import InvalidValue
from experiments.reasoner import LEVELS, problem

Scorer = Literal["exact", "math"]

#: Name -> (hub id, configuration, split, one line about it).
HUB: dict[str, tuple[str, str | None, str, str]] = {
    "gsm8k": ("openai/gsm8k", "main", "test", "grade-school word problems, gold after ####"),
    "math500": ("HuggingFaceH4/MATH-500", None, "test", "500 problems of the MATH test set"),
    "aime": ("di-zhang-fdu/AIME_1983_2024", None, "train", "AIME competitions 1983 to 2024"),
}

#: The paper prints no prompt; this is the instruction its reasoning models were published with.
MATH_TEMPLATE = (
    "{problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
)

#: Problems of a level of the reasoner that may be asked for: there is no last one.
MOST_MADE = 10_000

# Accepted pairs of columns, the first that a file has: (question, answer, id, scorer).
_COLUMNS: tuple[tuple[str, str, Scorer], ...] = (
    ("question", "answer", "math"),  # gsm8k; AIME as published, capital letters aside
    ("problem", "answer", "math"),  # MATH-500, AIME
    ("prompt", "answer", "exact"),  # problems with prompts of their own, used as they are
)
_IDS = ("unique_id", "item_id", "id")


@dataclass(frozen=True)
class Item:
    """One problem: what the model is asked and what counts as solved.

    `question` goes through the model's chat template where `template` is "math" and the tokenizer
    has one; with "raw" it is the prompt itself.
    """

    id: str
    question: str
    gold: str
    scorer: Scorer
    template: Literal["raw", "math"]

    def prompt_ids(self, tokenizer: Any) -> list[int]:
        """The prompt as the model sees it, in token ids."""
        if self.template == "raw":
            return list(tokenizer(self.question)["input_ids"])
        text = MATH_TEMPLATE.format(problem=self.question)
        if not tokenizer.chat_template:
            return list(tokenizer(text)["input_ids"])
        messages = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        # The template writes the special tokens itself.
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def names() -> dict[str, str]:
    """Every data set known by name, with one line about each."""
    steps = {"easy": "2 to 4", "medium": "5 to 8", "hard": "11 to 16"}
    levels = {level: f"the reasoner's problems of {steps[level]} needed steps" for level in LEVELS}
    return {
        **levels,
        "reasoner": "all three levels",
        **{name: f"{line} ({repository})" for name, (repository, _, _, line) in HUB.items()},
    }


def expand(datasets: Iterable[str]) -> tuple[str, ...]:
    """The data sets one by one: `reasoner` stands for its three levels.

    Raises:
        InvalidValue: neither a known name nor a file.
    """
    out: list[str] = []
    for name in datasets:
        if name == "reasoner":
            out.extend(LEVELS)
        elif name in LEVELS or name in HUB or Path(name).is_file():
            out.append(name)
        else:
            near = (*names(), *_neighbours(Path(name)))
            allowed = f"one of {', '.join(names())}, or a JSONL file that exists"
            raise InvalidValue("dataset", name, allowed, near)
    return tuple(dict.fromkeys(out))


def _neighbours(path: Path) -> list[str]:
    if not path.parent.is_dir():
        return []
    return [str(path.parent / p.name) for p in path.parent.iterdir() if p.suffix == ".jsonl"]


def load(dataset: str, split: str, limit: int) -> list[Item]:
    """The first `limit` problems of a data set (all of them, if it has fewer).

    Args:
        dataset: a level of the reasoner, a name of `HUB`, or a JSONL file.
        split: of the reasoner's problems; other data sets have one.
        limit: number of problems.

    Raises:
        InvalidValue: an unknown name, an unreadable file, a missing column, no `datasets` package.
    """
    if dataset in LEVELS:
        if limit > MOST_MADE:  # a problem is made for every number
            raise InvalidValue("limit", limit, f"at most {MOST_MADE:,} problems of the reasoner")
        return [_reasoner_item(dataset, split, index) for index in range(limit)]
    (dataset,) = expand([dataset])
    rows = _hub_rows(dataset, limit) if dataset in HUB else _file_rows(Path(dataset), limit)
    items = [_item(dataset, index, row) for index, row in enumerate(rows)]
    if not items:
        raise InvalidValue("dataset", dataset, "a data set with at least one problem")
    _refuse_repeated_ids(dataset, items)
    return items


def _reasoner_item(level: str, split: str, index: int) -> Item:
    made = problem(level, split, index)
    return Item(str(made.id), made.prompt, str(made.answer), "exact", "raw")


def _file_rows(path: Path, limit: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if len(rows) == limit:
                    break
                if line.strip():
                    rows.append(_parse(path, number, line))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue("dataset", str(path), f"a readable JSONL file ({error})") from error
    return rows


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        place = f"line {number} of {path}"
        raise InvalidValue(place, line.strip()[:60], f"a JSON object ({error})") from error
    if not isinstance(row, dict):
        raise InvalidValue(f"line {number} of {path}", line.strip()[:60], "a JSON object")
    return row


def _hub_rows(name: str, limit: int) -> list[dict[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        allowed = (
            "the package `datasets` to load it (`scripts/setup eval` installs it), "
            "or the path of a JSONL file with the same columns"
        )
        raise InvalidValue("dataset", name, allowed) from error
    repository, configuration, split, _ = HUB[name]
    try:
        rows = datasets.load_dataset(repository, configuration, split=split)
    except Exception as error:  # the hub's client raises many kinds
        allowed = f"a reachable hub ({repository}: {error}), or a JSONL file with the same columns"
        raise InvalidValue("dataset", name, allowed) from error
    return [dict(row) for row in rows.select(range(min(limit, len(rows))))]


def _item(dataset: str, index: int, row: Mapping[str, Any]) -> Item:
    by_name = {key.lower(): value for key, value in row.items()}
    found = next((c for c in _COLUMNS if c[0] in by_name and c[1] in by_name), None)
    if found is None:
        wanted = "; ".join(f"{q} and {a}" for q, a, _ in _COLUMNS)
        raise InvalidValue(f"columns of {dataset}", sorted(row), f"the columns {wanted}")
    question, answer, scorer = found
    if not isinstance(by_name[question], str):
        place = f"{question} of problem {index + 1} in {dataset}"
        raise InvalidValue(place, by_name[question], "a text")
    if any("\ud800" <= character <= "\udfff" for character in by_name[question]):
        place = f"{question} of problem {index + 1} in {dataset}"
        raise InvalidValue(place, by_name[question][:60], "a text without halves of characters")
    gold = _gold(dataset, index, by_name[answer])
    id_ = next((str(by_name[key]) for key in _IDS if by_name.get(key) not in (None, "")), None)
    return Item(
        id_ if id_ is not None else str(index),
        by_name[question],
        gold,
        scorer,
        "raw" if scorer == "exact" else "math",
    )


def _gold(dataset: str, index: int, answer: object) -> str:
    text = str(answer).strip() if isinstance(answer, (str, int, float)) else ""
    if "####" in text:
        text = text.rsplit("####", 1)[1].strip().replace(",", "")
    elif dataset == "gsm8k":
        text = ""
    if not text:
        place = f"answer of problem {index + 1} in {dataset}"
        raise InvalidValue(place, answer, "an answer (for gsm8k, after ####)")
    return text


def _refuse_repeated_ids(dataset: str, items: list[Item]) -> None:
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise InvalidValue(f"id in {dataset}", item.id, "a different id for every problem")
        seen.add(item.id)


def stream_name(dataset: str, item_id: str) -> str:
    """What the random stream of a problem's row is seeded with, beside seed and sample index."""
    return f"{Path(dataset).name}/{item_id}"
