"""Checks what requests say of their attention, before they run.

    vllm serve MODEL --logits-processors lil.serving.vllm.sparse.processor:Attention ...

The worker does what they say without it; but vLLM shows a request to nobody else who could refuse
it, and a value that is misspelt would mean nothing.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from lil.serving.vllm.requests import served
from lil.serving.vllm.values import check_request


class Attention(LogitsProcessor):
    """Refuses requests that ask for an attention they cannot have; scores stay as they are.

    Raises:
        InvalidValue: a server's value that nobody reads, or without the worker that heeds it; of
            `validate_params`, as HTTP 400 where it came over HTTP.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse another attention than full or the server's."""
        check_request(sampling_params)

    def __init__(self, vllm_config: VllmConfig, *rest: Any) -> None:
        del rest
        served(vllm_config)

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        del batch_update

    def apply(self, logits: Tensor) -> Tensor:
        return logits
