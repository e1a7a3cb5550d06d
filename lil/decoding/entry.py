"""What callers use: `decode` for all traces at once, `stream` for each as it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from attention import Backend, Full
from attention.errors import InvalidValue
from lil.actions import cue_ids
from lil.decoding.loop import DecodeLoop
from lil.decoding.request import Request, make_requests
from lil.decoding.row import Row
from lil.decoding.sampling import Sampler
from lil.decoding.watch import Signal
from lil.detectors import Detector, Reading, follows
from lil.penalties import Penalty
from lil.token_table import token_bytes
from lil.trace import Trace

_FULL = Full()


def stream(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Sequence[int]],
    *,
    backend: Backend = _FULL,
    penalties: Sequence[Penalty] = (),
    detectors: Sequence[Detector] = (),
    probes: Sequence[Detector] = (),
    max_new_tokens: int | Sequence[int] = 4096,
    batch_size: int = 32,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    item_ids: Sequence[str] | None = None,
    sample_indices: Sequence[int] | None = None,
    forced: Sequence[Sequence[int]] | None = None,
    forced_signals: Sequence[Mapping[str, Signal]] | None = None,
    check_every: int = 50,
    on_trace: Callable[[int, Trace], None] | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Trace]]:
    """Generate for every prompt; (index of the prompt, its trace) as rows finish.

    One step: forward, penalties on the raw logits, temperature, top-k, top-p, sample, append,
    meters and detectors, stop or act. `eos` at a token beats the cap, and the cap beats a
    detector's verdict. A finished row's place goes to the next prompt; when none is left the batch
    shrinks. A row's tokens do not depend on its batch: its random stream comes from (seed, item id,
    sample index).

    What follows a verdict is the detector's `on_stop` (`lil.actions`); a row acts once. What it
    drops is charged and counts towards the cap: `max_new_tokens` bounds what is paid for. Random
    draws go on where they were. States that a verdict may go back to are kept in memory: for
    backends that drop tokens one or two copies of a row's state.

    The model stays patched until the iterator is used up or closed. An exception of a detector or
    penalty ends the whole run.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        tokenizer: its tokenizer; text is encoded as it does by default, special tokens included.
        prompts: texts, or lists of token ids.
        backend: how the model attends.
        penalties, detectors: templates, cloned per row.
        probes: detectors that read hidden states; what they make of them goes to `Trace.signals`,
            their verdicts nowhere.
        max_new_tokens: most generated tokens, for all or one a prompt; `eos` and tokens that were
            dropped again are counted.
        batch_size: most rows at a time.
        temperature, top_k, top_p: see `lil.decoding.sampling.Sampler`; temperature 0 is greedy.
        seed: of the random streams.
        item_ids: names of the prompts, by default their indices as text.
        sample_indices: which sample of an item this is, by default 0.
        forced: per prompt, tokens known to be the first it generates: read with the prompt, counted
            as generated, charged as if decoded. Not with detectors that act or read.
        forced_signals: `Trace.signals` of these tokens from the run that gave them, for probes.
        check_every: generated tokens between the checks of a trace.
        on_trace: called with what is yielded, before it is.
        on_step: called after every step with the number of tokens chosen so far, forced ones not
            among them.

    Raises:
        InvalidValue: an argument that cannot be used; raised here, before anything is computed.
        FloatingPointError: the model's scores are not finite.
    """
    for name, value in (("batch_size", batch_size), ("check_every", check_every)):
        if value < 1:
            raise InvalidValue(name, value, "at least 1")
    if isinstance(prompts, str):
        raise InvalidValue("prompts", prompts, "a list of prompts, not one text")
    if model.training:
        raise InvalidValue("model", "in training mode", "evaluation mode: call model.eval()")
    sampler = Sampler(temperature, top_k, top_p)
    table = token_bytes(tokenizer)
    vocabulary = model.get_input_embeddings().num_embeddings
    # Embeddings are often padded beyond the tokenizer's last id; such ids decode to nothing.
    table += [b""] * (vocabulary - len(table))
    requests = make_requests(
        tokenizer,
        prompts,
        vocabulary=vocabulary,
        max_new_tokens=max_new_tokens,
        item_ids=item_ids,
        sample_indices=sample_indices,
        forced=forced,
        forced_signals=forced_signals,
        exact_until=backend.exact_until,
    )
    _check_detectors(detectors, probes, backend, requests)
    asked = [follows(one) for one in detectors]
    cues = {what.gives[0]: cue_ids(what, tokenizer, table) for what in asked}
    readers = [one for one in (*detectors, *probes) if isinstance(one, Reading)]
    eos = _eos_ids(model, tokenizer)
    device: torch.device = model.device

    def new_row(request: Request, place: int) -> Row:
        return Row(
            request,
            place,
            table=table,
            eos=eos,
            detectors=detectors,
            probes=probes,
            penalties=penalties,
            cues=cues,
            seed=seed,
            check_every=check_every,
            device=device,
        )

    loop = DecodeLoop(
        model,
        backend,
        sampler,
        requests,
        batch_size,
        check_every,
        new_row,
        sorted({reader.block for reader in readers}),
        on_step,
    )
    return _told(loop.run(), on_trace)


def decode(
    model: Any, tokenizer: Any, prompts: Sequence[str | Sequence[int]], **options: Any
) -> list[Trace]:
    """Generate for every prompt; traces in the order of `prompts`. Options as in `stream`."""
    traces = dict(stream(model, tokenizer, prompts, **options))
    return [traces[index] for index in range(len(prompts))]


def _told(
    events: Iterator[tuple[int, Trace]], on_trace: Callable[[int, Trace], None] | None
) -> Iterator[tuple[int, Trace]]:
    for index, trace in events:
        if on_trace is not None:
            on_trace(index, trace)
        yield index, trace


def _check_detectors(
    detectors: Sequence[Detector],
    probes: Sequence[Detector],
    backend: Backend,
    requests: Sequence[Request],
) -> None:
    """Refuse what cannot be carried out, before anything is computed."""
    for one in detectors:
        what = follows(one)
        if what.dense and not backend.keeps_all:
            allowed = f"a backend that keeps every key: {backend.name} has dropped some"
            raise InvalidValue("on_stop", what.name, allowed)
    for probe in probes:
        if not isinstance(probe, Reading):
            raise InvalidValue("probes", probe.name, "detectors that read hidden states")
    if not any(request.forced for request in requests):
        return
    for one in detectors:
        if isinstance(one, Reading) or not follows(one).ends:
            allowed = "none beside a detector that acts or reads: it must see them decoded"
            raise InvalidValue("forced", one.name, allowed)
    for request in requests:
        if request.forced and any(probe.signal not in request.signals for probe in probes):  # type: ignore[attr-defined]
            allowed = "the signals of forced tokens, for every probe"
            raise InvalidValue(f"forced_signals[{request.index}]", [*request.signals], allowed)


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a sequence: the model's generation config may name several."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = named if isinstance(named, list) else [named]
    return frozenset(i for i in (*ids, tokenizer.eos_token_id) if i is not None)
