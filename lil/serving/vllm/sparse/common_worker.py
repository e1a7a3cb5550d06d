"""What the workers for CPUs and GPUs share: they make the layers of their model sparse."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionBackend, AttentionType
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu_worker import Worker

from attention.errors import InvalidValue
from lil.serving.blocks import BlockPolicy, ReadCounts
from lil.serving.vllm.sparse.cache import GivenBackSpec, KeptSpec
from lil.serving.vllm.sparse.planner import StepPlanner
from lil.serving.vllm.sparse.rows import ReadLog, StepRows
from lil.serving.vllm.sparse.settings import policy_for, settings_of
from lil.serving.vllm.sparse.turning import RopeTables
from lil.serving.vllm.values import ATTENTION_FILE

_LOG = init_logger("vllm.lil.sparse")


class SparseWorker(Worker):
    """A worker of vLLM whose model has sparse layers; it stands before that of a platform.

    Raises:
        InvalidValue: a policy that cannot be kept, or an engine or a model in which it cannot work.
    """

    #: Of sparse layers.
    backend: ClassVar[type[AttentionBackend]]

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self.policy: BlockPolicy = policy_for(vllm_config)
        #: Layers that are sparse, by the engine's names.
        self.sparse_layers: dict[str, Attention] = {}
        self.reads: ReadLog | None = None
        self._file = settings_of(vllm_config).get(ATTENTION_FILE)
        super().__init__(vllm_config, *args, **kwargs)

    def check_layer(self, layer: Any) -> None:
        """Refuse a layer whose own attention is not the one that is made sparse.

        Args:
            layer: of the engine.

        Raises:
            InvalidValue: it is another.
        """

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
        if not self.sparse_layers:
            allowed = f"fewer than the model's {len(layers)} layers, some of which see everything"
            raise InvalidValue("dense_layers", dense, allowed)
        counts = ReadCounts(
            self.policy, len(self.sparse_layers), len(layers) - len(self.sparse_layers)
        )
        self.reads = ReadLog(counts, self._file)
        _LOG.info("%s in %d of %d layers", self.policy.method, len(self.sparse_layers), len(layers))

    def get_kv_cache_spec(self) -> dict[str, Any]:
        found: dict[str, Any] = super().get_kv_cache_spec()
        for name, spec in found.items():
            if type(spec) is FullAttentionSpec:
                back = self.policy.gives_back and name in self.sparse_layers
                found[name] = (GivenBackSpec if back else KeptSpec).of(spec, self.policy)
        return found

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        rows = StepRows(self.model_runner)
        builders = [
            one.get_metadata_builder() for of in self.model_runner.attn_groups for one in of
        ]
        ours = [one for one in builders if isinstance(one, StepPlanner)]
        for builder in ours:
            builder.rows = rows
        # The rows of a step are the same in all groups.
        ours[0].reads = self.reads

    def execute_model(self, scheduler_output: Any) -> Any:
        if self.reads is not None:
            self.reads.end(scheduler_output.finished_req_ids)
        return super().execute_model(scheduler_output)

    def shutdown(self) -> None:
        if self.reads is not None:
            self.reads.end(list(self.reads.counts.running))
        super().shutdown()

    def keys_read(self) -> dict[str, Any]:
        """What decode queries have read, for `collective_rpc`: of all, and of each that runs; and
        in how many layers.
        """
        assert self.reads is not None
        counts = self.reads.counts
        running = {name: asdict(one) for name, one in counts.running.items()}
        layers = {"sparse_layers": counts.sparse, "dense_layers": counts.dense}
        return {"total": asdict(counts.total), "running": running, **layers}


def attention_layers(model: nn.Module) -> dict[str, tuple[Any, nn.Module]]:
    """The layers that attend, by the engine's names and in the model's order, and their parents."""
    found: dict[str, tuple[Any, nn.Module]] = {}
    for parent in model.modules():
        for child in parent.children():
            if isinstance(child, Attention):
                found[child.layer_name] = (child, parent)
    return found
