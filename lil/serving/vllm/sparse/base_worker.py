"""What the workers for CPUs and GPUs share: they make the layers of their model sparse."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, ClassVar

from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionBackend, AttentionType
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu_worker import Worker

from attention.errors import InvalidValue
from lil.serving.blocks.policies import BlockPolicy
from lil.serving.blocks.reads import ReadCounts
from lil.serving.vllm.sparse.cache import GivenBackSpec, KeptSpec
from lil.serving.vllm.sparse.planner import StepPlanner, StepRows, policy_for
from lil.serving.vllm.sparse.rotary import RopeTables

_LOG = init_logger("vllm.lil.sparse")


class SparseWorker(Worker):
    """A worker of vLLM whose model has sparse layers; a base before that of a platform."""

    #: Of sparse layers.
    backend: ClassVar[type[AttentionBackend]]

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self.policy: BlockPolicy = policy_for(vllm_config)
        #: Layers that are sparse, by the engine's names.
        self.sparse_layers: dict[str, Attention] = {}
        self.reads: ReadCounts | None = None
        super().__init__(vllm_config, *args, **kwargs)

    def check_layer(self, layer: Any) -> None:
        """Refuse a layer whose own attention is not the one that is made sparse."""

    def load_model(self, **kwargs: Any) -> None:
        super().load_model(**kwargs)
        layers = attention_layers(self.model_runner.get_model())
        dense, config = self.policy.method.dense_layers, self.vllm_config.model_config
        ropes = RopeTables(config.get_hidden_size(), config.dtype)
        for name, (layer, parent) in list(layers.items())[dense:]:
            if layer.sliding_window is not None or layer.attn_type != AttentionType.DECODER:
                continue  # the model's own, as it is
            self.check_layer(layer)
            rope = ropes.of(name, layer, parent) if self.policy.turns else None
            layer.impl = self.backend.get_impl_cls().of(layer.impl, self.policy, rope)
            layer.attn_backend = self.backend
            self.sparse_layers[name] = layer
        sparse = len(self.sparse_layers)
        if not sparse:
            allowed = f"fewer than the model's {len(layers)} layers, some of which see everything"
            raise InvalidValue("dense_layers", dense, allowed)
        self.reads = ReadCounts(self.policy, sparse, len(layers) - sparse)
        _LOG.info("%s in %d of %d layers", self.policy.method, sparse, len(layers))

    def get_kv_cache_spec(self) -> dict[str, Any]:
        specs: dict[str, Any] = super().get_kv_cache_spec()
        for name, spec in specs.items():
            if type(spec) is FullAttentionSpec:
                gives_back = not self.policy.best and name in self.sparse_layers
                kind = GivenBackSpec if gives_back else KeptSpec
                specs[name] = kind.of(spec, self.policy)
        return specs

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        groups = [group for some in self.model_runner.attn_groups for group in some]
        builders = [group.get_metadata_builder() for group in groups]
        planners = [builder for builder in builders if isinstance(builder, StepPlanner)]
        for planner in planners:
            planner.rows = StepRows(self.model_runner)
        # The rows of a step are the same in all groups.
        planners[0].reads = self.reads

    def execute_model(self, scheduler_output: Any) -> Any:
        self._end(scheduler_output.finished_req_ids)
        return super().execute_model(scheduler_output)

    def _end(self, names: Iterable[str]) -> None:
        """Requests have ended: what each read is a line of the log."""
        for name in names:
            reads = None if self.reads is None else self.reads.end(name)
            if reads is not None:
                _LOG.info("keys read: %s", json.dumps({"request": name, **asdict(reads)}))

    def keys_read(self) -> dict[str, Any]:
        """What decode queries have read, in all and by running request, for `collective_rpc`."""
        assert self.reads is not None
        running = {name: asdict(reads) for name, reads in self.reads.running.items()}
        layers = {"sparse_layers": self.reads.sparse, "dense_layers": self.reads.dense}
        return {"total": asdict(self.reads.total), "running": running, **layers}


def attention_layers(model: nn.Module) -> dict[str, tuple[Any, nn.Module]]:
    """The layers that attend, by the engine's names and in the model's order, and their parents."""
    return {
        child.layer_name: (child, parent)
        for parent in model.modules()
        for child in parent.children()
        if isinstance(child, Attention)
    }
