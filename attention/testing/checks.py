"""What a method must hold, each point with a message that says where to look."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable

import torch

from attention import methods
from attention.contract.backend import Backend
from attention.errors import InvalidValue
from attention.layers.layer import Geometry, Layer
from attention.patching.cache import AttentionCache
from attention.testing.broken import Breach, require, require_aliases, run, same
from attention.testing.case import Case, RowRecord
from attention.testing.driving import OneLayer, follow, left_padded, prefill, step, text, tiny_model
from attention.testing.hooks import by_head, hooks

STATE = "what a row remembers must lie in `remember` or `slots`, and nothing may mix rows"


# ---------------------------------------------------------------- the checks, in this order


def declared(case: Case) -> str:
    """Parameters: a frozen dataclass of plain values that says what it is and refuses nonsense."""
    backend, kind = case.backend, type(case.backend)
    own = "<locals>" not in kind.__qualname__ and kind.__module__ != "__main__"
    if own:
        methods.find(f"{kind.__module__}:{kind.__qualname__}")
    require_aliases(kind)
    fields = dataclasses.fields(backend)
    require(all(f.kw_only for f in fields), "its parameters must be keywords only (kw_only=True)")
    require("\n" not in kind.source and bool(kind.source), "`source` must be one line")
    until = backend.exact_until
    require(not math.isnan(until) and until >= 0, f"exact_until = {until}")
    params = backend.params()
    try:
        again = kind(**json.loads(json.dumps(params)))
    except TypeError as error:
        raise Breach(f"params() does not survive JSON: {error}") from error
    kept = again.params() == params and again.exact_until == until
    require(kept, f"built again from params() = {params} it has params() = {again.params()}")
    layer = OneLayer(backend).layer
    reserved(layer)
    require(
        (layer.keeps_all, layer.rewindable) == (backend.keeps_all, backend.rewindable),
        f"`layer` makes a {type(layer).__name__}, which cannot do what `layer_class` says, or more",
    )
    if backend.budget is not None:
        for wrong in (0, "64", 2.5):
            try:
                kind(**{**params, "budget": wrong})
            except InvalidValue:
                continue
            raise Breach(
                f"budget = {wrong!r} must raise InvalidValue; see attention.errors.check_int"
            )
    return ", ".join(f"{k}={v!r}" for k, v in params.items()) or "no parameters"


def reserved(layer: Layer) -> None:
    """Raise Breach where a layer keeps something under a name that its base class needs."""
    hidden = [name for name in vars(layer) if callable(getattr(type(layer), name, None))]
    own = [
        name
        for name, kind in (("geometry", Geometry), ("state", dict), ("budget", int | None))
        if not isinstance(getattr(layer, name), kind)
    ]
    for name in (*hidden, *own):
        raise Breach(
            f"self.{name} of {type(layer).__name__} is the base class's: take another name"
        )


def exact(case: Case) -> str:
    """Equal to full attention up to `exact_until` tokens, however they come."""
    until = case.backend.exact_until
    n = int(min(until, case.longest + case.given.shape[1]))
    if n < 1:
        return "claims nothing: exact_until = 0"
    ids = torch.cat((case.prompts[2], case.given[2]))[:n]
    want = case.plain(ids)
    with case.backend.on(case.model) as cache:
        for prompt, chunk in ((1, None), (n // 2, None), (n, 3)):
            prompt = min(max(prompt, 1), case.longest)
            fresh = cache.new()
            got = [prefill(case.model, fresh, [ids[:prompt]], chunk)[0]]
            got += [step(case.model, fresh, i[None]) for i in ids[prompt:]]
            same(
                torch.cat(got),
                want,
                f"exact_until = {until}, but after token {{at}} (from 0; a prompt of {prompt}) "
                "logits are {by} away from full attention",
            )
    return f"equal to full attention up to {n} tokens (exact_until = {until})"


def dense_prefill(case: Case) -> str:
    """A prompt is read whole, also beyond the budget."""
    ids = case.prompts[2]
    with case.backend.on(case.model) as cache:
        got = prefill(case.model, cache, [ids])[0]
    same(
        got,
        case.plain(ids),
        f"in a prompt of {len(ids)} tokens the logits of token {{at}} are {{by}} away from full "
        "attention: prefill is dense, evicting comes at its end",
    )
    return f"a prompt of {len(ids)} tokens is read whole"


def budget(case: Case) -> str:
    """No decode query reads more than the budget, in any layer and head."""
    if case.backend.budget is None:
        return "no budget to hold"
    most = 0
    for x in case.batch[2]:
        for i, read in enumerate(x.read[case.dense :], start=case.dense):
            n = int((read >= 0).sum(-1).max())
            most = max(most, n)
            require(
                n <= case.budget,
                f"layer {i} reads {n} keys with {x.seen} tokens seen, budget {case.budget}",
            )
    return f"at most {most} keys read, budget {case.budget}"


def counts(case: Case) -> str:
    """What is reported is what the state holds; positions exist and appear once."""
    for x in case.batch[2]:
        where = f"row {x.row}, {x.seen} tokens seen: "
        for p in (*x.kept, *x.read):
            require(bool(p.numel()), where + "a layer keeps or reads no position at all")
            ordered = bool(((p.diff(dim=-1) > 0) | (p[:, :-1] < 0)).all())
            require(ordered, where + "a position appears twice or out of order")
            require(int(p.max()) < x.seen, where + "a position beyond the last token")
        numbers = [(p >= 0).sum(-1).double() for p in x.read[case.dense :]]
        counted = {
            "read_max": max(float(n.max()) for n in numbers),
            "read_mean": sum(float(n.mean()) for n in numbers) / len(numbers),
            "kept_max": float(max(p.shape[-1] for p in x.kept)),
        }
        for name, number in counted.items():
            said = x.said[name]
            require(
                math.isclose(said, number, rel_tol=1e-9),
                f"{where}row_stats says {name} = {said:g}, the state has {number:g}: "
                "see Layer.reads and Layer.kept",
            )
        least_cost(case, x, where)
    return f"{len(case.batch[2])} rows and steps counted in the state itself"


def least_cost(case: Case, x: RowRecord, where: str) -> None:
    """Costs and bytes reported are no less than the keys read and kept."""
    groups = (g for positions in x.read for g in positions.reshape(case.kv_heads, -1).tolist())
    read = sum(len({p for p in g if p >= 0}) for g in groups)
    require(
        x.said["keys_read"] >= read,
        f"{where}row_stats says {x.said['keys_read']:g} keys read, but {read} are: see Layer.cost",
    )
    keys = sum(p.numel() for p in x.kept) + case.dense * case.kv_heads * x.seen
    held = keys * case.key_bytes
    require(
        x.said["bytes"] >= held,
        f"{where}row_stats says {x.said['bytes']:g} bytes, keys and values alone take {held}: see "
        "Layer.row_bytes",
    )


def rows(case: Case) -> str:
    """A row of a left-padded batch is that row alone."""
    logits, ends, _ = case.batch
    for r, prompt in enumerate(case.prompts):
        alone, positions = case.alone(r)
        where = f"a row with a prompt of {len(prompt)} tokens, in a padded batch, "
        same(logits[r], alone, where + f"is {{by}} away from itself alone at step {{at}}; {STATE}")
        for one, other in zip(ends[r], positions, strict=True):
            equal = by_head(one, case.heads) == by_head(other, case.heads)
            require(equal, f"{where}keeps or reads other positions; {STATE}")
    return f"prompts of {', '.join(str(len(p)) for p in case.prompts)} tokens, each as if alone"


def late_rows(case: Case) -> str:
    """Fed column by column, a short row stays all padding while a longer one decodes."""
    prompts = [case.prompts[2][: min(n, case.longest)] for n in (2, case.budget + 3)]
    given = case.given[:2, :2]
    with case.backend.on(case.model) as cache:
        together = follow(case.model, cache, prompts, given, chunk=1)
        for r, prompt in enumerate(prompts):
            alone = follow(case.model, cache.new(), [prompt], given[[r]], chunk=1)[0]
            same(
                together[r],
                alone,
                f"fed one column at a time, row {r} of 2 is {{by}} away from itself alone; {STATE}",
            )
    return "a row may begin while others decode"


def copied(case: Case) -> str:
    """Caches and rows are copied, reordered and replaced midway; the others do not notice."""
    order, half, newcomer = [2, 0, 2, 1], case.given.shape[1] // 2, 1
    others = [1, 0, 2]
    with case.backend.on(case.model) as cache:
        follow(case.model, cache, case.prompts, case.given[:, :half])
        twin = cache.clone(others)
        ahead = [step(case.model, twin, column) for column in case.given[others, half : half + 3].T]
        cache.select_rows(order)
        fresh = cache.new()
        prefill(case.model, fresh, [case.prompts[newcomer]])
        cache.replace_rows([2], fresh)
        rest = case.given[order, half:].clone()
        rest[2] = case.given[newcomer, : rest.shape[1]]
        got = torch.stack([step(case.model, cache, column) for column in rest.T], dim=1)
    for r, logits in zip(others, torch.stack(ahead, dim=1), strict=True):
        want = case.alone(r)[0][half + 1 :][:3]
        same(logits, want, "a row of a cache.clone() is {by} away from the first one")
    for ours, r in enumerate(order):
        if ours != 2:
            want = case.alone(r)[0][half + 1 :]
            same(got[ours], want, f"a copied row is {{by}} away from the first one; {STATE}")
    want = case.alone(newcomer)[0][1 : rest.shape[1] + 1]
    same(got[2], want, f"a new sequence in a used row is {{by}} away from itself alone; {STATE}")
    return "caches copied; rows copied, reordered and replaced"


def chunks(case: Case) -> str:
    """A method that keeps all may take a prompt in chunks."""
    prompt, given = case.prompts[2], case.given[[2], :6]
    with case.backend.on(case.model) as cache:
        got = follow(case.model, cache, [prompt], given, chunk=7)[0]
        kept = min(p.shape[-1] for i in range(case.layers) for p in cache.kept_positions(i))
    if kept < len(prompt) + given.shape[1]:
        return f"drops tokens, so chunks may matter beyond exact_until = {case.backend.exact_until}"
    want = case.alone(2)[0][: len(got)]
    same(got, want, "a prompt in chunks of 7 is {by} away from one prefill, {at} tokens later")
    return "a prompt in chunks is one prefill"


def generate(case: Case) -> str:
    """`model.generate` with a padded batch is the hand-written greedy loop."""
    prompts = [case.prompts[2], case.prompts[0]]
    ids, mask = left_padded(prompts)
    with case.backend.on(case.model) as cache, torch.no_grad():
        out = case.model.generate(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=cache,
            max_new_tokens=6,
            do_sample=False,
        )[:, ids.shape[1] :]
        logits = follow(case.model, cache.new(), prompts, out[:, :-1])
    require(torch.equal(logits.argmax(-1), out), "generate() chose other tokens than a greedy loop")
    return "generate() is the greedy loop"


def crop(case: Case) -> str:
    """Forgetting the newest tokens, of all rows or of one, is exact or refused."""
    prompts, given = case.prompts[1:], case.given[1:, :8]
    other = text(2, case.budget + 3, seed=10)
    with case.backend.on(case.model) as cache, torch.no_grad():
        want = follow(case.model, cache, prompts, given)[:, 1:]
        if not cache.is_croppable:
            refused(cache)
            require(
                not cache.rewindable,
                "rewindable is True though rows this long cannot be cropped: see Layer.rewindable",
            )
            return "refused: tokens it dropped or scores it learned cannot be taken back"
        cache.crop(-given.shape[1])
        # Other text where that text stood, so that its traces would show.
        positions = cache.seen[:, None] + torch.arange(other.shape[1])
        case.model(input_ids=other, position_ids=positions, past_key_values=cache)
        if cache.rewindable:
            for r, seen in enumerate(cache.seen.tolist()):
                cache.rewind(r, seen - other.shape[1])
        else:
            cache.crop(-other.shape[1])
        got = torch.stack([step(case.model, cache, column) for column in given.T], dim=1)
    for r in range(2):
        same(got[r], want[r], "after crop() or rewind() logits are {by} away from a text never fed")
    return "exact"


def refused(cache: AttentionCache) -> None:
    """Raise Breach unless crop is refused."""
    try:
        cache.crop(-1)
    except InvalidValue:
        return
    raise Breach("crop() works though is_croppable is False")


def memory(case: Case) -> str:
    """A method that drops tokens holds no more memory after ever more of them."""
    one, sizes = OneLayer(case.backend), []
    # State is allocated for 64 tokens at least.
    for most in (max(2 * case.budget, 64), 2 * max(2 * case.budget, 64) + 1):
        while one.n < most:
            one.feed()
            if one.n == case.budget + 2 and len(one.kept()[0]) == one.n:
                return "keeps all"
        sizes.append(sum(s.data.numel() for s in one.layer.state.values()))
    require(
        sizes[0] == sizes[1],
        f"tokens are dropped, but from {most // 2} to {most} of them the state grew from "
        f"{sizes[0]} to {sizes[1]} numbers: give `slots` a limit",
    )
    return f"keeps {len(one.kept()[0])} of {one.n} tokens in constant memory"


def half_precision(case: Case) -> str:
    """A bfloat16 model works."""
    half = tiny_model(case.layers, (case.heads, case.kv_heads), torch.bfloat16)
    with case.backend.on(half) as cache:
        logits = follow(half, cache, [case.prompts[2], case.prompts[0]], case.given[:2, :4])
    require(bool(logits.isfinite().all()), "logits of a bfloat16 model are not finite")
    return "bfloat16 gives finite logits"


def repeated(case: Case) -> str:
    """The same parameters give the same results: nothing else decides."""
    again = type(case.backend)(**json.loads(json.dumps(case.backend.params())))
    one, other = OneLayer(case.backend), OneLayer(again)
    for T in (case.longest, *[1] * (case.budget // 2 + 2)):
        got, want = one.feed(T), other.feed(T)
        same(
            got.flatten(2)[0],
            want.flatten(2)[0],
            f"built again from its parameters it is {{by}} away, {one.n} tokens seen",
        )
    return "built again from its parameters it is the same"


CHECKS: dict[str, Callable[[Case], str]] = {
    "declared": declared,
    "hooks": hooks,
    "exact": exact,
    "prefill": dense_prefill,
    "budget": budget,
    "counts": counts,
    "rows": rows,
    "late rows": late_rows,
    "copied": copied,
    "chunks": chunks,
    "generate": generate,
    "crop": crop,
    "memory": memory,
    "half precision": half_precision,
    "repeated": repeated,
}


def check(
    backend: Backend, *, skip: Iterable[str] = (), longest_prompt: int | None = None
) -> dict[str, str]:
    """Drive a method on tiny random models and see that it keeps the contract.

    Choose a small budget, 16 or 32: texts are made to lie around it. A second or less.

    Args:
        backend: the method, with parameters.
        skip: names of `CHECKS` that a method breaks on purpose, as controls do.
        longest_prompt: tokens of the longest prompt the method takes; None for any.

    Returns:
        What each check found, by its name.

    Raises:
        ContractBroken: with what was found.
        InvalidValue: `skip` names no check.
    """
    return run(backend.name, CHECKS, Case(backend, longest_prompt), skip)
