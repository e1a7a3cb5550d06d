"""How many rows are decoded together: as many as asked for, or as many as the memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attention import AttentionCache
from attention.core import devices
from attention.errors import InvalidValue
from attention.patching.captured import padded
from attention.patching.survey import capacity
from lil.decoding.options import DecodeOptions, Request

#: Most rows of "auto" on a CPU, where more of them bring nothing.
CPU_ROWS = 32
# Bytes of a score: as the model and penalties have it, and with what a sampler adds in float64.
_GREEDY, _SAMPLED = 16, 64
# Numbers of a prompt's token that a forward holds at once, in hidden sizes: three of an MLP up to
# eight times as wide, and what attention has of it.
_HIDDEN_SIZES = 32


def prompt_tokens(device: torch.device) -> int:
    """Tokens of prompts, padding among them, that are read at once."""
    # Of more of them what a layer puts out has to be fetched from memory on a CPU: prompts of 140
    # tokens took twice as long 32 at a time. On a GPU this bounds what a forward computes.
    return 1024 if devices.is_synchronous(device) else 16384


def longest_row(options: DecodeOptions, requests: Sequence[Request]) -> int:
    """Tokens of the longest row there may be, drafts and two steps behind its end included."""
    lengths = (len(x.prompt_ids) + len(x.forced) + (x.max_new_tokens or 0) for x in requests)
    # A row whose text has ended may be stepped twice more before the host knows.
    return max(lengths) + 2 + options.speculate


@torch.inference_mode()
def started(model: Any, cache: AttentionCache) -> AttentionCache:
    """A new cache of an open block that has read a token, so that its layers are there."""
    first, ids = cache.new(prompts=[1]), torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    model(input_ids=ids, past_key_values=first, use_cache=True)
    return first


def check_prompts(model: Any, cache: AttentionCache, prompts: Sequence[int]) -> None:
    """Refuse prompts of so many tokens that do not fit in the budget though they have to stay."""
    if getattr(cache.backend, "keep_prompt", False):
        for layer in started(model, cache).layers:
            layer.check_prompts(np.array(prompts))


@torch.inference_mode()
def rows_together(
    model: Any, cache: AttentionCache, options: DecodeOptions, requests: Sequence[Request]
) -> int:
    """Rows that are decoded together, at most the requests.

    "auto" takes the largest number for which steps are captured (`padded`) with

        rows * row + prompts <= 0.9 * free memory.

    `row`: the longest row's state as it is reserved, the largest of its tensors once more, which is
    copied when rows change, and its scores. `prompts`: of `prompt_tokens`, or of the longest
    prompt, what a forward computes, a layer's whole keys among it, and twice the state that they
    leave, which is copied to its place. The tenth is for blocks of other sizes, libraries, graphs
    and memories of penalties. What detectors that act keep for a way back is not reckoned.

    Args:
        cache: of an open block on the model; it stays as it is.

    Raises:
        InvalidValue: no row fits.
    """
    if isinstance(options.batch_size, int):
        return min(options.batch_size, len(requests))
    device, first = model.device, started(model, cache)
    state = [slots for layer in first.layers for slots in layer.state.values()]
    tokens = capacity(longest_row(options, requests))
    sizes, states = [x.row_bytes(tokens) for x in state], first.states.values()
    vocabulary, width = model.get_input_embeddings().weight.shape
    score = _SAMPLED if options.temperature or options.reheats else _GREEDY
    scores = score * vocabulary * (1 + options.speculate)
    row = sum(sizes) + max(sizes) + sum(x.nbytes for x in states) + scores
    prompt = max(len(x.prompt_ids) + len(x.forced) for x in requests)
    several = min(prompt * len(requests), prompt_tokens(device))  # tokens of more than one prompt
    # Layers that are cut together hold prompts whole until then.
    whole = prompt if any(layer.cut_together for layer in first.layers) else 0
    copied = sum(
        max(x.row_bytes(prompt), max(several, whole) * x.data.shape[1] * x.width // x.unit)
        for x in state
    )
    prompts = 2 * copied + max(prompt, several) * _HIDDEN_SIZES * width * model.dtype.itemsize
    free = int(0.9 * devices.free_memory(device))
    fitting = (free - prompts) // row
    if fitting < 1:
        need = f"{row + prompts:,} bytes for a row of {tokens} tokens and its prompt"
        raise InvalidValue("batch_size", "auto", f"{need}: {free:,} bytes are free")
    bound = min(fitting, padded(len(requests)), CPU_ROWS if device.type == "cpu" else fitting)
    return min(max(n for n in range(1, bound + 1) if padded(n) == n), len(requests))
