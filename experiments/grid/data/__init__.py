"""Problems to decode: the reasoner's levels, three mathematical data sets, files, generators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.grid import gym, scoring
from experiments.grid.config import Config
from experiments.grid.data import prompts
from experiments.grid.data import rows as data_rows
from experiments.grid.data.rows import Row, Rows
from experiments.grid.data.sets import HUB, expand, is_made, split_revision
from experiments.grid.identity import digest
from experiments.grid.needles import PROBLEMS, NeedleProblem, Needles
from experiments.grid.scoring import Gold
from experiments.reasoner import RECIPES, problem

#: Problems of a level of the reasoner that may be asked for: there is no last one.
MOST_MADE = 10_000

# Columns a question may have, the first that is there, and what it is used as.
_QUESTIONS = (
    ("question", "question"),  # gsm8k; AIME as published, capital letters aside
    ("problem", "question"),  # MATH-500, AIME
    ("prompt", "prompt"),  # problems with prompts of their own, used as they are
    ("messages", "messages"),  # chats
)
_ASKING = ("question", "prompt", "messages")
_IDS = ("unique_id", "item_id", "id")
#: A column that has the answer at the end of a derivation, where no other has it.
_SOLUTION = "solution"


@dataclass(frozen=True)
class Item:
    """One problem: its prompt and its accepted answer.

    `message` is the question in its template; it goes through the model's chat template where
    `chat` is true and the tokenizer has one, behind the system prompt if there is one. Of a chat
    its `messages` do, as (role, content), and the question is the last of them. Without an answer
    `gold` is None and `scorer` is "none". The tokenizer says how long a text of `needles` is.
    """

    id: str
    question: str
    gold: Gold
    scorer: str
    message: str
    chat: bool
    system: str | None = None
    messages: tuple[tuple[str, str], ...] = ()
    template_values: tuple[str, ...] = ()
    needles: NeedleProblem | None = None

    def prompt_ids(self, tokenizer: Any) -> list[int]:
        """The prompt as the model sees it, in token ids."""
        values = prompts.template_values(self.template_values)
        if self.messages:
            return prompts.chat_ids(tokenizer, self.messages, self.system, values)

        def ids(question: str) -> list[int]:
            message = self.message.replace(self.question, question)
            return prompts.token_ids(tokenizer, message, self.chat, self.system, values)

        if self.needles is None:
            return ids(self.question)
        return ids(self.needles.fit(lambda question: len(ids(question))))


@dataclass(frozen=True)
class ProblemChoice:
    """Which problems of a data set, and how they are put; as `Config` has them."""

    sample: int | None = None
    seed: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    scorer: str = "auto"
    prompt_template: str = ""
    template: str | None = None
    system: str | None = None
    revisions: Mapping[str, str] = field(default_factory=dict)
    offset: int = 0
    template_values: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Config) -> ProblemChoice:
        """What a configuration says."""
        file = config.prompt_template
        columns = dict(pair.split("=", 1) for pair in config.columns)
        template = None if file is None else prompts.read_template(file)
        revisions = dict(filter(all, map(split_revision, config.datasets)))
        put = (config.scorer, file or "", template, config.system, revisions, config.offset)
        return cls(config.sample, config.seed, columns, *put, config.template_values)


@dataclass(frozen=True)
class DataSet:
    """A data set's problems, what a manifest says of it, and sentences that users should read."""

    name: str
    items: tuple[Item, ...]
    source: Mapping[str, Any]
    notices: tuple[str, ...] = ()

    def about(self) -> dict[str, Any]:
        """Where the problems are from and what they are, as digests."""
        facts = [[item.id, item.question, item.gold, item.scorer] for item in self.items]
        known = {"name": self.name, "problems": len(self.items), "digest": digest(facts)}
        return known | dict(self.source)

    def require_judges(self) -> None:
        """Refuse what cannot be judged here, before anything is decoded."""
        for scorer in {item.scorer for item in self.items}:
            golds = (item.gold for item in self.items if item.scorer == scorer)
            scoring.require(scorer, self.name, golds)


def load_all(config: Config) -> dict[str, DataSet]:
    """Every data set of a configuration, by name."""
    choice = ProblemChoice.of(config)
    sets = expand(config.datasets)
    return {name: load_set(name, config.split, config.limit, choice) for name in sets}


