"""Checks a request's `attention` before it runs.

vLLM shows a request to nobody else who could refuse it; the worker alone would read a misspelt
value as none.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from lil.serving.values import check_attention
from lil.serving.vllm.requests import request_values, server_values


class Attention(LogitsProcessor):
    """Refuses requests that ask for an attention they cannot have; scores stay as they are."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        check_attention(request_values(sampling_params))

    def __init__(self, vllm_config: VllmConfig, *_rest: Any) -> None:
        server_values(vllm_config)

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """No request has a state here."""

    def apply(self, logits: Tensor) -> Tensor:
        return logits
