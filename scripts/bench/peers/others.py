"""transformers' own ways to generate: one prompt at a time, a padded batch, `generate_batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from peers.work import PeerError, Run, Tokens, Work, timed

PAGE = 256  # tokens; what `generate_batch` has by default
ROOM = 2048  # most tokens that it may read at once


class Transformers:
    """`generate()` of a model that attends in transformers' own way.

    Args:
        model: loaded.
        work: the prompts.
        places: which of them.
        at_once: how many are padded into one batch, all of them if None.
    """

    def __init__(self, model: Any, work: Work, places: Sequence[int], at_once: int | None) -> None:
        self.model, self.work, self.places = model, work, places
        self.at_once = len(places) if at_once is None else at_once

    def __call__(self, limit: int) -> Run:
        """Generate at most `limit` tokens of each prompt."""
        return timed(lambda: self._generate(limit))

    def _generate(self, limit: int) -> Tokens:
        made: Tokens = []
        for first in range(0, len(self.places), self.at_once):
            made += self._batch(self.places[first : first + self.at_once], limit)
        return made

    def _batch(self, places: Sequence[int], limit: int) -> Tokens:
        prompts = [self.work.prompts[place] for place in places]
        width = max(map(len, prompts))
        ids = [[self.work.pad] * (width - len(prompt)) + [*prompt] for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        out = self.model.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            generation_config=_greedy(self.work, limit),
        )
        return [self.work.ended(row) for row in out[:, width:].tolist()]


class Continuous:
    """`generate_batch()`, its memory sized to the work and made before the first timed run.

    Args:
        model: loaded.
        work: the prompts, all of them.
    """

    def __init__(self, model: Any, work: Work) -> None:
        self.model, self.work = model, work
        longest = max(map(len, work.prompts)) + work.max_new_tokens
        count = len(work.prompts)
        self._room = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=count * -(-longest // PAGE),
            max_batch_tokens=ROOM,
            max_requests_per_batch=count,
            allow_block_sharing=False,  # a prompt read in an earlier run would be read for nothing
        )

    def __call__(self, limit: int) -> Run:
        """Generate at most `limit` tokens of each prompt.

        Raises:
            PeerError: it does not run here, or a request came to nothing.
        """
        try:
            return timed(lambda: self._generate(limit))
        except PeerError:
            raise
        except Exception as error:  # whatever a young interface raises, others can still be timed
            raise PeerError(f"generate_batch: {str(error).strip().splitlines()[0]}") from error

    def _generate(self, limit: int) -> Tokens:
        out = self.model.generate_batch(
            inputs=[[*prompt] for prompt in self.work.prompts],
            generation_config=_greedy(self.work, self.work.max_new_tokens),
            continuous_batching_config=self._room,
            max_new_tokens=limit,
            persistent_manager=True,
        )
        wrong = [one.error for one in out.values() if one.error]
        if wrong or len(out) < len(self.work.prompts):
            why = wrong[0] if wrong else f"{len(out)} of {len(self.work.prompts)} came back"
            raise PeerError(f"generate_batch: {why}")
        return [list(one.generated_tokens) for one in out.values()]

    def close(self) -> None:
        """Let its memory go."""
        self.model.destroy_cached_continuous_batching_manager()


def _greedy(work: Work, limit: int) -> GenerationConfig:
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=limit,
        eos_token_id=sorted(work.eos),
        pad_token_id=work.pad,
    )