def load_set(
    dataset: str, split: str, limit: int | None, choice: ProblemChoice = ProblemChoice()
) -> DataSet:
    """Problems of a data set in their prompts."""
    if dataset in RECIPES:
        items = [_reasoner_item(dataset, split, i, choice) for i in _of_level(limit, choice)]
        about: dict[str, Any] = {"split": split}
        about["template"] = _template(dataset, {"prompt": "prompt"}, choice)
        return DataSet(dataset, tuple(items), about)
    (dataset,) = expand([dataset])
    rows = _rows(dataset, limit, choice)
    items = [_item(dataset, row, choice) for row in rows.rows]
    if not items and 0 < rows.of <= choice.offset:
        raise InvalidValue("offset", choice.offset, f"below {rows.of:,}, the problems of {dataset}")
    if not items:
        raise InvalidValue("dataset", dataset, "a data set with at least one problem")
    _refuse_repeated_ids(items, rows.rows)
    template = _template(dataset, _roles(dataset, rows.rows[0], choice), choice)
    about = {**rows.source, "of": rows.of, "template": template}
    return DataSet(dataset, tuple(items), about, tuple(_notices(dataset, items, rows.of, choice)))


def _notices(dataset: str, items: Sequence[Item], of: int, choice: ProblemChoice) -> Iterator[str]:
    """Notices of problems that are left out, and of those that cannot be judged."""
    if len(items) < of:
        how = "the first; --limit all takes all" if choice.sample is None else "at random"
        if choice.offset:
            how = f"behind the first {choice.offset:,}"
        yield f"{dataset}: {len(items):,} of {of:,} problems ({how})"
    lacking = sum(item.gold is None for item in items)
    if lacking and choice.scorer != "none":
        what = "no problem has" if lacking == len(items) else f"{lacking:,} problems lack"
        yield f"{dataset}: {what} an answer; of those lengths alone are measured"


def typed(text: str, choice: ProblemChoice) -> Item:
    """A typed prompt as a problem without an answer."""
    if not text.strip():
        raise InvalidValue("prompt", text, "a text")
    message = text
    if choice.template is not None:
        message = prompts.fill(choice.template, choice.prompt_template, text, {}, None)
    values = choice.template_values
    return Item("prompt", text, None, "none", message, True, choice.system, (), values)


def _of_level(limit: int | None, choice: ProblemChoice) -> range:
    if choice.sample is not None:
        allowed = "--limit N for the reasoner's problems, whose first N are as random as any"
        raise InvalidValue("sample", choice.sample, allowed)
    if limit is None:
        raise InvalidValue("limit", "all", "a number: the reasoner's problems never end")
    if limit > MOST_MADE:  # a problem is made for every number
        raise InvalidValue("limit", limit, f"at most {MOST_MADE:,} problems of the reasoner")
    if choice.offset + limit > MOST_MADE:
        allowed = f"at most {MOST_MADE - limit:,} before {limit:,} problems of the reasoner"
        raise InvalidValue("offset", choice.offset, allowed)
    return range(choice.offset, choice.offset + limit)


def _reasoner_item(level: str, split: str, index: int, choice: ProblemChoice) -> Item:
    made = problem(level, split, index)
    values = {"prompt": made.prompt, "answer": str(made.answer), "id": str(made.id)}
    row = Row(index, f"problem {index + 1} of {level}", values)
    roles = {"prompt": "prompt", "answer": "answer"}
    return _put(row, roles, str(made.id), made.answer, choice, level)


def _rows(dataset: str, limit: int | None, choice: ProblemChoice) -> Rows:
    selection = data_rows.Selection(limit, choice.sample, choice.seed, choice.offset)
    if gym.is_named(dataset):
        generator = gym.generator(dataset)
        rows = []
        for at in selection.of(generator.size):
            made = generator.problem(at)
            values = {"question": made.question, "answer": made.answer, "id": made.id}
            rows.append(Row(at, f"problem {at} of {dataset}", values))
        source = {"reasoning_gym": generator.version, "generator_digest": generator.digest}
        return Rows(tuple(rows), generator.size, source)
    if is_made(dataset):
        problem_of, chosen = Needles.of(dataset).problem, selection.of(PROBLEMS)
        rows = [Row(at, f"problem {at} of {dataset}", problem_of(at).columns) for at in chosen]
        return Rows(tuple(rows), PROBLEMS, {})
    if dataset not in HUB:
        return data_rows.file_rows(Path(dataset), selection)
    repository, configuration, split, _ = HUB[dataset]
    where = (repository, configuration, split)
    return data_rows.hub_rows(dataset, where, choice.revisions.get(dataset), selection)


def _item(dataset: str, row: Row, choice: ProblemChoice) -> Item:
    roles = _roles(dataset, row, choice)
    ids = (roles["id"],) if "id" in choice.columns else tuple(_named(row, _IDS))
    if is_made(dataset):  # an answer of several lines is a board, say, and no derivation
        item = _put(row, roles, row.values["id"], row.values["answer"], choice, dataset)
        is_gym = gym.is_named(dataset)
        return item if is_gym else replace(item, needles=Needles.of(dataset).problem(row.index))
    column = roles.get("answer")
    derived = column is not None and column.lower() == _SOLUTION
    if derived and choice.scorer == "none":
        column = None
    gold = data_rows.gold_of(row, column, behind_marks=dataset == "gsm8k", derived=derived)
    item = _put(row, roles, data_rows.id_of(row, ids), gold, choice, dataset)
    if item.scorer == "math":
        data_rows.require_one_line(row, column, gold)
    return item


