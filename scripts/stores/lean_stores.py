"""Stores of many runs in few bytes: what can be worked out of a trace is left out of the file.

    python scripts/stores/lean_stores.py pack lil-out/study/hard-1000 docs/study/traces/hard.xz
    python scripts/stores/lean_stores.py unpack docs/study/traces/hard.xz lil-out/study/hard-1000
    python scripts/stores/lean_stores.py pack lil-out/study/hard-1000 more.xz --beside hard.xz

A store that has grown is packed `--beside` the files that have its older runs, and unpacked from
all of them, in the same order. Where one of those has the same problem under the same method
without a penalty, a text with a penalty is told from the first token on which they part.

Runs of one problem lie beside each other, each field of all runs together. Left out are names of
runs, bytes of tokens beyond a table, compression curves and means, wherever they follow from the
rest; costs are second differences. All comes back as it was but seconds: of each run's prompt and
of every eighth check they are kept to a ten-thousandth, on straight lines between. Nothing in such
a file is run. A tenth of what `packed_stores.py` needs, which keeps all.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgspec
from lean_checks import checks_of, mean, rounded, told_checks
from packed_stores import LARGEST, RUN, SWEEP, lines

from attention.errors import InvalidValue
from experiments.grid.identity import Cell, prompt_digest, run_id
from experiments.store.store import Store
from lil import token_curve

Run = dict[str, Any]
#: A text without penalty: ids of its prompt and of its tokens, and its prompt; by its method.
Alike = tuple[list[int], list[int], Run]
Plain = dict[bytes, Alike]


class Column(msgspec.Struct, forbid_unknown_fields=True):
    """A field of all runs: its values, each once where many are the same."""

    values: list[Any]
    at: list[int] | None = None

    @classmethod
    def of(cls, values: Sequence[Any]) -> Column:
        """Values of all runs, in their order."""
        names = [msgspec.json.encode(one, order="deterministic") for one in values]
        places = {name: at for at, name in enumerate(dict.fromkeys(names))}
        if 2 * len(places) > len(values):
            return cls([*values])
        first = dict(zip(reversed(names), reversed(values), strict=True))
        return cls([first[name] for name in places], [places[name] for name in names])

    def told(self) -> list[Any]:
        """The values again."""
        return self.values if self.at is None else [self.values[one] for one in self.at]


class Lean(msgspec.Struct, forbid_unknown_fields=True):
    """All of a store.

    Args:
        sweeps: name and text of each sweep's file.
        pieces: a token's bytes, as text and its encoding, by its id.
        tokens: ids of all runs, prompts among them, 16 bits each.
        columns: every other field by its name.
    """

    sweeps: list[tuple[str, str]]
    pieces: dict[int, tuple[str, str]]
    tokens: bytes
    columns: dict[str, Column]


def _curve(pieces: Sequence[bytes], finish: str, every: int) -> list[list[int | None]]:
    text = [*pieces[:-1], b""] if finish == "eos" else pieces
    return [list(point) for point in token_curve(text, every)]


def _bytes(text: Mapping[str, Any]) -> bytes:
    return bytes(text["text"].encode(text["encoding"]))


def _name(meta: Mapping[str, Any]) -> str:
    cell = meta["cell"] | {"penalties": tuple(meta["cell"]["penalties"])}
    return run_id(Cell(**cell), meta["item_id"], meta["prompt"], meta["sample_index"])


# ------------------------------------------------------------ writing


def pack(store: Path, file: Path, beside: Sequence[Path] = ()) -> int:
    """Write it; how many runs it has.

    Args:
        store: the folder of a sweep.
        file: to be written.
        beside: files of the same store, whose runs and sweeps are left out.

    Raises:
        InvalidValue: the folder is no store, or its token ids take more than 16 bits.
    """
    if not (store / "sweeps").is_dir():
        raise InvalidValue("store", str(store), "the folder of a sweep")
    plain: Plain = {}
    older = [_unpacked(one, plain) for one in beside]
    there = {name for sweeps, runs in older for name in [*sweeps, *(one["run"] for one in runs)]}
    every = [one for one in lines(store) if one.get("sweep", one.get("run")) not in there]
    sweeps = [(one["sweep"], one["text"]) for one in every if "sweep" in one]
    runs = sorted((one for one in every if "run" in one), key=_order)
    pieces: dict[int, bytes] = {}
    tokens = array("H")
    rows = [_reduced(one, pieces, tokens, plain) for one in runs]
    names = sorted({name for row in rows for name in row})
    columns = {name: Column.of([row.get(name, ABSENT) for row in rows]) for name in names}
    if sys.byteorder == "big":
        tokens.byteswap()
    table = {token: (one.decode("latin-1"), "latin-1") for token, one in sorted(pieces.items())}
    text = msgspec.msgpack.encode(Lean(sweeps, table, tokens.tobytes(), columns))
    file.parent.mkdir(parents=True, exist_ok=True)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "nice_len": 273,
                "dict_size": 1 << 28, "lc": 3, "lp": 1, "pb": 1}]  # fmt: skip
    file.write_bytes(lzma.compress(text, format=lzma.FORMAT_XZ, filters=filters))
    return len(rows)


#: What stands in a column for a run that lacks the field.
ABSENT = "(absent)"


def _order(run: Run) -> tuple[Any, ...]:
    """Runs of one problem beside each other."""
    meta = run["meta"]
    cell = msgspec.json.encode(meta["cell"], order="deterministic")
    return len(meta["item_id"]), meta["item_id"], cell, run["run"]


def _method(meta: Run) -> bytes:
    """By what a run with a penalty is found again without it."""
    cell = meta["cell"]
    same = [cell[name] for name in ("model_digest", "dataset", "backend", "sampling", "dtype")]
    return msgspec.json.encode([*same, meta["item_id"], meta["sample_index"]],
                               order="deterministic")  # fmt: skip


def _keep(plain: Plain, run: Run) -> None:
    """Remember a run by its method, the first of them, if it has neither penalty nor detector."""
    meta, trace = run["meta"], run["trace"]
    if trace is not None and not meta["cell"]["penalties"] and meta.get("detector") is None:
        plain.setdefault(_method(meta), (trace["prompt_ids"], trace["new_ids"],
                                         trace["prompt_bytes"]))  # fmt: skip


def _spelled(ids: Sequence[int], pieces: Mapping[int, bytes]) -> Run | None:
    """The text of some tokens, where all are known."""
    if any(one not in pieces for one in ids):
        return None
    return _text(b"".join(pieces[one] for one in ids))


def _reduced(run: Run, pieces: dict[int, bytes], tokens: array[int], plain: Plain) -> Run:
    """A run's fields without what follows from others; its tokens go behind the rest."""
    meta = dict(run["meta"])
    row: Run = {"run": None if _name(meta) == run["run"] else run["run"]}
    if run["trace"] is not None:
        alike = plain.get(_method(meta)) if meta["cell"]["penalties"] else None
        row |= _of_trace(rounded(run["trace"]), meta, pieces, tokens, alike)
    return row | {f"meta.{name}": value for name, value in meta.items()}


