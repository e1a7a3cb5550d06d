"""What training needs besides its loop: batches, a fast forward pass, holdout figures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from experiments.reasoner import problems

from . import chain_words
from .tokenizer import pieces, richer_vocabulary
from .traces import NO_FAULTS, TraceConfig, write_trace

MAX_STEPS = max(problems.RECIPES[level].steps[1] for level in problems.LEVELS)
MOST_STEPS = max(recipe.steps[1] for recipe in problems.RECIPES.values())
MAX_TOKENS = 2600  # longer chains (several failed passes) are drawn again
MOST_POSITIONS = 8000
GROUP = 16  # batches drawn together, so that they can be sorted by length


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum: up to which token, how many steps, how many chains go wrong."""

    until_tokens: float
    steps: tuple[int, int]
    traces: TraceConfig
    draws: int = 1  # steps are the largest of that many draws: 2 makes long problems likelier
    rivals: int = 0  # up to this many facts start from an operand another fact starts from
    retold: float = 0.0  # share of the problems that tell facts twice, in more words


# Reading a fact in the prompt is learnt last and much sooner where there are few facts.
CURRICULUM = (
    Stage(1.0e6, (1, 2), NO_FAULTS),
    Stage(11.0e6, (1, 5), TraceConfig(faulty=0.4)),
    Stage(25.0e6, (1, MAX_STEPS), TraceConfig()),
    Stage(38.0e6, (1, MAX_STEPS), TraceConfig(), draws=2),
    # 38 of 40 misread numbers belonged to another fact with the same operand.
    Stage(44.1e6, (1, MAX_STEPS), TraceConfig(), rivals=5),
    # The shipped weights until here.
    Stage(float("inf"), (1, MOST_STEPS), TraceConfig(forget=0.02), rivals=5, retold=0.6),
)


@dataclass(frozen=True)
class Batch:
    """Right-padded sequences. Shapes (B, T); `weights` belong to the token at their position."""

    ids: Tensor
    weights: Tensor
    positions: Tensor

    @property
    def tokens(self) -> int:
        return int((self.ids != 0).sum())


def encode(text: str) -> list[int]:
    """Token ids of text in the reasoner's language."""
    index = _index()
    return [index[piece] for piece in pieces(text)]


@cache
def _index() -> dict[str, int]:
    return {piece: i for i, piece in enumerate(richer_vocabulary())}


def draw_problem(
    rng: random.Random, steps: int, rivals: int = 0, retold: float = 0.0
) -> problems.Problem:
    """A training problem with that many steps and up to that many rivals.

    Its text hashes to the split `train`; with a chance of `retold` some of its facts are stated
    twice.
    """
    level = next(
        (lv for lv, recipe in problems.RECIPES.items() if steps in range(*_span(recipe.steps))),
        "easy" if steps < 2 else "medium",
    )
    while True:
        share = rng.random() if rng.random() < retold else 0.0
        recipe = problems.Recipe(
            (steps, steps), rng.randint(1, 4), rng.randint(0, rivals), retold=share
        )
        drawn = problems.generate(rng, steps, recipe, "train", level)
        if problems.split_of(drawn.prompt) == "train":
            return drawn


def _span(steps: tuple[int, int]) -> tuple[int, int]:
    return steps[0], steps[1] + 1


def sequence(rng: random.Random, steps: int, stage: Stage) -> tuple[list[int], list[float]]:
    """Ids and weights of one prompt (weight 0) with its chain."""
    while True:
        drawn = draw_problem(rng, steps, stage.rivals, stage.retold)
        prompt, chain = write_trace(drawn, rng, stage.traces)
        ids = encode(prompt)
        weights = [0.0] * len(ids)
        for text, weight in chain.parts:
            part = encode(text)
            ids += part
            weights += [weight] * len(part)
        if len(ids) <= MAX_TOKENS:
            return ids, weights


def positions(rng: random.Random, length: int, limit: int = MOST_POSITIONS) -> list[int]:
    """0, 1, 2, ... for half of the sequences; the others jump ahead at a few places, so that the
    rotary embedding sees distances longer than the chains themselves."""
    result = list(range(length))
    if rng.random() < 0.5:
        return result
    room = limit - length
    for _ in range(rng.randint(1, 4)):
        jump = rng.randint(0, room)
        room -= jump
        for i in range(rng.randrange(length), length):
            result[i] += jump
    return result


