"""Data sets by name: which there are, at which revision, and what readers call them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from attention.errors import InvalidValue
from experiments.grid import gym, needles
from experiments.reasoner import LEVELS, RECIPES

#: Name -> (hub id, configuration, split, one line about it).
HUB: dict[str, tuple[str, str | None, str, str]] = {
    "gsm8k": ("openai/gsm8k", "main", "test", "grade-school word problems, gold after ####"),
    "math500": ("HuggingFaceH4/MATH-500", None, "test", "500 problems of the MATH test set"),
    "aime": ("di-zhang-fdu/AIME_1983_2024", None, "train", "AIME competitions 1983 to 2024"),
}

#: Problems of each, for what is asked before they are fetched.
SIZES = {"gsm8k": 1319, "math500": 500, "aime": 933}


def names() -> dict[str, str]:
    """Every data set known by name, with one line about each."""
    levels = {}
    for level, recipe in RECIPES.items():
        least, most = recipe.steps
        more = ", facts told twice" if recipe.retold else ""
        levels[level] = f"the reasoner's problems of {least} to {most} needed steps{more}"
    return {
        **levels,
        "reasoner": ", ".join(LEVELS),
        needles.NAME: "numbers at known depths of a long text that is made up, as needles(count=4, "
        'tokens=8192), needles(kind="chain"), needles(seed=1)',
        **{name: f"{line} ({repository})" for name, (repository, _, _, line) in HUB.items()},
    }


#: Forms of names: what begins with these, and one line about each.
FORMS = {
    f"{gym.PREFIX}NAME": "a generator of reasoning-gym, as gym:chain_sum(seed=1, max_terms=4) "
    "(extra gym)",
}


def split_revision(name: str) -> tuple[str, str]:
    """Name and revision of `gsm8k@main`; without one, the name as it is and ""."""
    known, at, revision = name.partition("@")
    return (known, revision) if at and known in HUB and not is_file(name) else (name, "")


def is_made(name: str) -> bool:
    """Whether a generator makes the problems."""
    return gym.is_named(name) or needles.is_named(name)


def is_file(name: str) -> bool:
    """Whether there is such a file; what cannot be a path is none."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long for a name, or a NUL in it
        return False


def expand(datasets: Iterable[str]) -> tuple[str, ...]:
    """The data sets one by one: `reasoner` is easy, medium and hard; revisions are taken off, and
    generators are spelled as they are kept."""
    out: list[str] = []
    revisions: dict[str, str] = {}
    for typed in datasets:
        if is_made(typed):
            is_gym = gym.is_named(typed)
            out.append(gym.spelled(typed) if is_gym else str(needles.Needles.of(typed)))
            continue
        name, revision = split_revision(typed)
        if "@" in typed and name != typed and not revision:
            raise InvalidValue("dataset", typed, f"a commit, tag or branch behind {name}@")
        if revisions.setdefault(name, revision) != revision:
            raise InvalidValue("dataset", typed, f"{name} at one revision")
        if name == "reasoner":
            out.extend(LEVELS)
        elif name in RECIPES or name in HUB or is_file(name):
            out.append(name)
        else:
            near = (*names(), *_neighbours(Path(name)))
            known = ", ".join((*names(), *FORMS))
            allowed = f"one of {known}, or a JSONL or CSV file that exists"
            raise InvalidValue("dataset", name, allowed, near)
    return tuple(dict.fromkeys(out))


def _neighbours(path: Path) -> list[str]:
    try:
        there = path.parent.iterdir()
        return [str(path.parent / p.name) for p in there if p.suffix in (".jsonl", ".csv")]
    except (OSError, ValueError):
        return []


def labels(datasets: Sequence[str]) -> dict[str, str]:
    """A short label of each data set: a file's stem, with as many folders as it needs to differ."""
    unique = list(dict.fromkeys(datasets))
    labels_ = {name: name for name in unique if name in names() or is_made(name)}
    taken = set(labels_)
    left = [name for name in unique if name not in taken]
    for parts in range(1, max((len(PurePath(name).parts) for name in left), default=0) + 1):
        short = {name: "/".join(PurePath(name).with_suffix("").parts[-parts:]) for name in left}
        stems = list(short.values())
        distinct = {n: s for n, s in short.items() if stems.count(s) == 1 and s not in taken}
        labels_ |= distinct
        left = [name for name in left if name not in distinct]
    labels_ |= {name: name for name in left}
    return {name: labels_[name] for name in unique}


def stream_name(dataset: str, item_id: str) -> str:
    """What the random stream of a problem's row is seeded with, beside seed and sample index."""
    return f"{Path(dataset).name}/{item_id}"