def _of_trace(
    trace: Run, meta: Run, pieces: dict[int, bytes], tokens: array[int], alike: Alike | None
) -> Run:
    prompt, new = trace.pop("prompt_ids"), trace.pop("new_ids")
    row: Run = {}
    told = [*prompt], [*new]
    if alike is not None and alike[0] == prompt:
        pairs = enumerate(zip(alike[1], new, strict=False))
        shortest = min(len(alike[1]), len(new))
        row["like"] = next((at for at, (a, b) in pairs if a != b), shortest)
        told = [], [*new[row["like"] :]]
    try:
        tokens.extend([*told[0], *told[1]])
    except OverflowError as error:
        raise InvalidValue("token id", max([*prompt, *new]), "at most 65535") from error
    data, ends = _bytes(trace["pieces"]), [*accumulate(trace["pieces"]["lengths"])]
    mine = [data[start:end] for start, end in pairwise([0, *ends])]
    same = all(pieces.setdefault(token, one) == one for token, one in zip(new, mine, strict=True))
    checks = trace.pop("checks")
    row |= {"prompt": len(told[0]), "new": len(told[1])}
    row |= told_checks(checks)
    every = checks[0]["tokens"] if len(checks) > 1 else max(1, len(new))
    follows: dict[str, Callable[[], Any]] = {
        "pieces": lambda: trace["pieces"] if same else None,
        "curve": lambda: _curve(mine, trace["finish"], every),
        "keys_read_mean": lambda: mean({"checks": checks}),
        "decode_sec": lambda: checks[-1]["seconds"] if checks else None,
        "prompt_bytes": lambda: alike[2] if alike and "like" in row else _spelled(prompt, pieces),
    }
    for name, found in follows.items():
        row["follows." + name] = found() == trace[name]
    row["follows.prompt"] = prompt_digest(prompt) == meta["prompt"]
    if row["follows.prompt"]:
        del meta["prompt"]
    left = {name: value for name, value in trace.items() if not row.get("follows." + name)}
    return row | {f"trace.{name}": value for name, value in left.items()}


# ------------------------------------------------------------ reading


def unpack(files: Sequence[Path], store: Path) -> int:
    """Write the store that one or more files hold; how many runs it has.

    Raises:
        InvalidValue: there is something where it should be, or a file is none of these.
    """
    if store.exists():
        raise InvalidValue("store", str(store), "a folder that is not there yet")
    plain: Plain = {}
    parts = [_unpacked(file, plain) for file in files]
    (store / "sweeps").mkdir(parents=True)
    with Store(store) as opened:
        for _, runs in parts:
            for run in runs:
                opened.append(run["run"], run["meta"], run["trace"])
    for sweeps, _ in parts:
        for name, text in sweeps.items():
            (store / "sweeps" / name).write_text(text)
    return sum(len(runs) for _, runs in parts)


