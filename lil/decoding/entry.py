"""What callers use: `decode` for all traces at once, `stream` for each as it ends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from attention.errors import InvalidValue
from lil.decoding.lane import RunContext
from lil.decoding.loop import Callbacks, DecodeLoop
from lil.decoding.options import (
    DecodeOptions,
    Request,
    positions_of,
    resolve,
    shows_options,
    with_options,
)
from lil.decoding.speculation import SpeculativeLoop
from lil.detectors import cues_of
from lil.thinking import own_marks
from lil.token_table import token_bytes, token_id
from lil.trace import Trace


@shows_options
def stream(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Sequence[int] | Request],
    options: DecodeOptions | None = None,
    *,
    on_token: Callable[[int, int, bytes], None] | None = None,
    on_action: Callable[[int, Mapping[str, Any]], None] | None = None,
    on_batch: Callable[[int], None] | None = None,
    on_step: Callable[[int], None] | None = None,
    **spelled: Any,
) -> Iterator[tuple[int, Trace]]:
    """Generate for every prompt; (index of the prompt, its trace) as rows finish.

    One step: forward, penalties on the raw logits, temperature, top-k, top-p, sample, append,
    meters and detectors, stop or act. `eos` at a token beats the cap, and the cap beats a
    detector's verdict. A finished row's place goes to the next prompt. In float32 and float64 a
    row's tokens do not depend on its batch: its random stream comes from (seed, item id, sample
    index). In bfloat16 the batch's shape changes the rounding of sums, and now and then a token.

    What follows a verdict is the detector's `on_stop` (`lil.Action`); a row acts once, or `retries`
    times.
    `max_new_tokens` bounds what is paid for: dropped tokens count towards it. Random draws go on
    where they were.

    The model stays patched until the iterator is used up or closed. An exception of a detector or
    penalty ends the whole run. A row ends by "length" where the model's positions end
    (`Trace.at_positions`); `beyond_positions=True` goes on.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        tokenizer: its tokenizer; text is encoded as it does by default, special tokens included.
        prompts: texts, lists of token ids, or `lil.Request` objects.
        options: how to decode.
        on_token: called with (index of the prompt, token id, its bytes) for each token but forced
            ones; an `eos` has no bytes.
        on_action: called with (index of the prompt, the later `Trace.action`) before the tokens
            that follow a verdict.
        on_batch: called at first with the number of rows that are decoded together.
        on_step: called after every step with the number of tokens chosen so far.
        spelled: options by name, see `lil.DecodeOptions`; they beat those of `options`.

    Raises:
        InvalidValue: an argument that cannot be used; raised before anything is computed.
        FloatingPointError: the model's scores are not finite.
    """
    options = with_options(options, spelled)
    _say_unused(getattr(model, "generation_config", None), options)
    if model.training:
        raise InvalidValue("model", "in training mode", "evaluation mode: call model.eval()")
    table = token_bytes(tokenizer) if options.token_bytes is None else [*options.token_bytes]
    vocabulary = model.get_input_embeddings().num_embeddings
    # Embeddings are often padded beyond the tokenizer's last id; such ids decode to nothing.
    table += [b""] * (vocabulary - len(table))
    penalties = [penalty.with_tokens(table) for penalty in options.penalties]
    options = replace(options, penalties=penalties)
    requests = resolve(model, tokenizer, prompts, options, vocabulary)
    _check_forced(options, requests)
    watching, cues = (*options.detectors, *options.probes), dict[str, Sequence[int]]()
    for detector in watching:
        detector.require_tokens(table)
        for cue in {detector.action.gives[0], *detector.cues}:
            cues |= cues_of(cue, tokenizer, table)
    compared = {
        piece: token_id(table, piece, tokenizer)
        for piece in frozenset[bytes]().union(*(detector.compared for detector in watching))
    }
    shared = RunContext(
        options,
        table,
        eos_ids(model, tokenizer),
        cues,
        positions_of(model.config),
        compared,
        own_marks(tokenizer),
    )
    loop = SpeculativeLoop if options.speculate else DecodeLoop
    return loop(model, requests, shared, Callbacks(on_token, on_action, on_batch, on_step)).run()


@shows_options
def decode(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Sequence[int] | Request],
    options: DecodeOptions | None = None,
    **spelled: Any,
) -> list[Trace]:
    """Generate for every prompt; traces in the order of `prompts`.

    Arguments and errors as those of `lil.stream`; options are described at `lil.DecodeOptions`.
    """
    traces = dict(stream(model, tokenizer, prompts, options, **spelled))
    return [traces[index] for index in range(len(prompts))]


#: What `generate` follows of a generation config, whatever the sampling, and the penalties of ours
#: that do the same.
_SHIPPED = {
    "repetition_penalty": "repetition",
    "no_repeat_ngram_size": "no_repeat_ngram",
    **dict.fromkeys(("encoder_repetition_penalty", "bad_words_ids", "sequence_bias"), ""),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "guidance_scale"), ""),
    **dict.fromkeys(("min_length", "min_new_tokens", "exponential_decay_length_penalty"), ""),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"), ""),
}


def _say_unused(config: Any, options: DecodeOptions) -> None:
    """Warn, once, of what a model's generation config has and these options lack."""
    own = {penalty.name for penalty in options.penalties}
    unused = {
        name: value
        for name, ours in _SHIPPED.items()
        if (value := getattr(config, name, None)) not in (None, 0, 1, [], {}) and ours not in own
    }
    if unused:
        named = ", ".join(f"{name}={value}" for name, value in unused.items())
        ours = ", ".join(f"'{_SHIPPED[name]}'" for name in unused if _SHIPPED[name])
        how = f" (as a penalty: lil.penalties.get({ours}))" if ours else ""
        text = f"generation_config has {named}, which generate() follows and lil.decode does not"
        warnings.warn(text + how, stacklevel=3)


def _check_forced(options: DecodeOptions, requests: Sequence[Request]) -> None:
    """Refuse forced tokens where something must see them decoded."""
    for index, request in enumerate(requests):
        if not request.forced:
            continue
        # What is asked near their end is read beyond what all methods read alike.
        for detector in (*options.detectors, *(x for x in options.probes if x.cues)):
            if detector.signals or not detector.action.ends:
                allowed = "none with a detector that acts or reads: it must see them decoded"
                raise InvalidValue("forced", detector.name, allowed)
        if any(probe.signals - request.signals.keys() for probe in options.probes):
            allowed = "the signals of forced tokens, for every probe"
            raise InvalidValue(f"signals[{index}]", [*request.signals], allowed)


def eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a sequence: the model's generation config may name several."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if isinstance(named, torch.Tensor):
        named = named.tolist()
    ids = named if isinstance(named, Sequence) else [named]
    return frozenset(int(i) for i in (*ids, tokenizer.eos_token_id) if i is not None)
