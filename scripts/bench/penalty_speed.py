"""Time of the LZ penalty a step, beside plain ways to compute it, and beside a model's own step.

python scripts/bench/penalty_speed.py                 # and of a model of 1.5B weights
python scripts/bench/penalty_speed.py --batches 16 --layers 0
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from programs import Column, counts, measuring, one_message, parser, printed, table
from programs import conditions as shown
from random_model import count_weights, random_model
from torch import Tensor
from transformers import DynamicCache, Qwen2Config, RepetitionPenaltyLogitsProcessor

from attention.errors import InvalidValue
from experiments.bench import UNTIMED, conditions, device_name, free_memory, seconds
from experiments.grid.config import DTYPES
from experiments.grid.models import resolve_device
from lil.penalties import LZPenalty

IN_PLACE = ("lz in place", "lz by row")
TOLERANCE = 1e-4  # score units; scores are float32

#: Qwen2.5-1.5B, without its number of layers and its vocabulary.
SIZES = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
LAYERS = 28


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a penalty is given at a step, and the penalty's two lengths (the paper's by default).

    Args:
        batch: B.
        vocabulary: V.
        context: tokens a row holds before the first step, all of them history.
        window, buffer: W and Bf, in tokens.
        device: where scores and tokens lie.
    """

    batch: int = 16
    vocabulary: int = 151_936
    context: int = 1024
    window: int = 512
    buffer: int = 32
    device: str = "cpu"


@dataclass(frozen=True)
class Timing:
    """One measured way to spend a step.

    Attributes:
        ms: median milliseconds of one step.
        least_ms: the fastest step, which other load on the machine disturbs least.
    """

    way: str
    batch: int
    ms: float
    least_ms: float


#: Of a `Timing` and its ratios.
COLUMNS = (
    Column("batch", "batch"),
    Column("way", "way", words=True),
    Column("ms", "ms", ".3f"),
    Column("least ms", "least_ms", ".3f"),
    Column("of decode step", "of_decode_step", ".2%"),
    Column("times lz", "times_lz", ".1f"),
)


def suffixes(w: Tensor, b: Tensor) -> Tensor:
    """(B, W): how many tokens up to each place of `w` equal as many last tokens of `b` (B, Bf).

    One `unfold`: the Bf tokens up to each place are compared with the whole buffer.
    """
    before = torch.nn.functional.pad(w, (b.shape[1] - 1, 0), value=-1)
    equal = before.unfold(1, b.shape[1], 1) == b[:, None]
    return equal.flip(-1).long().cumprod(dim=-1).sum(dim=-1)


def suffixes_by_length(w: Tensor, b: Tensor) -> Tensor:
    """The same, word for word from the paper's definition 7: an `unfold` for each length."""
    found = torch.zeros_like(w)
    for k in range(1, b.shape[1] + 1):
        same = (w.unfold(1, k, 1) == b[:, None, -k:]).all(dim=-1)
        found[:, k - 1 :][same] = k
    return found


def unfolded(
    ids: Tensor,
    scores: Tensor,
    alpha: float,
    window: int,
    buffer: int,
    find: Callable[[Tensor, Tensor], Tensor] = suffixes,
) -> Tensor:
    """The LZ penalty (`derived`) as one writes it from the paper: no state, one vector of V bits.

    Args:
        ids: (B, n), n at least window + buffer.
        scores: (B, V).
        find: `suffixes` or `suffixes_by_length`.
    """
    w, b = ids[:, -window - buffer : -buffer], ids[:, -buffer:]
    full = math.log2(scores.shape[1])
    distance = torch.arange(window, 0, -1, device=ids.device, dtype=scores.dtype)
    bits = torch.full_like(scores, full)
    nearest = distance.log2().expand(len(w), -1)
    bits.scatter_reduce_(1, w, nearest, "amin", include_self=False)

    length = find(w, b)
    longest = length.amax(dim=1, keepdim=True)
    extends = (length[:, :-1] == longest) & (longest > 0)
    most, d = longest.clamp(min=1).to(scores.dtype), distance[:-1]
    worth = ((most + 1) * (d - 1) / (most * d)).log2() - 1
    worth = torch.where(extends, worth, math.inf)
    extension = torch.full_like(scores, math.inf).scatter_reduce_(1, w[:, 1:], worth, "amin")
    return scores + alpha * (torch.where(extension < math.inf, extension, bits) - full)


