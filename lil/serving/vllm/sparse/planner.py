"""What an engine's builder of metadata adds to a step for sparse layers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import torch
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata

from attention.contract import Counts
from attention.core import devices
from attention.errors import InvalidValue
from lil.serving.blocks import (
    WHOLE,
    BlockPolicy,
    Queries,
    ReadPlan,
    StepReads,
    in_full_rows,
    queries,
)
from lil.serving.vllm.sparse.rows import ReadLog, StepRows
from lil.serving.vllm.sparse.settings import policy_for


class StepPlanner(AttentionMetadataBuilder):
    """Plans a step: all of it but the choices follows from how many tokens requests have.

    It stands before the engine's own builder.

    Raises:
        InvalidValue: the kernel's block is another than the server was started with.
    """

    #: The engine's metadata with the fields of `StepReads`.
    made: ClassVar[type[Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.policy: BlockPolicy = policy_for(self.vllm_config)
        #: Set by the worker: what the runner knows of a step's rows, and who counts what they read,
        #: which one builder of a worker tells. Before that no row is one of a request.
        self.rows: StepRows | None = None
        self.reads: ReadLog | None = None
        if self.policy.block != self.block_size:
            allowed = f"{self.policy.block}, the block that the server was started with"
            raise InvalidValue("block", self.block_size, allowed)

    @abstractmethod
    def seen(self, cm: CommonAttentionMetadata) -> Counts:
        """Tokens that each row has at the end of the step, (R,), as the host knows them."""

    def prepared(self, plan: ReadPlan) -> Any:  # noqa: ARG002
        """What the kernel is told of sparse queries ahead."""
        return None

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        cm = common_attn_metadata
        starts = cm.query_start_loc_cpu.numpy().astype(np.int64)
        new = np.diff(starts)
        seen = self.seen(cm)
        past = seen - new
        prompts = np.full(len(new), WHOLE)
        if self.rows is not None:
            prompts = np.where(self.rows.whole(len(new)), WHOLE, self.rows.prompts(len(new)))
        found = queries(self.policy, past, new, prompts)
        if self.rows is not None and self.reads is not None:
            self.reads.step(self.rows, past, new)
        reads = StepReads.planned(
            self.policy, found, past, new, cm.block_table_tensor, self.kv_cache_spec.num_kv_heads
        )
        part = cm
        if reads.sparse is not None:
            part = self._in_full(cm, found, past)
            reads.sparse.prepared = self.prepared(reads.sparse)
            # Nobody is scheduled ahead where nothing is read in full.
            fast_build = fast_build or reads.full is None
        built = super().build(common_prefix_len, part, fast_build)
        given = {one.name: getattr(built, one.name) for one in fields(built)}
        given |= {one.name: getattr(reads, one.name) for one in fields(reads)}
        if reads.sparse is not None:
            given |= {"num_actual_tokens": cm.num_actual_tokens, "slot_mapping": cm.slot_mapping}
        return self.made(**given)

    def _in_full(self, cm: Any, found: Queries, past: Counts) -> Any:
        """The step without its sparse queries, which are the last tokens of their rows."""
        rows, count, lengths = in_full_rows(found, past)
        starts = np.concatenate(([0], np.cumsum(count))).astype(np.int32)
        lengths = lengths.astype(np.int32)
        device = cm.block_table_tensor.device
        owned = cm.block_table_tensor[devices.put(rows, device)]
        return cm.replace(
            query_start_loc=devices.put(starts, device),
            query_start_loc_cpu=torch.from_numpy(starts),
            seq_lens=devices.put(lengths, device),
            seq_lens_cpu_upper_bound=torch.from_numpy(lengths),
            num_reqs=len(rows),
            num_actual_tokens=int(starts[-1]),
            max_query_len=int(count.max(initial=0)),
            max_seq_len=int(lengths.max(initial=0)),
            block_table_tensor=owned,
        )
