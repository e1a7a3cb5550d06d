"""What a method must hold; each check has a message that says where to look."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from attention.contract.backend import Backend
from attention.errors import InvalidValue
from attention.testing.broken import Breach, require, require_aliases, run, same
from attention.testing.driving import OneLayer, follow, prefill, step, text, tiny_model

STATE = "what a row remembers must lie in `remember` or `slots`, and nothing may mix rows"


class Case:
    """A method on a tiny model, with prompts of 1, b - 3 and 2b + 3 tokens about its budget b.

    `answers` are tokens that every row is then fed one by one, (B, n).
    """

    def __init__(self, backend: Backend, longest: int | None) -> None:
        self.backend = backend
        self.budget = b = 16 if backend.budget is None else backend.budget
        self.longest = min(longest or 2 * b + 3, 2 * b + 3)
        lengths = [min(max(n, 1), self.longest) for n in (1, b - 3, 2 * b + 3)]
        self.prompts = [text(n, seed=row) for row, n in enumerate(lengths, start=1)]
        self.answers = text(len(lengths), b // 2 + 6, seed=9)
        self.dense, self.layers = backend.dense_layers, backend.dense_layers + 2
        self.model, self._alone = tiny_model(self.layers), dict[int, Tensor]()

    def plain(self, ids: Tensor) -> Tensor:
        """transformers' own logits of one text, (n, V)."""
        with torch.no_grad():
            logits: Tensor = self.model(input_ids=ids[None], use_cache=False).logits
        return logits[0]

    def alone(self, row: int) -> Tensor:
        """Logits (1 + n, V) of a row by itself."""
        if row not in self._alone:
            with self.backend.on(self.model) as cache:
                logits = follow(self.model, cache, [self.prompts[row]], self.answers[[row]])
            self._alone[row] = logits[0]
        return self._alone[row]


def declared(case: Case) -> str:
    """Parameters: a frozen dataclass of plain values that refuses nonsense."""
    backend, kind = case.backend, type(case.backend)
    require_aliases(kind)
    keywords = all(f.kw_only for f in dataclasses.fields(backend))
    require(keywords, "its parameters must be keywords only (kw_only=True)")
    require(backend.exact_until >= 0, f"exact_until = {backend.exact_until}")
    params = backend.params()
    again = kind(**json.loads(json.dumps(params))).params()
    require(again == params, f"built again from params() = {params} it has params() = {again}")
    layer = OneLayer(backend).layer
    require(
        (layer.keeps_all, layer.rewindable) == (backend.keeps_all, backend.rewindable),
        f"`layer` makes a {type(layer).__name__}, which cannot do what `layer_class` says, or more",
    )
    for wrong in (0, "64", 2.5) if backend.budget is not None else ():
        with contextlib.suppress(InvalidValue):
            kind(**{**params, "budget": wrong})
            raise Breach(f"budget = {wrong!r} is not refused; see attention.errors.check_int")
    return ", ".join(f"{k}={v!r}" for k, v in params.items()) or "no parameters"