def batch_group(seed: int, group: int, stage: Stage, batch_tokens: int) -> list[Batch]:
    """`GROUP` batches of about `batch_tokens` padded tokens: a pure function of its arguments."""
    rng = random.Random(f"train/{seed}/{group}")
    drawn: list[tuple[list[int], list[float]]] = []
    total = 0
    while total < GROUP * batch_tokens:
        steps = max(rng.randint(*stage.steps) for _ in range(stage.draws))
        drawn.append(sequence(rng, steps, stage))
        total += len(drawn[-1][0])
    drawn.sort(key=lambda pair: len(pair[0]))
    batches: list[Batch] = []
    rows: list[tuple[list[int], list[float]]] = []
    for pair in drawn:
        if rows and len(pair[0]) * (len(rows) + 1) > batch_tokens * 1.1:
            batches.append(_pad(rng, rows))
            rows = []
        rows.append(pair)
    batches.append(_pad(rng, rows))
    rng.shuffle(batches)
    return batches


def _pad(rng: random.Random, rows: list[tuple[list[int], list[float]]]) -> Batch:
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    weights = torch.zeros(len(rows), longest)
    places = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, (row, row_weights) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        weights[i, : len(row)] = torch.tensor(row_weights)
        places[i, : len(row)] = torch.tensor(positions(rng, len(row)))
    return Batch(ids, weights, places)


class Groups(torch.utils.data.IterableDataset[list[Batch]]):
    """Groups from `start` on, for a DataLoader worker; the stage follows the tokens drawn.

    Args:
        seed: of all draws.
        start: group.
        tokens: trained on before it.
        batch_tokens: of a batch, padded.
    """

    def __init__(self, seed: int, start: int, tokens: int, batch_tokens: int) -> None:
        self.seed, self.start, self.tokens, self.batch_tokens = seed, start, tokens, batch_tokens

    def __iter__(self) -> Iterator[list[Batch]]:
        group, tokens = self.start, self.tokens
        while True:
            stage = next(s for s in CURRICULUM if tokens < s.until_tokens)
            batches = batch_group(self.seed, group, stage, self.batch_tokens)
            tokens += sum(batch.tokens for batch in batches)
            group += 1
            yield batches


# -- forward ---------------------------------------------------------------------------------


def causal_attention(q: Tensor, k: Tensor, v: Tensor, block: int = 128) -> Tensor:
    """Grouped causal attention in blocks of queries, for training on a CPU in bf16.

    There it takes half the time of `scaled_dot_product_attention` forward and backward.

    Args:
        q: (B, Hq, T, D). k, v: (B, Hkv, T, D).

    Returns:
        (B, Hq, T, D).
    """
    B, Hq, T, D = q.shape
    Hkv = k.shape[1]
    q = (q * D**-0.5).view(B, Hkv, Hq // Hkv, T, D)
    outputs = []
    for start in range(0, T, block):
        stop = min(start + block, T)
        rows = q[:, :, :, start:stop].reshape(B, Hkv, -1, D)
        scores = (rows @ k[:, :, :stop].transpose(-1, -2)).view(B, Hq, stop - start, stop)
        later = torch.ones(stop - start, stop - start, dtype=torch.bool, device=q.device).triu(1)
        bias = scores.new_zeros(stop - start, stop)
        bias[:, start:].masked_fill_(later, float("-inf"))
        probabilities = torch.softmax(scores + bias, -1).view(B, Hkv, -1, stop)
        outputs.append((probabilities @ v[:, :, :stop]).view(B, Hq, stop - start, D))
    return torch.cat(outputs, 2)


def hidden_states(model: Any, ids: Tensor, places: Tensor) -> Tensor:
    """The last hidden states of a transformers Qwen3 model, by its own modules.

    Args:
        model: `Qwen3ForCausalLM`. ids, places: (B, T) token ids and positions.

    Returns:
        (B, T, hidden), after the final norm.
    """
    config = model.config
    x = model.model.embed_tokens(ids)
    B, T, _ = x.shape
    cos, sin = model.model.rotary_emb(x, places)
    cos, sin = cos[:, None], sin[:, None]

    def heads(values: Tensor) -> Tensor:
        return values.view(B, T, -1, config.head_dim)

    def turn(values: Tensor) -> Tensor:
        first, second = values.chunk(2, -1)
        turned: Tensor = values * cos + torch.cat((-second, first), -1) * sin
        return turned

    for layer in model.model.layers:
        attention = layer.self_attn
        h = _norm(x, layer.input_layernorm)
        q = turn(_norm(heads(attention.q_proj(h)), attention.q_norm).transpose(1, 2))
        k = turn(_norm(heads(attention.k_proj(h)), attention.k_norm).transpose(1, 2))
        v = heads(attention.v_proj(h)).transpose(1, 2)
        q, k = q.to(v.dtype), k.to(v.dtype)
        if ids.device.type == "cpu":
            attended = causal_attention(q, k, v)
        else:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + attention.o_proj(attended.transpose(1, 2).reshape(B, T, -1))
        h = _norm(x, layer.post_attention_layernorm)
        x = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(h)) * layer.mlp.up_proj(h))
    final: Tensor = _norm(x, model.model.norm)
    return final


