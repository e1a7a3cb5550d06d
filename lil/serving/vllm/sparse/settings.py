"""What a server is started with: the policy of its layers, or a refusal by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.config import VllmConfig

from attention.errors import InvalidValue
from lil.serving.blocks import BlockPolicy, policy_of
from lil.serving.vllm.values import ATTENTION, PART


def settings_of(config: VllmConfig) -> Mapping[str, Any]:
    """Our part of what a server is started with.

    Raises:
        InvalidValue: it is no table.
    """
    more = config.additional_config
    given = more.get(PART, {}) if isinstance(more, Mapping) else {}
    if not isinstance(given, Mapping):
        raise InvalidValue(f"additional_config.{PART}", given, "a table of values")
    return given


def policy_for(config: VllmConfig) -> BlockPolicy:
    """The policy a server is started with.

    Raises:
        InvalidValue: none, one that cannot be kept, or an engine in which it cannot work.
    """
    text = settings_of(config).get(ATTENTION)
    if text is None:
        allowed = "a method with its parameters, such as 'quest(budget=1024)'"
        raise InvalidValue(f"additional_config.{PART}.{ATTENTION}", None, allowed)
    check_engine(config)
    return policy_of(text, config.cache_config.block_size)


def check_engine(config: VllmConfig) -> None:
    """Refuse what an engine was told beside it and what nobody has seen to be right.

    Raises:
        InvalidValue: one of it.
    """
    parallel, cache = config.parallel_config, config.cache_config
    speculative = config.speculative_config
    allowed_one = "1: not tried on more, and a choice for a layer needs all of its heads"
    never = "nothing: blocks that leave the engine carry no summaries of their keys"
    refused: list[tuple[str, Any, bool, str]] = [
        (
            "speculative_config",
            getattr(speculative, "method", None),
            speculative is not None,
            "no speculative decoding: drafts are checked in one step, by several queries",
        ),
        (
            "kv_transfer_config",
            getattr(config.kv_transfer_config, "kv_connector", None),
            config.kv_transfer_config is not None,
            never,
        ),
        ("kv_cache_dtype", cache.cache_dtype, cache.cache_dtype != "auto", "auto"),
        (
            "runner",
            "V2",
            config.use_v2_model_runner,
            "the V1 runner, VLLM_USE_V2_MODEL_RUNNER=0: it tells how long prompts are",
        ),
        ("model", config.model_config.model, config.model_config.use_mla, "keys of each head: MLA"),
    ]
    for name in (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
    ):
        size = getattr(parallel, name, 1)
        refused.append((name, size, size != 1, allowed_one))
    for field, value, wrong, allowed in refused:
        if wrong:
            raise InvalidValue(field, value, allowed)