def _template(dataset: str, roles: Mapping[str, str], choice: ProblemChoice) -> str | None:
    """The text that a problem is put in; None where it is used as it is."""
    if choice.template is not None:
        return choice.template
    if "question" not in roles:
        return None
    return prompts.GYM_TEMPLATE if is_made(dataset) else prompts.MATH_TEMPLATE


def _put(
    row: Row, roles: Mapping[str, str], id_: str, gold: Gold, choice: ProblemChoice, dataset: str
) -> Item:
    """The problem in its template; a `prompt` is one already, unless another is asked for."""
    raw = "prompt" in roles
    messages: tuple[tuple[str, str], ...] = ()
    if "messages" in roles:
        if choice.template is not None:
            allowed = "none with a column of messages, which are used as they are"
            raise InvalidValue("prompt_template", choice.prompt_template, allowed)
        messages = data_rows.messages_of(row, roles["messages"])
        question = message = messages[-1][1]
    else:
        question = data_rows.text_of(row, roles["prompt" if raw else "question"])
        default = None if choice.template else _template(dataset, roles, choice)
        message = question if default is None else default.format(problem=question)
    if choice.template is not None:
        file, answer_column = choice.prompt_template, roles.get("answer")
        message = prompts.fill(choice.template, file, question, row.values, answer_column)
    texts = [content for _, content in messages] or [message]
    scorer = _scorer(dataset, texts, gold, choice)
    gold = None if scorer == "none" else gold
    chat = not raw or choice.template is not None
    put = (message, chat, choice.system, messages, choice.template_values)
    return Item(id_, question, gold, scorer, *put)


def _scorer(dataset: str, texts: Sequence[str], gold: Gold, choice: ProblemChoice) -> str:
    """The scorer of an answer: the requested one, else by what the prompt asks of the model."""
    if gold is None or choice.scorer == "none":
        return "none"
    if choice.scorer != "auto":
        return choice.scorer
    if gym.is_named(dataset):
        return dataset
    # The reasoner boxes its answers, though no prompt of its language says so.
    if dataset in RECIPES:
        return "exact"
    asks = any("\\boxed" in text for text in [*texts, choice.system or ""])
    return "math" if asks else "stated"


def _roles(dataset: str, row: Row, choice: ProblemChoice) -> dict[str, str]:
    """Role -> column: what is asked, and the answer; those given, else known ones."""
    roles = dict(choice.columns)
    for role, column in roles.items():
        if column not in row.values:
            allowed = f"a column for {role} ({', '.join(row.values) or 'there is none'})"
            raise InvalidValue(f"columns of {row.place}", column, allowed, row.values)
    if not roles.keys() & set(_ASKING):
        asking = [
            (role, present[0]) for column, role in _QUESTIONS if (present := _named(row, [column]))
        ]
        if len(asking) > 1:
            asking = [pair for pair in asking if row.values[pair[1]] is not None] or asking[:1]
        if len(asking) > 1:
            there = " and ".join(column for _, column in asking)
            first = "=".join(asking[0])
            allowed = f"one column that asks, or the one that is meant: --column {first}"
            raise InvalidValue(f"columns of {dataset}", there, allowed)
        roles |= dict(asking)
    if "answer" not in roles and (present := _named(row, ["answer", _SOLUTION])):
        roles["answer"] = present[0]
    # Who names columns and no answer has forgotten it.
    judged = choice.scorer != "none" and (choice.scorer != "auto" or bool(choice.columns))
    if (judged and "answer" not in roles) or not roles.keys() & set(_ASKING):
        pairs = "; ".join(f"{column} and answer" for column, _ in _QUESTIONS)
        allowed = (
            f"the columns {pairs}; or name yours (--column question=...,answer=...; without an "
            "answer --scorer none)"
        )
        raise InvalidValue(f"columns of {dataset}", sorted(row.values), allowed)
    return roles


def _named(row: Row, columns: Sequence[str]) -> list[str]:
    """Those of the columns that are there, as they are spelt there."""
    spelt = {key.lower(): key for key in row.values}
    return [spelt[column] for column in columns if column in spelt]


def _refuse_repeated_ids(items: Sequence[Item], rows: Sequence[Row]) -> None:
    seen: dict[str, str] = {}
    for item, row in zip(items, rows, strict=True):
        if item.id in seen:
            allowed = f"a different id for every problem ({seen[item.id]} has it too)"
            raise InvalidValue(f"id in {row.place}", item.id, allowed)
        seen[item.id] = row.place
