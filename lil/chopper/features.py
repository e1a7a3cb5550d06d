"""The hidden states a decode had at the ends of its chunks, computed again from its trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attention import Backend
from lil.chopper.chunks import chunks
from lil.hidden_states import HiddenStates
from lil.rereading import reread
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

    The model reads the prompt at once and the known tokens one a step, so a sparse method keeps and
    reads what it did in the decode, but for rounding in another batch.

    Args:
        model: the model the traces are of.
        backend: how they were decoded.
        traces: of any lengths.
        block: whose output, see `lil.hidden_states`.
        batch_size: most rows at a time.
        on_step: called after each step with the number of tokens read in it.
    """
    ends = [[chunk.end for chunk in chunks(trace.text_pieces)] for trace in traces]
    collected: list[list[Tensor]] = [[] for _ in traces]
    # Rows of like length together, longest first: then a batch only ever loses its last rows.
    order = sorted((i for i in range(len(traces)) if ends[i]), key=lambda i: -ends[i][-1])
    with HiddenStates(model, [block]) as states, backend.on(model) as cache:
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            prompts = [traces[i].prompt_ids for i in rows]
            texts = [traces[i].new_ids[: ends[i][-1]] for i in rows]
            for read, (_, scores) in enumerate(reread(model, cache, prompts, texts), start=1):
                ended = [at for at, i in enumerate(rows[: len(scores)]) if read in ends[i]]
                if ended:
                    newest = states[block].float().cpu()
                    for at in ended:
                        collected[rows[at]].append(newest[at])
                if on_step is not None:
                    on_step(len(scores))
    empty = torch.zeros(0, model.config.get_text_config().hidden_size)
    return [torch.stack(parts) if parts else empty for parts in collected]
