"""The hidden states a decode had at the ends of its chunks, computed again from its trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attention import AttentionCache, Backend
from lil.chopper.chunks import chunks
from lil.hidden_states import HiddenStates
from lil.trace import Trace


def chunk_states(
    model: Any,
    backend: Backend,
    traces: Sequence[Trace],
    block: int,
    batch_size: int = 32,
    on_step: Callable[[int], None] | None = None,
) -> list[Tensor]:
    """A trace's hidden states at its chunks' ends, (chunks, hidden size) each, on the CPU.

    The prompt is read at once and the known tokens one a step, as they were decoded: what a sparse
    method kept, dropped and read is what it was then, so the states are those of the decode, but
    for rounding where the batch is another one.

    Args:
        model: the model the traces are of.
        backend: how they were decoded.
        traces: of any lengths.
        block: whose output, see `lil.hidden_states`.
        batch_size: most rows at a time.
        on_step: called after each step with the number of tokens read in it.
    """
    ends = [[chunk.end for chunk in chunks(trace.text_pieces)] for trace in traces]
    collected = [torch.zeros(0, model.config.get_text_config().hidden_size) for _ in traces]
    # Rows of like length together, longest first: then a batch only ever loses its last rows.
    order = sorted((i for i in range(len(traces)) if ends[i]), key=lambda i: -ends[i][-1])
    with HiddenStates(model, [block]) as states, backend.on(model) as first:
        for at in range(0, len(order), batch_size):
            rows = order[at : at + batch_size]
            batch = [(traces[i], ends[i]) for i in rows]
            cache = first if at == 0 else first.new()
            read = _read(model, cache, batch, lambda: states[block], on_step)
            for row, parts in zip(rows, read, strict=True):
                collected[row] = torch.stack(parts)
    return collected


@torch.inference_mode()
def _read(
    model: Any,
    cache: AttentionCache,
    batch: Sequence[tuple[Trace, Sequence[int]]],
    newest: Callable[[], Tensor],
    on_step: Callable[[int], None] | None,
) -> list[list[Tensor]]:
    prompts = [trace.prompt_ids for trace, _ in batch]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    call = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
    model(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0).to(model.device),
        **call,
    )
    collected: list[list[Tensor]] = [[] for _ in batch]
    rows = len(batch)
    for step in range(batch[0][1][-1]):
        left = sum(ends[-1] > step for _, ends in batch)
        if left < rows:
            cache.select_rows(list(range(left)))
            rows = left
        tokens = torch.tensor([[trace.new_ids[step]] for trace, _ in batch[:rows]])
        model(input_ids=tokens.to(model.device), position_ids=cache.seen[:, None], **call)
        ended = [row for row in range(rows) if batch[row][1][len(collected[row])] == step + 1]
        if ended:
            states = newest().float().cpu()
            for row in ended:
                collected[row].append(states[row])
        if on_step is not None:
            on_step(rows)
    return collected