def streams(shape: Shape, tokens: int) -> Tensor:
    """Random token ids (B, tokens); every other row repeats a block of 150."""
    size = (shape.batch, tokens)
    ids = torch.randint(shape.vocabulary, size, device=shape.device)
    block = ids[::2, : min(150, tokens)]
    ids[::2] = block.repeat(1, -(-tokens // block.shape[1]))[:, :tokens]
    return ids


def penalty(
    shapes: Sequence[Shape] = (Shape(),),
    steps: int = 30,
    layers: int = LAYERS,
    dtype: str = "bfloat16",
    memory: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time one step of the LZ penalty (`derived`), scores in float32, and what it stands beside.

    The ways, each given the same tokens and scores, a new token at every step:
        - `lz`: the whole batch in one call, as `generate()` makes it;
        - `lz in place`: the same, writing into the scores it is given;
        - `lz by row`: a penalty for each row, in place, as `decode` has them;
        - `unfold`, `unfold by length`: see `unfolded`; both must give the scores of `lz`;
        - `repetition`: transformers' repetition penalty;
        - `copy`: of the scores, what a processor that leaves its input alone spends at least.
    The decode step is that of a whole model of Qwen2.5-1.5B's shape with random weights, every
    layer with weights of its own, `context` tokens a row in a `DynamicCache`, head included.

    Args:
        shapes: one for each batch; all on one device.
        steps: timed steps of each way, in turn.
        layers: of the model; 0 leaves the decode step out.
        dtype: of the model.
        memory: bytes that may be used; a decode step that needs more is listed as left out. None
            for what the device has free.
        progress: told what is measured next.

    Raises:
        InvalidValue: a shape, a dtype or a number that cannot be.
        RuntimeError: two ways differ in their scores.
    """
    _require_usable(shapes, steps, layers, dtype)
    device = shapes[0].device
    rows: list[Timing] = []
    held: dict[int, int] = {}
    for shape in shapes:
        progress(f"batch {shape.batch}: penalties")
        found, held[shape.batch] = _ways(shape, steps)
        rows += found
    left_out = []
    if layers:
        largest = max(shapes, key=lambda shape: shape.batch * shape.context)
        model, free = None, free_memory(device) if memory is None else memory
        for shape in shapes:
            if _model_bytes(shape, layers, dtype) > free:
                left_out.append(f"decode step, batch {shape.batch}: not enough memory")
                continue
            progress(f"batch {shape.batch}: decode step")
            if model is None:
                config = _config(largest, layers)
                model = random_model(config, getattr(torch, dtype), largest.device)
            rows.append(_decode_step(model, shape, steps, dtype))
    return {
        "rows": _ratios(rows),
        "left_out": left_out,
        "lz_state_bytes_per_row": {str(batch): size // batch for batch, size in held.items()},
        "shape": {k: v for k, v in asdict(shapes[0]).items() if k != "batch"},
        "decode_step": f"{layers} layers of Qwen2.5-1.5B's shape and its head, whole, {dtype}"
        if layers
        else None,
        "steps": steps,
        **conditions(),
        "device": device_name(device),
    }


def _require_usable(shapes: Sequence[Shape], steps: int, layers: int, dtype: str) -> None:
    if steps < 1:
        raise InvalidValue("steps", steps, "at least 1")
    if layers < 0:
        raise InvalidValue("layers", layers, "0 (no decode step) or above")
    if dtype not in DTYPES:
        raise InvalidValue("dtype", dtype, "one of " + ", ".join(DTYPES), list(DTYPES))
    if not shapes:
        raise InvalidValue("shapes", shapes, "at least one")
    for shape in shapes:
        resolve_device(shape.device)
        if shape.batch < 1:
            raise InvalidValue("batch", shape.batch, "at least 1 row")
        if shape.vocabulary < 2:
            raise InvalidValue("vocabulary", shape.vocabulary, "at least 2 tokens")
        LZPenalty(window=shape.window, buffer=shape.buffer)
        full = shape.window + shape.buffer
        if shape.context < full:
            raise InvalidValue(
                "context", shape.context, f"at least window + buffer = {full} tokens"
            )


def _ways(shape: Shape, steps: int) -> tuple[list[Timing], int]:
    """Every way's times, and the bytes that `lz` remembers."""
    torch.manual_seed(0)
    ids = streams(shape, shape.context + UNTIMED + steps)
    scores = torch.randn(shape.batch, shape.vocabulary, device=shape.device)
    lz = LZPenalty(window=shape.window, buffer=shape.buffer, include_prompt=True)
    single = [lz.in_place() for _ in range(shape.batch)]
    own = torch.empty_like(scores)  # those of a way that writes into what it is given
    repetition = RepetitionPenaltyLogitsProcessor(1.2)
    options = (lz.alpha, shape.window, shape.buffer)

    def by_row(ids: Tensor, scores: Tensor) -> Tensor:
        for own, tokens, row in zip(single, ids[:, None], scores[:, None], strict=True):
            own(tokens, row)
        return scores

    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "lz": lz,
        "lz in place": lz.in_place(),
        "lz by row": by_row,
        "unfold": lambda ids, scores: unfolded(ids, scores, *options),
        "unfold by length": lambda ids, scores: unfolded(ids, scores, *options, suffixes_by_length),
        "repetition": repetition,
        "copy": lambda _, scores: scores.clone(),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    results: dict[str, Tensor] = {}

    def step(way: str, seen: Tensor) -> None:
        results[way] = ways[way](seen, own if way in IN_PLACE else scores)

    with torch.inference_mode():
        for n in range(UNTIMED + steps):
            seen = ids[:, : shape.context + n]
            for way in ways:
                results.pop(way, None)
                own.copy_(scores)
                taken = seconds(lambda way=way, seen=seen: step(way, seen), shape.device)  # type: ignore[misc]
                if n >= UNTIMED:
                    times[way].append(1e3 * taken)
                if way in IN_PLACE:
                    results[way] = results[way].clone()
            _compare(results)
    return [_timing(way, shape.batch, ms) for way, ms in times.items()], lz.state_bytes


def _compare(results: dict[str, Tensor]) -> None:
    for way in (*IN_PLACE, "unfold", "unfold by length"):
        gap = float((results[way] - results["lz"]).abs().max())
        if not gap <= TOLERANCE:
            raise RuntimeError(f"{way!r} and 'lz' differ by up to {gap}")


def _timing(way: str, batch: int, ms: Sequence[float]) -> Timing:
    return Timing(way, batch, statistics.median(ms), min(ms))


def _config(shape: Shape, layers: int) -> Qwen2Config:
    return Qwen2Config(
        **SIZES,
        num_hidden_layers=layers,
        vocab_size=shape.vocabulary,
        max_position_embeddings=2 * shape.context + 4096,
    )


def _model_bytes(shape: Shape, layers: int, dtype: str) -> int:
    """Weights, keys and values while they are copied into a longer cache, and scores."""
    config = _config(shape, layers)
    kv = 2 * layers * config.num_key_value_heads * shape.batch * shape.context
    numbers = count_weights(config) + 2 * kv * config.hidden_size // config.num_attention_heads
    size: int = numbers * getattr(torch, dtype).itemsize
    return size + 8 * shape.batch * shape.vocabulary


@torch.inference_mode()
def _decode_step(model: Any, shape: Shape, steps: int, dtype: str) -> Timing:
    config, cache = model.config, DynamicCache()
    heads, D = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        size = (shape.batch, heads, shape.context, D)
        k, v = (
            torch.randn(size, dtype=getattr(torch, dtype), device=shape.device) for _ in range(2)
        )
        cache.update(k, v, layer)
    times = []
    for n in range(UNTIMED + steps):
        newest = torch.randint(shape.vocabulary, (shape.batch, 1), device=shape.device)
        taken = seconds(
            lambda newest=newest: model(newest, past_key_values=cache, use_cache=True),  # type: ignore[misc]
            shape.device,
        )
        if n >= UNTIMED:
            times.append(1e3 * taken)
    return _timing("decode step", shape.batch, times)


def _ratios(rows: Sequence[Timing]) -> list[dict[str, Any]]:
    """Each time with its share of the decode step and how many times `lz` is faster."""
    at = {(row.way, row.batch): row for row in rows}

    def ratio(row: Timing, way: str, measure: str) -> float | None:
        other = at.get((way, row.batch))
        if other is None:
            return None
        share: float = getattr(row, measure) / getattr(other, measure)
        return share

    return [
        {
            **asdict(row),
            "of_decode_step": ratio(row, "decode step", "ms"),
            "least_of_decode_step": ratio(row, "decode step", "least_ms"),
            "times_lz": ratio(row, "lz", "ms"),
            "least_times_lz": ratio(row, "lz", "least_ms"),
        }
        for row in rows
    ]


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = parser(__doc__)
    flags.add_argument("--batches", type=counts, default=[1, 16, 64], help="rows (1,16,64)")
    sizes = {
        "vocabulary": (151_936, "scores"),
        "context": (1024, "tokens of a row so far"),
        "window": (512, "tokens that are searched"),
        "buffer": (32, "newest tokens that are matched"),
        "layers": (LAYERS, "of the model; 0 leaves its step out, which takes most of the time"),
        "steps": (20, "a point; the median counts"),
    }
    for name, (default, line) in sizes.items():
        flags.add_argument(f"--{name}", type=int, default=default, help=f"{line} ({default})")
    flags.add_argument("--dtype", default="bfloat16", help="of the model (bfloat16)")
    flags.add_argument("--device", default="cpu", help="cpu or cuda")
    args = flags.parse_args(argv)
    own = {name: getattr(args, name) for name in ("vocabulary", "context", "window", "buffer")}
    shapes = [Shape(batch=batch, device=args.device, **own) for batch in args.batches]
    with measuring() as progress:
        found = penalty(shapes, args.steps, args.layers, args.dtype, progress=progress)
    title = f"one step: median of {args.steps}, and least; shares and ratios of medians"
    left_out = [f"left out: {line}" for line in found["left_out"]]
    rows = table(title, COLUMNS, found["rows"])
    return printed(found, args.json, rows, *left_out, shown(found))


if __name__ == "__main__":
    sys.exit(main())
