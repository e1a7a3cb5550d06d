"""One vLLM with one backend, stepped one by one; a row that ends becomes our trace.

What a row read is taken from the counts of our worker. Nothing of vLLM is imported before an engine
is made.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attention.contract import Full
from attention.errors import InvalidValue
from attention.methods import get as method
from experiments.grid import models
from experiments.store import manifest
from experiments.sweep.decoder import (
    DecodeJob,
    RowFailure,
    RowTrace,
    StepCount,
    WorkerPlace,
    message,
)
from experiments.sweep.executors.vllm_limits import attention_text, policy_of, request_values
from lil import Trace
from lil.compression.curves import Point
from lil.compression.meter import Meter
from lil.trace import Cost

if TYPE_CHECKING:
    import vllm

    from attention import Backend
    from lil import Request
    from lil.serving.blocks import BlockPolicy

#: Bytes of the engine's cache, unless its own variable says how many GiB; rows beyond them wait.
CACHE, SPACE = 2**30, "VLLM_CPU_KVCACHE_SPACE"

_WORKER = "lil.serving.vllm.sparse.worker.CPUWorker"
_PROCESSORS = [
    *(f"lil.serving.vllm:{name}" for name in ("LZPenalty", "DRYPenalty", "PresenceWindowPenalty")),
    "lil.serving.vllm.sparse.processor:Attention",
]


@dataclass(frozen=True)
class ServedModel:
    """What is the same for all engines of a model.

    Attributes:
        rows: decoded together at most.
        longest: tokens of a prompt and its output at most.
        positions: of the model, in tokens; None where its config names no number.
        check_every: generated tokens between the checks of a trace.
        table: bytes of each token id.
        eos: ids that end an output.
    """

    source: models.ModelSource
    rows: int
    longest: int
    positions: int | None
    check_every: int
    table: Sequence[bytes]
    eos: frozenset[int]

    def piece(self, token: int) -> bytes:
        """Bytes of a token; embeddings are often padded beyond the tokenizer's last id."""
        return self.table[token] if token < len(self.table) else b""


@dataclass
class _Row:
    """A request at work; `request` is the engine's own, `blocks` are kept free for it."""

    index: int
    prompt: Sequence[int]
    request: Any
    blocks: int
    computed: int = 0
    prefill_sec: float = 0.0
    decode_sec: float = 0.0
    costs: list[Cost] = field(default_factory=list)


