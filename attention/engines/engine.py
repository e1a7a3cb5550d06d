"""The operations every engine has, and the plain engine, the oracle of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from attention.core.kernels import (
    BLOCK_ELEMENTS,
    accumulator,
    added,
    dense_with_mass,
    logits,
    over_group,
    softmax,
    take_pages,
    top,
)
from attention.core.ropes import Turn, rotate
from attention.core.slots import Slots
from attention.core.step import Counts, Occupancy
from attention.engines import gpu


class QKV(NamedTuple):
    """Scaled queries (B, H, M, D), and keys and values (B, Hkv, C, D), read in place.

    M queries share each of H sets of slots; H is Hkv, or a multiple of it where pages are chosen.
    The model's own logits in addition to the slots' are (H * M,).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    sink_logits: Tensor | None = None


class AttentionOutput(NamedTuple):
    """What queries got, (B, H, M, D), and at least in float32 what was asked for."""

    out: Tensor
    probs: Tensor | None = None  # of each slot up to the most held, (B, H, M, S)
    lse: Tensor | None = None  # logarithm of the sum of exponentials, sinks included, (B, H, M)


class Engine:
    """How decode queries read keys and values: the plain way, on every device and dtype.

    Scores, softmax and the sum of values come one after the other; chosen pages are copied first.
    Other engines do some of it sooner. All give what this one gives, but for the rounding of sums.
    """

    name: ClassVar[str] = "torch"
    on_device: ClassVar[bool] = False  # whether `Layer.step`, by `step`, serves decode steps
    step = staticmethod(gpu.attend)

    def refusal(self, device: torch.device, dtype: torch.dtype) -> str | None:  # noqa: ARG002
        """Why this engine cannot work for such keys, in words after "expected"; None if it can."""
        return None

    def attend(
        self, qkv: QKV, occupancy: Occupancy, *, probs: bool = False, lse: bool = False
    ) -> AttentionOutput:
        """One query per head over the first slots of its row; `probs` and `lse` if asked for."""
        keys, values = (x.flatten(0, 1)[:, : occupancy.most] for x in (qkv.k, qkv.v))
        result = _attend(qkv, keys, values, occupancy.hidden, lse)
        return result if probs else result._replace(probs=None)

    def attend_pages(
        self, qkv: QKV, pages: Tensor, counts: Tensor, page: int, *, lse: bool = False
    ) -> AttentionOutput:
        """One query per head over chosen pages, without copying them first where that can be.

        A set without a slot to read gets zeros, and minus infinity with `lse`.

        Args:
            pages, counts: page numbers of each set, and slots to read of each page, from its first
                on, (B, H, U).
            page: slots of a page, of which C is a multiple.
        """
        keys, values = take_pages((qkv.k, qkv.v), pages, page)
        hidden = torch.arange(page, device=pages.device) >= counts[..., None]
        result = _attend(qkv, keys, values, hidden.flatten(2)[:, :, None], lse)
        nothing = (counts == 0).all(-1)[..., None, None]
        return result._replace(out=result.out.masked_fill(nothing, 0), probs=None)

    def ragged_prompt(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, new: Counts
    ) -> Tensor | None:
        """Causal attention of left-padded prompts of `new` tokens, (B,), without their padding.

        (B, T, Hq, D), 0 for padding; None where the engine has no such operation.
        """

    def attend_with_mass(
        self, qkv: QKV, occupancy: Occupancy, mass: Tensor, elsewhere: AttentionOutput | None = None
    ) -> Tensor:
        """`attend`, (B, H, M, D), adding to `mass` what each slot gets of its set's queries.

        Args:
            mass: at least float32, (B, H, C or less), any strides but of slots; added to in place.
            elsewhere: what the same queries got of other slots, with `lse`: one softmax over both
                is wanted. The share of these slots is what is added to `mass`.
        """
        out, probs, lse = self.attend(qkv, occupancy, probs=True, lse=elsewhere is not None)
        assert probs is not None
        if elsewhere is not None:
            assert lse is not None
            assert elsewhere.lse is not None
            share = torch.sigmoid(lse - elsewhere.lse)[..., None]
            both = elsewhere.out.to(probs.dtype), out.to(probs.dtype)
            out, probs = torch.lerp(*both, share).to(qkv.q.dtype), probs * share
        mass[:, :, : occupancy.most] += added(probs, 2)
        return out

    dense_with_mass = staticmethod(dense_with_mass)

    def put(self, arriving: Sequence[tuple[Slots, Tensor | None]], at: Tensor) -> None:
        """Overwrite one slot of each row and head in several tensors of as many slots.

        `at` says which, as in `Slots.flat`, (B * H,). What goes into each is (B, H, 1, ...), or
        None to empty the slots.
        """
        for slots, new in arriving:
            if new is None:
                slots.flat.index_fill_(0, at, slots.fill)
            else:
                slots.flat.index_copy_(0, at, new.flatten(0, 2))

    def likeliest(
        self, qkv: QKV, occupancy: Occupancy, k: int, *, largest: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Each row's newest slot, and the k - 1 others that get most probability of Hkv sets.

        Slots come in any order, with 1 where one is read and 0 where a row holds fewer, (B, H, k);
        k is at least 1, and no more come than the longest row holds. Among equals the older slot is
        taken. The `largest` probability that a query gives a slot counts, or their sum.
        """
        best, slots = top(self.likelihood(qkv, occupancy, largest=largest)[1], k)
        return slots, (best > float("-inf")).long()

    def likelihood(
        self, qkv: QKV, occupancy: Occupancy, *, largest: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The probability of every slot, and what `likeliest` ranks by, (B, H, S) each."""
        wide = accumulator(qkv.k.dtype)  # in bfloat16 slots would tie
        keys = qkv.k.flatten(0, 1)[:, : occupancy.most].to(wide)
        probs = _probabilities(qkv.q.to(wide), keys, occupancy.hidden, qkv.sink_logits)[2]
        weight = over_group(probs, "max" if largest else "sum", 2)
        newest = (occupancy.tensor - 1)[:, None, None].expand(-1, len(weight[0]), -1)
        rank = weight.scatter(2, newest, float("inf"))
        if occupancy.hidden is not None:
            rank = rank.masked_fill(occupancy.hidden[:, 0], float("-inf"))
        return weight, rank

    def best_pages(
        self, q: Tensor, summaries: Tensor, competing: Occupancy, k: int,
        always: tuple[Tensor, Tensor], page: int, *, first: int = 0, narrow: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The k pages worth most to each set, and the pages `always` read, for `attend_pages`.

        A page's worth is the largest product of its summary with a query of the set; among equals
        the lower number wins. Numbers of pages and tokens to read are (B, H, k + A).

        Args:
            q: (B, H, M, E), and `summaries`: (B, Hkv, P, E), read in place; H is a multiple of Hkv.
            competing: pages of each row that compete, from number `first` on, of `page` tokens.
            k: pages wanted, at least 1; at most as many come as the longest row lets compete.
            always: pages that every set of a row reads and the tokens on them, (B, A) each.
            narrow: rank by scores rounded to float32, so that equals up to rounding are ties.
        """
        H, score = q.shape[1], page_scores(q, summaries[:, :, : competing.most])
        if narrow:
            score = score.to(torch.float32)
        if competing.hidden is not None:
            score = score.masked_fill(competing.hidden[:, 0], float("-inf"))
        worth, pages = top(score, k)
        fixed, tokens = (x[:, None].expand(-1, H, -1) for x in always)
        counts = (worth > float("-inf")) * page
        return torch.cat((pages + first, fixed), -1), torch.cat((counts, tokens), -1)

    def raise_to(self, slots: Slots, at: Tensor, new: Tensor, fresh: Tensor | None = None) -> None:
        """Let one slot of each row and head hold the larger of its numbers and new ones, see `put`.

        `fresh` are those that hold nothing yet, (B * H,); None for none.
        """
        known, new_values = slots.flat.index_select(0, at), new.to(slots.data.dtype).flatten(0, 2)
        larger = torch.maximum(known, new_values)
        if fresh is not None:
            larger = torch.where(fresh[:, None], new_values, larger)
        slots.flat.index_copy_(0, at, larger)

    def rotate(self, x: Tensor, turn: Turn, out: Tensor | None = None) -> Tensor:
        """`attention.core.ropes.rotate`, into `out`, which is no memory of x, or new memory."""
        turned = rotate(x, turn)
        return turned if out is None else out.copy_(turned)

    def restamp(
        self, stamps: Slots, probs: Tensor, occupancy: Occupancy, now: Tensor, page: int, how: str,
        alpha: float | None = None,
    ) -> None:  # fmt: skip
        """Stamp the pages anew that score most, or above `alpha`, unless a stamp is later.

        A page scores the largest probability that one of its slots gets.

        Args:
            stamps: int32, (B, H, C), the same on all slots of a page; `now` are the new ones, (B,).
            probs: at least float32, (B, H, M, S), 0 where no slot is held.
            page: slots of a page; the last one may be begun only.
            how: what of the M queries counts, their "sum", "mean" or "max".
            alpha: None for the better half of each set's pages, at least one, the first of equals.
        """
        S = probs.shape[-1]
        missing = -S % page
        padded = functional.pad(probs, (0, missing)) if missing else probs
        score = over_group(padded.view(*probs.shape[:3], -1, page).amax(-1), how, 2)
        if alpha is None:
            behind, half = occupancy.halves(page)
            score = score.masked_fill_(behind[:, None], -1)
            best = score.argsort(dim=-1, descending=True, stable=True)
            stamped = torch.empty_like(best, dtype=torch.bool)
            stamped.scatter_(-1, best, half[:, None].expand_as(best))
        else:
            stamped = score > alpha
        by_slot = stamped[..., None].expand(*stamped.shape, page).flatten(-2)[..., :S]
        old = stamps.data[:, :, :S]
        fresh = torch.maximum(old, now.to(torch.int32)[:, None, None])
        stamps.data[:, :, :S] = torch.where(by_slot, fresh, old)

    def redundancy(self, keys: Tensor, threshold: float) -> Tensor:
        """How much each key repeats the others, (R, H, S, D) to (R, H, S), adding up to 1.

        The softmax of the mean cosine with all keys, of which each leaves itself and the newest one
        above `threshold` out. Keys are at least float32, oldest first.
        """
        R, H, S, _ = keys.shape
        unit = keys / (keys.norm(dim=-1, keepdim=True) + 1e-8)
        # The newest key first, so that the first of several similar ones is the newest.
        backwards, ahead = unit.flip(2).transpose(2, 3), torch.arange(S, device=keys.device).flip(0)
        total = keys.new_zeros(R, H, S)
        # In blocks of keys, so that memory stays bounded after a long prompt.
        size = max(1, BLOCK_ELEMENTS // (R * H * S))
        for start in range(0, S, size):
            block = slice(start, start + size)
            cosine = unit[:, :, block] @ backwards
            cosine.scatter_(-1, ahead[block, None].expand(R, H, -1, 1), 0)  # itself
            similar = cosine > threshold
            # Any, where none is similar.
            newest = similar.view(torch.uint8).argmax(-1, keepdim=True)
            rest = cosine.gather(-1, newest).masked_fill_(similar.gather(-1, newest), 0)
            total += cosine.scatter_(-1, newest, rest).sum(2)
        return (total.flip(-1) / S).softmax(-1)

    def keep_best(self, state: Sequence[Slots], rows: Tensor, worth: Tensor, most: int) -> None:
        """Move the slots of `rows` (R,) worth most to the front, in order, and empty the others.

        `most` stay, among equals the first ones; `worth` is (R, H, S). The `state` that follows a
        token from slot to slot is (B, H, C, ...) each, C alike.
        """
        (_, H, S), C = worth.shape, state[0].capacity
        order = worth.argsort(dim=-1, descending=True, stable=True)
        index = order[:, :, :most].sort(dim=-1).values
        slot, heads = (torch.arange(n, device=worth.device) for n in (S, H))
        begin = ((rows[:, None] * H + heads) * C)[..., None]
        source, end, gone = ((begin + x).view(-1) for x in (index, slot[:most], slot[most:]))
        for slots in state:
            slots.flat.index_copy_(0, end, slots.flat.index_select(0, source))
            slots.flat.index_fill_(0, gone, slots.fill)

    def lowest(self, worth: Tensor, position: Tensor, stays: Tensor | None = None) -> Tensor:
        """The slot of each set that is worth least, (B, H, 1), among equals the newest token's.

        Worth is (B, H or 1, S), any strides, positions of the tokens are int32, (B, H, S). From
        position `stays` (B,) on tokens of a row are worth more than any other.
        """
        if stays is not None:
            worth = worth.masked_fill(position >= stays[:, None, None], float("inf"))
        least = worth == worth.amin(-1, keepdim=True)
        return torch.where(least, position, -1).argmax(-1, keepdim=True)


def page_scores(q: Tensor, summaries: Tensor) -> Tensor:
    """The largest product of each page's summary with a query of the set, see `best_pages`."""
    (B, H, M, E), Hkv = q.shape, summaries.shape[1]
    wide = accumulator(summaries.dtype)  # in bfloat16 pages would tie
    known = summaries.flatten(0, 1).to(wide)
    # Of many keys logits come transposed, so heads are put together when their queries are.
    score = logits(q.to(wide).reshape(B * Hkv, -1, E), known).view(B, Hkv, H // Hkv, M, -1)
    return score.amax(3).flatten(1, 2)


def _attend(
    qkv: QKV, keys: Tensor, values: Tensor, hidden: Tensor | None, lse: bool
) -> AttentionOutput:
    """Attention to these slots of the same sets, (B * H, S, D), rather than all of them."""
    scores, sinks, probs = _probabilities(qkv.q, keys, hidden, qkv.sink_logits)
    total = None
    if lse:
        total = torch.logsumexp(scores.to(accumulator(scores.dtype)), -1)
        if sinks is not None:
            total = torch.logaddexp(total, sinks[..., 0].to(total.dtype))
        probs = probs.masked_fill(total.isneginf()[..., None], 0)  # nothing to read
    out = torch.bmm(probs.to(values.dtype).flatten(0, 1), values).view(qkv.q.shape)
    return AttentionOutput(out, probs, total)


def _probabilities(
    q: Tensor, keys: Tensor, hidden: Tensor | None, sink_logits: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Logits of slots, (B, H, M, S), of the model's sinks, (H, M, 1), and what slots get."""
    scores = logits(q.flatten(0, 1), keys).view(*q.shape[:3], -1)
    if hidden is not None:
        scores.masked_fill_(hidden, float("-inf"))
    sinks = None if sink_logits is None else sink_logits.view(*q.shape[1:3], 1)
    return scores, sinks, softmax(scores, sinks)
