"""One vLLM with one backend, its steps made one by one, and what comes of a row as our trace.

What a row read is taken from the counts of our worker. Nothing of vLLM is imported before an engine
is asked for.
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
_PROCESSORS = (
    *("lil.serving.vllm:LZPenalty", "lil.serving.vllm:DRYPenalty"),
    *("lil.serving.vllm:PresenceWindowPenalty", "lil.serving.vllm.sparse.processor:Attention"),
)


@dataclass(frozen=True)
class ServedModel:
    """What is the same for all engines of a model.

    Args:
        source: the model.
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


@dataclass
class _Row:
    """A request at work.

    Attributes:
        index: of the row in its job.
        request: the engine's own, which knows how far it is.
        blocks: of the cache kept free for it.
    """

    index: int
    prompt: Sequence[int]
    request: Any
    blocks: int
    computed: int = 0
    prefill_sec: float = 0.0
    decode_sec: float = 0.0
    costs: list[Cost] = field(default_factory=list)


class VLLMEngine:
    """vLLM with one backend.

    Args:
        model: what it serves.
        backend: full attention, or a method that `policy_of` knows.

    Raises:
        InvalidValue: it does not start, or layers do not all hold the same keys.
    """

    def __init__(self, model: ServedModel, backend: Backend) -> None:
        self.backend, self._model = backend, model
        self._whole = type(backend) is Full
        # What reads everything is counted too, as a window as wide as all there is.
        served: Backend = method("window", budget=model.longest) if self._whole else backend
        found = policy_of(served)
        assert found is not None
        self._policy: BlockPolicy = found
        self._llm = _llm(model, attention_text(served), found.block)
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
        size = self._policy.size(spec.head_size) if self._policy.best else 0
        #: Keys' worth of what is remembered of a block, and bytes of a block in all layers.
        self._worth = size / spec.head_size
        known = self._sparse * self._heads * size * 4  # float32
        self._block_bytes = spec.page_size_bytes * (self._sparse + self._dense) + known
        # One block of the cache is nobody's.
        self._room = self._scheduler.kv_cache_config.num_blocks - 1
        self.place: WorkerPlace = {
            "engine": manifest.runtime("vllm"),
            "device": "cpu",
            "device_name": manifest.device_name("cpu"),
            "threads": _threads(),
            "compile": "off",
        }

    def close(self) -> None:
        """End it."""
        self._llm.llm_engine.engine_core.shutdown()

    def _counts(self) -> Mapping[str, Any]:
        (found,) = self._llm.collective_rpc("keys_read")
        counts: Mapping[str, Any] = found
        return counts

    # ------------------------------------------------------------ at work

    def decode(
        self, job: DecodeJob, chosen: Sequence[int], together: int
    ) -> Generator[StepCount | RowTrace | RowFailure, None, None]:
        """Every row as it ends, and what each step chose.

        Args:
            job: what to decode.
            chosen: rows of it.
            together: rows that are decoded at a time.

        Raises:
            RuntimeError: the engine counted other steps than were made.
        """
        extra = request_values(job.penalties) | ({"attention": "full"} if self._whole else {})
        waiting = deque(chosen)
        rows: dict[str, _Row] = {}
        while waiting or rows:
            free = self._room - sum(row.blocks for row in rows.values())
            while waiting and len(rows) < together:
                request = job.requests[waiting[0]]
                blocks = self._blocks(len(request.prompt_ids) + (request.max_new_tokens or 0))
                # Kept free from the start, so that no row is put back and reads its keys twice.
                if blocks > free:
                    break
                free -= blocks
                name, theirs = self._add(waiting[0], request, extra)
                rows[name] = _Row(waiting.popleft(), request.prompt_ids, theirs, blocks)
            if rows:
                yield from self._step(rows, together)
            else:
                said = f"vLLM's cache is too small for it: {SPACE} gives it more GiB"
                yield RowFailure(waiting.popleft(), "out_of_memory", said, together)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._policy.block)

    def _add(self, index: int, request: Request, extra: Mapping[str, Any]) -> tuple[str, Any]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=request.max_new_tokens,
            # Which tokens end an output is said here, as it is known for every runtime.
            ignore_eos=True,
            stop_token_ids=sorted(self._model.eos),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=dict(extra),
        )
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        name = self._llm.llm_engine.add_request(str(index), prompt, params)
        return name, self._scheduler.requests[name]

    def _step(
        self, rows: dict[str, _Row], together: int
    ) -> Iterator[StepCount | RowTrace | RowFailure]:
        """One step of the engine, shared out by the tokens that each row had in it."""
        before = {name: row.request.num_output_tokens for name, row in rows.items()}
        begun = time.perf_counter()
        self._llm.llm_engine.step()
        seconds = time.perf_counter() - begun
        had = {name: row.request.num_computed_tokens - row.computed for name, row in rows.items()}
        every = sum(had.values())
        chosen, counts, done = 0, None, []
        for name, row in list(rows.items()):
            share = seconds * had[name] / every if every else 0.0
            if before[name]:
                row.decode_sec += share
            else:
                row.prefill_sec += share
            row.computed += had[name]
            tokens, ended = row.request.num_output_tokens, row.request.is_finished()
            chosen += tokens - before[name]
            if tokens > before[name] and (ended or tokens % self._model.check_every == 0):
                counts = self._counts()["running"] if counts is None else counts
                row.costs.append(self._cost(row, tokens, counts.get(name)))
            if ended:
                del rows[name]
                done.append(self._ended(row, together))
        yield StepCount(chosen)
        yield from done

    def _cost(self, row: _Row, tokens: int, counts: Mapping[str, int] | None) -> Cost:
        """What the engine counted of a row; nothing of one that made no decode step yet.

        Raises:
            RuntimeError: it counted other steps than were made.
        """
        queries, keys, of_full, compared = (
            (counts or {}).get(name, 0)
            for name in ("queries", "keys_read", "keys_of_full", "blocks_compared")
        )
        if queries != tokens - 1:
            raise RuntimeError(f"vLLM counted {queries} decode steps of {tokens - 1}")
        layers = self._sparse + self._dense
        dense = of_full / layers  # a step's keys of one layer that reads everything
        return Cost(
            tokens,
            (keys + compared * self._worth) * self._heads,
            self._blocks(max(1, len(row.prompt) + tokens - 1)) * self._block_bytes,
            row.decode_sec,
            (keys - dense * self._dense) / self._sparse,
            dense if self._dense else None,
        )

    def _ended(self, row: _Row, together: int) -> RowTrace | RowFailure:
        request, model = row.request, self._model
        ids = tuple(int(one) for one in request.output_token_ids)
        why = str(request.get_finished_reason())
        if why not in ("stop", "length") or not ids:
            return RowFailure(row.index, "error", f"vLLM ended it: {why}", together)
        finish = "eos" if ids[-1] in model.eos else "length"
        pieces = tuple(_piece(model.table, one) for one in ids)
        prompt, last = len(row.prompt), row.costs[-1]
        steps = len(ids) - 1
        read = self._most_read(prompt, steps)
        dense = last.dense_read_sum
        trace = Trace(
            prompt_ids=tuple(int(one) for one in row.prompt),
            new_ids=ids,
            prompt_bytes=b"".join(_piece(model.table, one) for one in row.prompt),
            pieces=pieces,
            finish=finish,
            evidence=None,
            curve=_curve(pieces, finish == "eos", model.check_every),
            checks=tuple(row.costs),
            # Without shared prefixes the engine gives no block back before a request ends.
            keys_kept_max=prompt + steps,
            keys_read_max=read,
            keys_read_mean=last.read_sum / steps if steps else None,
            dense_layer_keys_read_mean=None if dense is None or not steps else dense / steps,
            cache_bytes_peak=int(last.cache_bytes),
            prefill_sec=row.prefill_sec,
            decode_sec=row.decode_sec,
            positions=model.positions,
        )
        return RowTrace(row.index, trace, together)

    def _most_read(self, prompt: int, steps: int) -> int | None:
        """The most keys that a query of a sparse layer read: it follows from what it saw."""
        if not steps:
            return None
        return int(self._policy.tokens_read(prompt + 1 + np.arange(steps)).max())


