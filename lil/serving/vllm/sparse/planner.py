"""What an engine's builder of metadata adds to a step for sparse layers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata

from attention.contract import Counts
from attention.core import devices
from lil.serving.blocks.plans import WHOLE, Queries, ReadPlan, StepReads, queries
from lil.serving.blocks.policies import BlockPolicy, Mask, policy_of, require
from lil.serving.blocks.reads import ReadCounts
from lil.serving.values import ATTENTION
from lil.serving.vllm.requests import PART, config_values, in_full


def policy_for(config: VllmConfig) -> BlockPolicy:
    """The policy a server is started with, unless nobody has compared tokens under its settings."""
    text = config_values(config).get(ATTENTION)
    allowed = "a method with its parameters, such as 'quest(budget=1024)'"
    require(text is not None, f"additional_config.{PART}.{ATTENTION}", None, allowed)
    method = getattr(config.speculative_config, "method", None)
    allowed = "no speculative decoding: drafts are checked in one step, by several queries"
    require(config.speculative_config is None, "speculative_config", method, allowed)
    connector = getattr(config.kv_transfer_config, "kv_connector", None)
    allowed = "nothing: blocks that leave the engine carry no summaries of their keys"
    require(config.kv_transfer_config is None, "kv_transfer_config", connector, allowed)
    dtype, model = config.cache_config.cache_dtype, config.model_config
    require(dtype == "auto", "kv_cache_dtype", dtype, "auto")
    allowed = "the V1 runner, VLLM_USE_V2_MODEL_RUNNER=0: it tells how long prompts are"
    require(not config.use_v2_model_runner, "runner", "V2", allowed)
    require(not model.use_mla, "model", model.model, "keys of each head: MLA")
    for kind in ("tensor", "pipeline", "decode_context", "prefill_context"):
        size = getattr(config.parallel_config, f"{kind}_parallel_size", 1)
        allowed = "1: not tried on more, and a choice for a layer needs all of its heads"
        require(size == 1, f"{kind}_parallel_size", size, allowed)
    return policy_of(text, config.cache_config.block_size)


class StepRows:
    """The rows of a step, as the engine's runner has them when it plans its attention."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def of(self, rows: int) -> tuple[list[str], Counts, Mask]:
        """Names of requests, tokens of their prompts, and which are read in full, by their request.

        Rows behind those of requests have prompts that are `WHOLE`.
        """
        names = list(self._runner.input_batch.req_ids[:rows])
        prompts, full = np.full(rows, WHOLE), np.zeros(rows, dtype=bool)
        prompts[: len(names)] = self._runner.input_batch.num_prompt_tokens[: len(names)]
        requests = [self._runner.requests[name] for name in names]
        full[: len(names)] = [in_full(request.sampling_params) for request in requests]
        return names, prompts, full


class StepPlanner(AttentionMetadataBuilder):
    """Plans a step; a base before the engine's own builder."""

    #: The engine's metadata with the fields of `StepReads`.
    made: ClassVar[type[Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.policy: BlockPolicy = policy_for(self.vllm_config)
        #: Set by the worker; before that no row is one of a request. One builder counts reads.
        self.rows: StepRows | None = None
        self.reads: ReadCounts | None = None
        allowed = f"{self.policy.block}, the block that the server was started with"
        require(self.policy.block == self.block_size, "block", self.block_size, allowed)

    @abstractmethod
    def seen(self, cm: CommonAttentionMetadata) -> Counts:
        """Tokens that each row has at the end of the step, (R,), as the host knows them."""

    def prepared(self, plan: ReadPlan) -> Any:  # noqa: ARG002
        """What the kernel is to know of sparse queries before a step."""
        return None

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        cm = common_attn_metadata
        new = np.diff(cm.query_start_loc_cpu.numpy().astype(np.int64))
        past = self.seen(cm) - new
        prompts = np.full(len(new), WHOLE)
        if self.rows is not None:
            names, prompts, full = self.rows.of(len(new))
            some = slice(len(names))
            if self.reads is not None:
                self.reads.step(names, past[some], new[some], prompts[some], full[some])
            prompts = np.where(full, WHOLE, prompts)
        step = queries(self.policy, past, new, prompts)
        heads = self.kv_cache_spec.num_kv_heads
        reads = StepReads.planned(self.policy, step, past, new, cm.block_table_tensor, heads)
        part = cm
        if reads.sparse is not None:
            part = self._in_full(cm, step, past)
            reads.sparse.prepared = self.prepared(reads.sparse)
            # Nobody is scheduled ahead where nothing is read in full.
            fast_build = fast_build or reads.full is None
        metadata = super().build(common_prefix_len, part, fast_build)
        values = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
        values |= vars(reads)
        if reads.sparse is not None:
            values |= {"num_actual_tokens": cm.num_actual_tokens, "slot_mapping": cm.slot_mapping}
        return self.made(**values)

    def _in_full(self, cm: Any, step: Queries, past: Counts) -> Any:
        """The step without its sparse queries, which are the last tokens of their rows."""
        rows, count, lengths = step.in_full(past)
        starts = np.concatenate(([0], np.cumsum(count))).astype(np.int32)
        lengths = lengths.astype(np.int32)
        device = cm.block_table_tensor.device
        return cm.replace(
            query_start_loc=devices.put(starts, device),
            query_start_loc_cpu=torch.from_numpy(starts),
            seq_lens=devices.put(lengths, device),
            seq_lens_cpu_upper_bound=torch.from_numpy(lengths),
            num_reqs=len(rows),
            num_actual_tokens=int(starts[-1]),
            max_query_len=int(count.max(initial=0)),
            max_seq_len=int(lengths.max(initial=0)),
            block_table_tensor=cm.block_table_tensor[devices.put(rows, device)],
        )