def _norm(x: Tensor, module: Any) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), module.weight.to(x.dtype), module.variance_epsilon)


def loss(model: Any, batch: Batch) -> Tensor:
    """Weighted mean cross-entropy of the trained tokens of a batch."""
    trained = batch.weights[:, 1:] > 0
    hidden = hidden_states(model, batch.ids[:, :-1], batch.positions[:, :-1])[trained]
    logits = F.linear(hidden, model.lm_head.weight).float()
    each = F.cross_entropy(logits, batch.ids[:, 1:][trained], reduction="none")
    weights = batch.weights[:, 1:][trained]
    return (each * weights).sum() / weights.sum()


@torch.no_grad()
def holdout_figures(model: Any, count: int = 24) -> dict[str, float]:
    """Share of holdout chains greedy decoding would reproduce token for token, by level, and the
    share of injected mistakes a check judges wrong.

    One forward pass a chain: a chain whose every token is the most likely next one is what greedy
    decoding writes.

    Args:
        model: the one measured.
        count: chains a level, mistakes twice as many.
    """
    device = model.lm_head.weight.device
    figures: dict[str, float] = {}

    def right(prompt: str, parts: list[tuple[str, float]]) -> list[tuple[bool, float]]:
        ids, weights = encode(prompt), [0.0] * len(encode(prompt))
        for text, weight in parts:
            ids += encode(text)
            weights += [weight] * len(encode(text))
        row = torch.tensor([ids], device=device)
        places = torch.arange(len(ids), device=device)[None]
        hidden = hidden_states(model, row[:, :-1], places[:, :-1])[0]
        best = F.linear(hidden, model.lm_head.weight).argmax(-1)
        hits = (best == row[0, 1:]).tolist()
        return [(hit, w) for hit, w in zip(hits, weights[1:], strict=True) if w > 0]

    for level in problems.RECIPES:
        exact = 0
        for i in range(count):
            drawn = problems.problem(level, "heldout", i)
            prompt, chain = write_trace(drawn, random.Random(i), NO_FAULTS)
            exact += all(hit for hit, _ in right(prompt, chain.parts))
        figures[level] = exact / count
    judged = caught = 0
    mistakes = TraceConfig(faulty=1, fix_fault=0, reread=0, missing=0, stubborn=0)
    rejections = {pair[1] for pair in chain_words.VERDICTS}
    for i in range(count * 2):
        drawn = problems.problem("medium", "heldout", i)
        prompt, chain = write_trace(drawn, random.Random(i), mistakes)
        trained = [(t, w) for t, w in chain.parts if w > 0]
        places = []  # index, among trained tokens, of each verdict that says "wrong"
        at = 0
        for text, _ in trained:
            if text in rejections:
                places.append(at)
            at += len(encode(text))
        hits = right(prompt, chain.parts)
        judged += len(places)
        caught += sum(hits[p][0] for p in places)
    figures["mistakes_caught"] = caught / max(judged, 1)
    return figures