def _piece(table: Sequence[bytes], token: int) -> bytes:
    """Bytes of a token; embeddings are often padded beyond the tokenizer's last id."""
    return table[token] if token < len(table) else b""


def _curve(pieces: Sequence[bytes], eos: bool, every: int) -> tuple[Point, ...]:
    """The compression curve of an output, whose `eos` is counted and is no text."""
    meter, points = Meter(), []
    for start in range(0, len(pieces), every):
        end = min(start + every, len(pieces))
        meter.feed(b"".join(pieces[start : end - (eos and end == len(pieces))]))
        points.append((end, meter.fed, meter.size()))
    return tuple(points)


# ---------------------------------------------------------------- starting


def _llm(model: ServedModel, text: str, block: int) -> vllm.LLM:
    """An engine in this process.

    Raises:
        InvalidValue: it does not start.
    """
    given: dict[str, Any] = {
        "tokenizer_revision": model.source.revision,
        "revision": model.source.revision,
        "dtype": "float32",
        "seed": 0,
        "max_model_len": model.longest,
        "max_num_seqs": model.rows,
        "block_size": block,
        "worker_cls": _WORKER,
        "logits_processors": list(_PROCESSORS),
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
        given["kv_cache_memory_bytes"] = CACHE
    with _environment():
        try:
            from vllm import LLM

            return LLM(model.source.location, **given)
        except InvalidValue:
            raise
        except Exception as error:  # whatever a foreign model makes of it
            allowed = f"a model that vLLM starts with under {text} ({message(error)})"
            raise InvalidValue("model", model.source.name, allowed) from error


@contextmanager
def _environment() -> Iterator[None]:
    """What the engine reads as it starts: no process of its own, and no word where a table goes."""
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())