def _unpacked(file: Path, plain: Plain) -> tuple[dict[str, str], list[Run]]:
    """Sweeps and runs of a file; those without a penalty are kept for the next ones."""
    try:
        found = msgspec.msgpack.decode(_decompressed(file), type=Lean)
        columns = {name: column.told() for name, column in found.columns.items()}
        if all(SWEEP.fullmatch(name) for name, _ in found.sweeps):
            runs = [*_runs(columns, found, plain)]
            for run in runs:
                _keep(plain, run)
            return dict(found.sweeps), runs
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ZeroDivisionError,
            OverflowError, lzma.LZMAError, EOFError, msgspec.MsgspecError) as error:  # fmt: skip
        raise _strange(file) from error
    raise _strange(file)


def _strange(file: Path) -> InvalidValue:
    return InvalidValue("file", str(file), "a file that `lean_stores.py pack` wrote")


def _decompressed(file: Path) -> bytes:
    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=1 << 30)
    data = unpacker.decompress(file.read_bytes(), max_length=LARGEST)
    if not unpacker.eof or unpacker.unused_data:
        raise _strange(file)
    return data


def _runs(columns: Mapping[str, Sequence[Any]], found: Lean, plain: Plain) -> Iterator[Run]:
    """Every run as its store has it."""
    tokens = array("H")
    tokens.frombytes(found.tokens)
    if sys.byteorder == "big":
        tokens.byteswap()
    pieces = {token: text.encode(encoding) for token, (text, encoding) in found.pieces.items()}
    at = 0
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        row = {name: value for name, value in row.items() if value != ABSENT}
        meta = {name[5:]: value for name, value in row.items() if name.startswith("meta.")}
        trace = None
        if "new" in row:
            end = at + row["prompt"] + row["new"]
            if end > len(tokens):
                raise ValueError(end)
            alike = plain[_method(meta)] if "like" in row else None
            trace = _trace(row, tokens[at:end].tolist(), pieces, alike)
            at = end
            if row["follows.prompt"]:
                meta["prompt"] = prompt_digest(trace["prompt_ids"])
        name = row["run"] or _name(meta)
        if not RUN.fullmatch(name):
            raise ValueError(name)
        yield {"run": name, "meta": meta, "trace": trace}
    if at != len(tokens):
        raise ValueError(at)


def _trace(row: Run, ids: list[int], pieces: Mapping[int, bytes], alike: Alike | None) -> Run:
    trace = {name[6:]: value for name, value in row.items() if name.startswith("trace.")}
    trace["prompt_ids"], trace["new_ids"] = ids[: row["prompt"]], ids[row["prompt"] :]
    if alike is not None:
        if not 0 <= row["like"] <= len(alike[1]):
            raise ValueError(row["like"])
        trace["prompt_ids"] = [*alike[0]]
        trace["new_ids"] = [*alike[1][: row["like"]], *trace["new_ids"]]
    if row.get("follows.prompt_bytes"):
        found = alike[2] if alike is not None else _spelled(trace["prompt_ids"], pieces)
        if found is None:
            raise ValueError(trace["prompt_ids"])
        trace["prompt_bytes"] = found
    trace["checks"] = checks = checks_of(row)
    if row["follows.pieces"]:
        mine = [pieces[token] for token in trace["new_ids"]]
        trace["pieces"] = _text(b"".join(mine)) | {"lengths": [len(one) for one in mine]}
    else:
        data, ends = _bytes(trace["pieces"]), [*accumulate(trace["pieces"]["lengths"])]
        mine = [data[start:end] for start, end in pairwise([0, *ends])]
    every = checks[0]["tokens"] if len(checks) > 1 else max(1, len(trace["new_ids"]))
    if row["follows.curve"]:
        trace["curve"] = _curve(mine, trace["finish"], every)
    if row["follows.keys_read_mean"]:
        trace["keys_read_mean"] = mean(trace)
    if row["follows.decode_sec"]:
        trace["decode_sec"] = checks[-1]["seconds"] if checks else None
    return trace


def _text(data: bytes) -> Run:
    try:
        return {"text": data.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"text": data.decode("latin-1"), "encoding": "latin-1"}


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 where one of the two paths cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("sources", type=Path, nargs="+", help="a store, or the files of one")
    parser.add_argument("target", type=Path)
    parser.add_argument("--beside", type=Path, nargs="+", default=[], help="files with older runs")
    args = parser.parse_args(argv)
    if args.what == "pack" and len(args.sources) > 1:
        parser.error("one store at a time is packed")
    try:
        if args.what == "pack":
            runs = pack(args.sources[0], args.target, args.beside)
        else:
            runs = unpack(args.sources, args.target)
    except InvalidValue as error:
        print(f"lean_stores: {error}", file=sys.stderr)
        return 2
    print(f"{args.target}: {runs:,} runs", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