class VLLMEngine:
    """vLLM with full attention, or with a method that `policy_of` knows.

    Raises:
        InvalidValue: it does not start, or layers do not all hold the same keys.
    """

    def __init__(self, model: ServedModel, backend: Backend) -> None:
        self.backend, self._model = backend, model
        self._full = type(backend) is Full
        # What reads everything is counted too, as a window as wide as all there is.
        served: Backend = method("window", budget=model.longest) if self._full else backend
        policy = policy_of(served)
        assert policy is not None
        self._policy: BlockPolicy = policy
        self._llm = _llm(model, attention_text(served), policy.block)
        core: Any = self._llm.llm_engine.engine_core
        self._scheduler = core.engine_core.scheduler
        groups = self._scheduler.kv_cache_config.kv_cache_groups
        if len(groups) != 1:
            self.close()
            raise InvalidValue("model", model.source.name, "one whose layers hold the same keys")
        spec = groups[0].kv_cache_spec
        counts = self._counts()
        self._sparse, self._dense = counts["sparse_layers"], counts["dense_layers"]
        self._heads = int(spec.num_kv_heads)
        size = policy.size(spec.head_size) if policy.best else 0
        #: Keys' worth of a block's summary, and bytes of a block in all layers.
        self._summary = size / spec.head_size
        summaries = self._sparse * self._heads * size * 4  # float32
        self._block_bytes = spec.page_size_bytes * (self._sparse + self._dense) + summaries
        # One block of the cache is nobody's.
        self._cache_blocks = self._scheduler.kv_cache_config.num_blocks - 1
        import torch

        self.place: WorkerPlace = {
            "engine": manifest.runtime("vllm"),
            "device": "cpu",
            "device_name": manifest.device_name("cpu"),
            "threads": torch.get_num_threads(),
            "compile": "off",
        }

    def close(self) -> None:
        """End it."""
        self._llm.llm_engine.engine_core.shutdown()

    def _counts(self) -> Mapping[str, Any]:
        counts: Mapping[str, Any] = self._llm.collective_rpc("keys_read")[0]
        return counts

    def decode(
        self, job: DecodeJob, indices: Sequence[int], together: int
    ) -> Generator[StepCount | RowTrace | RowFailure, None, None]:
        """Every row as it ends, and what each step chose.

        Args:
            indices: rows of the job.
            together: rows that are decoded at a time.

        Raises:
            RuntimeError: the engine counted other steps than were made.
        """
        extra = request_values(job.penalties) | ({"attention": "full"} if self._full else {})
        waiting = deque(indices)
        rows: dict[str, _Row] = {}
        while waiting or rows:
            free = self._cache_blocks - sum(row.blocks for row in rows.values())
            while waiting and len(rows) < together:
                request = job.requests[waiting[0]]
                blocks = self._blocks(len(request.prompt_ids) + (request.max_new_tokens or 0))
                # Kept free from the start, so that no row is put back and reads its keys twice.
                if blocks > free:
                    break
                free -= blocks
                name = self._add(waiting[0], request, extra)
                engines = self._scheduler.requests[name]
                rows[name] = _Row(waiting.popleft(), request.prompt_ids, engines, blocks)
            if rows:
                yield from self._step(rows, together)
            else:
                text = f"vLLM's cache is too small for it: {SPACE} gives it more GiB"
                yield RowFailure(waiting.popleft(), "out_of_memory", text, together)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._policy.block)

    def _add(self, index: int, request: Request, extra: Mapping[str, Any]) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=request.max_new_tokens,
            # The tokens that end an output are the same for every runtime.
            ignore_eos=True,
            stop_token_ids=sorted(self._model.eos),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=dict(extra),
        )
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        name: str = self._llm.llm_engine.add_request(str(index), prompt, params)
        return name

    def _step(
        self, rows: dict[str, _Row], together: int
    ) -> Iterator[StepCount | RowTrace | RowFailure]:
        """One step of the engine, shared out by the tokens that each row had in it."""
        before = {name: row.request.num_output_tokens for name, row in rows.items()}
        begun = time.perf_counter()
        self._llm.llm_engine.step()
        seconds = time.perf_counter() - begun
        new = {name: row.request.num_computed_tokens - row.computed for name, row in rows.items()}
        total = sum(new.values())
        chosen, counts, ended = 0, None, []
        for name, row in list(rows.items()):
            share = seconds * new[name] / total if total else 0.0
            if before[name]:
                row.decode_sec += share
            else:
                row.prefill_sec += share
            row.computed += new[name]
            tokens, is_over = row.request.num_output_tokens, row.request.is_finished()
            chosen += tokens - before[name]
            if tokens > before[name] and (is_over or tokens % self._model.check_every == 0):
                counts = self._counts()["running"] if counts is None else counts
                row.costs.append(self._cost(row, tokens, counts.get(name, {})))
            if is_over:
                del rows[name]
                ended.append(self._ended(row, together))
        yield StepCount(chosen)
        yield from ended

    def _cost(self, row: _Row, tokens: int, counts: Mapping[str, int]) -> Cost:
        """What the engine counted of a row; nothing of one that made no decode step yet."""
        queries, keys = counts.get("queries", 0), counts.get("keys_read", 0)
        if queries != tokens - 1:
            raise RuntimeError(f"vLLM counted {queries} decode steps of {tokens - 1}")
        compared = counts.get("blocks_compared", 0)
        # The steps' keys of a layer that reads everything.
        dense = counts.get("keys_of_full", 0) / (self._sparse + self._dense)
        return Cost(
            tokens,
            (keys + compared * self._summary) * self._heads,
            self._blocks(max(1, len(row.prompt) + tokens - 1)) * self._block_bytes,
            row.decode_sec,
            (keys - dense * self._dense) / self._sparse,
            dense if self._dense else None,
        )

    def _ended(self, row: _Row, together: int) -> RowTrace | RowFailure:
        request, model = row.request, self._model
        ids = tuple(map(int, request.output_token_ids))
        reason = str(request.get_finished_reason())
        if reason not in ("stop", "length") or not ids:
            return RowFailure(row.index, "error", f"vLLM ended it: {reason}", together)
        is_eos = ids[-1] in model.eos
        pieces = tuple(map(model.piece, ids))
        prompt, steps, last = len(row.prompt), len(ids) - 1, row.costs[-1]
        seen = prompt + 1 + np.arange(steps)
        dense = last.dense_read_sum
        trace = Trace(
            prompt_ids=tuple(map(int, row.prompt)),
            new_ids=ids,
            prompt_bytes=b"".join(map(model.piece, row.prompt)),
            pieces=pieces,
            finish="eos" if is_eos else "length",
            evidence=None,
            curve=_curve(pieces, is_eos, model.check_every),
            checks=tuple(row.costs),
            # Without shared prefixes the engine gives no block back before a request ends.
            keys_kept_max=prompt + steps,
            keys_read_max=int(self._policy.tokens_read(seen).max()) if steps else None,
            keys_read_mean=last.read_sum / steps if steps else None,
            dense_layer_keys_read_mean=None if dense is None or not steps else dense / steps,
            cache_bytes_peak=int(last.cache_bytes),
            prefill_sec=row.prefill_sec,
            decode_sec=row.decode_sec,
            positions=model.positions,
        )
        return RowTrace(row.index, trace, together)


def _curve(pieces: Sequence[bytes], eos: bool, every: int) -> tuple[Point, ...]:
    """The compression curve of an output, whose `eos` is counted and is no text."""
    meter, points = Meter(), []
    for start in range(0, len(pieces), every):
        end = min(start + every, len(pieces))
        meter.feed(b"".join(pieces[start : end - (eos and end == len(pieces))]))
        points.append((end, meter.fed, meter.size()))
    return tuple(points)


def _llm(model: ServedModel, text: str, block: int) -> vllm.LLM:
    """An engine in this process."""
    options: dict[str, Any] = {
        "tokenizer_revision": model.source.revision,
        "revision": model.source.revision,
        "dtype": "float32",
        "seed": 0,
        "max_model_len": model.longest,
        "max_num_seqs": model.rows,
        "block_size": block,
        "worker_cls": _WORKER,
        "logits_processors": _PROCESSORS,
        "additional_config": {"lil": {"attention": text}},
        "distributed_executor_backend": "uni",
        "gpu_memory_utilization": 0.1,  # of the machine's memory, which it wants to see free
        # A step at a time, each with all that was chosen before it; no row reads another's keys.
        "enforce_eager": True,
        "async_scheduling": False,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "trust_remote_code": False,
    }
    if SPACE not in os.environ:
        options["kv_cache_memory_bytes"] = CACHE
    with _environment():
        try:
            from vllm import LLM

            return LLM(model.source.location, **options)
        except InvalidValue:
            raise
        except Exception as error:  # whatever a foreign model makes of it
            allowed = f"a model that vLLM starts with under {text} ({message(error)})"
            raise InvalidValue("model", model.source.name, allowed) from error


@contextmanager
def _environment() -> Iterator[None]:
    """What the engine reads as it starts: no process of its own, and no line on stdout."""
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