def softmax(case: Case) -> str:
    """A decode query gets the softmax over the positions that `read_positions` reports."""
    queries = 0
    sink_logits = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    for T in dict.fromkeys((1, min(case.budget, case.longest), case.longest)):
        # A layer may forget the sinks that some models have, so all runs but the first have them.
        logits = None if T == 1 else sink_logits
        driver = OneLayer(case.backend, rows=2, sink_logits=logits, layers=2)
        driver.feed(T)
        sinks = "" if T == 1 else " and geometry.sink_logits"
        away = "is {by} away from softmax attention over what `read_positions` reports"
        for _ in range(case.budget // 2 + 2):
            out = driver.feed()
            for row in range(driver.rows):
                where = f"with {driver.n} tokens seen{sinks}, query head {{at}} "
                same(out[row, 0], naive(driver, row), where + away)
                queries += 1
    return f"{queries} decode queries equal naive attention over what they read"


def naive(driver: OneLayer, row: int) -> Tensor:
    """Attention of the newest query over the positions read, by loops, (Hq, D)."""
    sets, out = driver.read(row), []
    sinks = [0.0] * driver.Hq if driver.sink_logits is None else driver.sink_logits.exp().tolist()
    for head in range(driver.Hq):
        positions = sets[head * len(sets) // driver.Hq]
        require(len(set(positions)) == len(positions), f"a position is read twice: {positions}")
        group = head * driver.Hkv // driver.Hq
        scores = driver.k[row, group, positions] @ driver.q[row, head, -1] * driver.scaling
        weights = scores.exp() / (scores.exp().sum() + sinks[head])
        out.append(weights @ driver.v[row, group, positions])
    return torch.stack(out)


def exact(case: Case) -> str:
    """Equal to full attention up to `exact_until` tokens, and in any prompt."""
    until, ids = case.backend.exact_until, torch.cat((case.prompts[2], case.answers[2]))
    n = int(min(until, len(ids)))
    want = case.plain(ids)[:n]
    with case.backend.on(case.model) as cache:
        for prompt, chunk in ((1, None), (n // 2, None), (n, 3)) if n else ():
            prompt = min(max(prompt, 1), case.longest)
            fresh = cache.new()
            got = [prefill(case.model, fresh, [ids[:prompt]], chunk)[0]]
            got += [step(case.model, fresh, token[None]) for token in ids[prompt:n]]
            where = f"exact_until = {until}, but after token {{at}} (from 0; a prompt of {prompt}) "
            same(torch.cat(got), want, where + "logits are {by} away from full attention")
    return f"equal to full attention up to {n} tokens (exact_until = {until})"


def dense_prefill(case: Case) -> str:
    """A prompt is read whole, also beyond the budget."""
    ids = case.prompts[2]
    with case.backend.on(case.model) as cache:
        got = prefill(case.model, cache, [ids])[0]
    reason = f"in a prompt of {len(ids)} tokens the logits of token {{at}} are {{by}} away from "
    same(got, case.plain(ids), reason + "full attention: prefill is dense, evicting comes later")
    return f"a prompt of {len(ids)} tokens is read whole"


def counts(case: Case) -> str:
    """Reads stay within the budget, and numbers reported are those of the state."""
    most = 0
    with case.backend.on(case.model) as cache:
        prefill(case.model, cache, case.prompts)
        for column in case.answers.T:
            step(case.model, cache, column)
            stats = cache.row_stats()
            sparse = [i for i in range(case.dense, case.layers) if not cache.layers[i].reads_all]
            reads = [[p >= 0 for p in cache.read_positions(i)] for i in sparse]
            for row, seen in enumerate(cache.seen.tolist()):
                numbers = [int(layer[row].sum(-1).max()) for layer in reads]
                read = max(numbers)
                kept = max(cache.kept_positions(i)[row].shape[-1] for i in sparse)
                most, where = max(most, read), f"row {row}, {seen} tokens seen: "
                for i, number in zip(sparse, numbers, strict=True):
                    budget = cache.layers[i].budget
                    over = f"{where}{number} keys are read in layer {i}, budget {budget}"
                    require(budget is None or number <= budget, over)
                for name, number in {"read_max": read, "kept_max": kept}.items():
                    reported = int(getattr(stats, name)[row])
                    wrong = f"{where}row_stats says {name} = {reported}, the state has {number}"
                    require(reported == number, f"{wrong}: see Layer.reads and Layer.kept")
    return f"at most {most} keys read, as reported"


def rows(case: Case) -> str:
    """A row of a left-padded batch is that row alone."""
    with case.backend.on(case.model) as cache:
        logits = follow(case.model, cache, case.prompts, case.answers)
    for row, prompt in enumerate(case.prompts):
        where = f"a row with a prompt of {len(prompt)} tokens, in a padded batch, "
        away = f"is {{by}} away from itself alone at step {{at}}; {STATE}"
        same(logits[row], case.alone(row), where + away)
    return f"prompts of {', '.join(str(len(p)) for p in case.prompts)} tokens, each as if alone"


def copied(case: Case) -> str:
    """Caches and rows are copied, reordered and replaced midway; the others do not notice."""
    order, half, newcomer = [2, 0, 2, 1], case.answers.shape[1] // 2, 1
    with case.backend.on(case.model) as cache:
        follow(case.model, cache, case.prompts, case.answers[:, :half])
        twin = cache.clone([1, 0, 2])
        step(case.model, twin, case.answers[[0, 1, 2], half])  # other tokens than the rows' own
        cache.select_rows(order)
        fresh = cache.new()
        prefill(case.model, fresh, [case.prompts[newcomer]])
        cache.replace_rows([2], fresh)
        rest = case.answers[order, half:].clone()
        rest[2] = case.answers[newcomer, : rest.shape[1]]
        got = torch.stack([step(case.model, cache, column) for column in rest.T], dim=1)
    for place, row in enumerate(order):
        if place != 2:
            want = case.alone(row)[half + 1 :]
            same(got[place], want, f"a copied row is {{by}} away from the first one; {STATE}")
    want = case.alone(newcomer)[1 : rest.shape[1] + 1]
    same(got[2], want, f"a new sequence in a used row is {{by}} away from itself alone; {STATE}")
    return "caches copied; rows copied, reordered and replaced"


def crop(case: Case) -> str:
    """Forgetting the newest tokens of a row is exact or refused."""
    prompts, answers = case.prompts[1:], case.answers[1:, :8]
    other = text(2, case.budget + 3, seed=10)
    with case.backend.on(case.model) as cache:
        want = follow(case.model, cache, prompts, answers)[:, 1:]
        if not cache.rewindable:
            return "refused: tokens it dropped or scores it learned cannot be taken back"
        cache.crop(-answers.shape[1])
        # Other text where that text stood, so that its traces would show.
        for column in other.T:
            step(case.model, cache, column)
        for row, seen in enumerate(cache.seen.tolist()):
            cache.rewind(row, seen - other.shape[1])
        got = torch.stack([step(case.model, cache, column) for column in answers.T], dim=1)
    same(got.flatten(0, 1), want.flatten(0, 1), "after crop() and rewind() logits are {by} away")
    return "exact"


def memory(case: Case) -> str:
    """A method that drops tokens holds no more memory after ever more of them."""
    driver, sizes = OneLayer(case.backend), []
    if driver.layer.keeps_all:
        return "keeps all"
    twice = max(2 * case.budget, 64)  # state is allocated for 64 tokens at least
    for most in (twice, 2 * twice + 1):
        while driver.n < most:
            driver.feed()
        sizes.append(sum(slots.data.numel() for slots in driver.layer.state.values()))
    grew = f"tokens are dropped, but from {most // 2} to {most} of them the state grew from "
    require(sizes[0] == sizes[1], f"{grew}{sizes[0]} to {sizes[1]} numbers: give `slots` a limit")
    return f"keeps {len(driver.kept()[0])} of {driver.n} tokens in constant memory"


def device(case: Case) -> str:
    """Whether a GPU's decode steps can be captured; no failure where they cannot."""
    driver = OneLayer(case.backend, rows=2)
    driver.feed(case.longest)
    reason = driver.layer.obstacle()
    how = f"run operation by operation: {reason}" if reason else "are captured"
    return f"on a GPU this method's steps {how}"


CHECKS: dict[str, Callable[[Case], str]] = {
    "declared": declared,
    "softmax": softmax,
    "exact": exact,
    "prefill": dense_prefill,
    "counts": counts,
    "rows": rows,
    "copied": copied,
    "crop": crop,
    "memory": memory,
    "device": device,
}


def check(
    backend: Backend, *, skip: Iterable[str] = (), longest_prompt: int | None = None
) -> dict[str, str]:
    """Run a method on tiny random models and check that it keeps the contract.

    Choose a small budget, 16 or 32: texts lie around it.

    Args:
        backend: the method, with parameters.
        skip: names of `CHECKS` that a method breaks on purpose, as controls do.
        longest_prompt: tokens of the longest prompt the method takes; None for any.

    Returns:
        The result of each check, by its name.

    Raises:
        ContractBroken: a check fails; the message says which and where to look.
        InvalidValue: `skip` names no check.
    """
    return run(backend.name, CHECKS, Case(backend, longest_prompt), skip)
