"""Sweeps that vLLM decodes in this process: what is refused, and one engine a backend.

The engine is stepped one by one; a row that ends becomes a trace. What a row read comes from the
counts of our worker. Nothing of vLLM is imported before an engine is made.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attention import Backend
from attention.contract import Full
from attention.errors import InvalidValue
from attention.methods import get as method
from attention.spec import Spec
from experiments.grid import models, positions
from experiments.grid.config import Config
from experiments.grid.experiment import Experiment
from experiments.grid.gguf_files import PACKAGED, is_gguf
from experiments.store import manifest
from experiments.store.samples.replay import continues_after_verdict
from experiments.sweep.decoder import (
    DecodeJob,
    JobEnd,
    Prepared,
    RowFailure,
    RowTrace,
    StepCount,
    WorkerPlace,
    is_out_of_memory,
    is_own_mistake,
    message,
)
from experiments.sweep.executors.contract import Here, Report
from lil import Trace, token_bytes
from lil.compression.curves import token_curve
from lil.decoding.entry import eos_ids
from lil.serving.blocks.policies import POLICIES, BlockPolicy
from lil.serving.values import PENALTIES, penalty_keys, penalty_of
from lil.trace import Cost

if TYPE_CHECKING:
    import vllm

    from lil.penalties import Penalty

#: Tokens of a block are a multiple of it in the engine's kernel for CPUs.
BLOCK = 32
#: Bytes of the engine's cache, unless its own variable says how many GiB; rows beyond them wait.
CACHE, SPACE = 2**30, "VLLM_CPU_KVCACHE_SPACE"
_PROCESSOR, _SPARSE = "lil.serving.vllm:{}", "lil.serving.vllm.sparse.processor:Attention"


def policy_of(backend: Backend) -> BlockPolicy | None:
    """The policy of a backend over the engine's blocks; None for full attention."""
    if type(backend) is Full:
        return None
    kind = POLICIES.get(backend.name)
    if kind is None or type(backend) is not kind.kind:
        known = ["full", *POLICIES]
        raise InvalidValue("backend", backend.name, f"{', '.join(known)} under vllm", known)
    size, grain = BLOCK, kind.grain
    if grain is not None:
        size = int(getattr(getattr(backend, "parts", backend), grain))
        if size % BLOCK:
            allowed = f"a multiple of {BLOCK} under vllm, for its kernel on CPUs"
            raise InvalidValue(grain, size, allowed)
    return kind(backend, size)


def request_values(penalties: Sequence[Penalty]) -> dict[str, Any]:
    """The values of a request with these penalties; a penalty no request can have is refused."""
    values: dict[str, Any] = {}
    for penalty in penalties:
        kind = type(penalty)
        if kind not in PENALTIES:
            known = [penalty.name for penalty in PENALTIES]
            raise InvalidValue("penalty", penalty.name, f"{', '.join(known)} under vllm", known)
        params = {key: getattr(penalty, name) for key, name in penalty_keys(kind).items()}
        if penalty_of(kind, params) != penalty:
            raise InvalidValue("penalty", str(penalty), "parameters that a request can give")
        values |= params
    return values


@dataclass(frozen=True)
class ServedModel:
    """What is the same for all engines of a model: `longest` counts a prompt and its output."""

    source: models.ModelSource
    rows: int
    longest: int
    positions: int | None
    check_every: int
    table: Sequence[bytes]
    eos: frozenset[int]
    penalties: Sequence[str]  # names of the classes that requests ask for

    def piece(self, token: int) -> bytes:
        """Bytes of a token; embeddings are often padded beyond the tokenizer's last id."""
        return self.table[token] if token < len(self.table) else b""


@dataclass
class _Row:
    """A request at work; `request` is the engine's own."""

    index: int
    prompt: Sequence[int]
    request: Any
    computed: int = 0
    prefill_sec: float = 0.0
    decode_sec: float = 0.0
    costs: list[Cost] = field(default_factory=list)


class VLLMEngine:
    """vLLM with full attention, or with a method that `policy_of` knows."""

    def __init__(self, model: ServedModel, backend: Backend) -> None:
        self.backend, self._model = backend, model
        self._full = type(backend) is Full
        # What reads everything is counted too, as a window as wide as all there is.
        served: Backend = method("window", budget=model.longest) if self._full else backend
        policy = policy_of(served)
        assert policy is not None
        self._policy: BlockPolicy = policy
        self._llm = _llm(model, str(Spec(served.name, served.params())), policy.block)
        core: Any = self._llm.llm_engine.engine_core
        self._scheduler = core.engine_core.scheduler
        groups = self._scheduler.kv_cache_config.kv_cache_groups
        if len(groups) != 1:
            self.close()
            raise InvalidValue("model", model.source.name, "one whose layers hold the same keys")
        spec = groups[0].kv_cache_spec
        counts = self._llm.collective_rpc("keys_read")[0]
        self._sparse, self._dense = counts["sparse_layers"], counts["dense_layers"]
        self._heads = int(spec.num_kv_heads)
        size = policy.size(spec.head_size) if policy.best else 0
        #: Keys' worth of a block's summary, and bytes of a block in all layers.
        self._summary = size / spec.head_size
        summaries = self._sparse * self._heads * size * 4  # float32
        self._block_bytes = spec.page_size_bytes * (self._sparse + self._dense) + summaries
        # One block of the cache is nobody's; the engine starts only where its longest row fits.
        self._cache_blocks = self._scheduler.kv_cache_config.num_blocks - 1
        engine, threads = manifest.runtime("vllm"), torch.get_num_threads()
        self.place: WorkerPlace = {"engine": engine, "threads": threads, "compile": "off"}

    def close(self) -> None:
        """End the engine."""
        self._llm.llm_engine.engine_core.shutdown()

    def decode(self, job: DecodeJob) -> Generator[StepCount | RowTrace | RowFailure, None, None]:
        """Each row of a job as it ends, and what a step chose."""
        extra = request_values(job.penalties) | ({"attention": "full"} if self._full else {})
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        waiting, rows = deque(enumerate(job.requests)), dict[str, _Row]()
        # As many as the cache has room for, so that no row is put back and reads its keys twice.
        fitting = max(1, self._cache_blocks // self._blocks(self._model.longest))
        together = min(len(waiting), self._model.rows, fitting)
        while waiting or rows:
            while waiting and len(rows) < together:
                index, request = waiting.popleft()
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
                name = self._llm.llm_engine.add_request(str(index), prompt, params)
                rows[name] = _Row(index, request.prompt_ids, self._scheduler.requests[name])
            yield from self._step(rows, together)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._policy.block)

    def _step(
        self, rows: dict[str, _Row], together: int
    ) -> Iterator[StepCount | RowTrace | RowFailure]:
        """A step of the engine, its seconds shared out by the tokens that each row had in it."""
        before = {name: row.request.num_output_tokens for name, row in rows.items()}
        begun = time.perf_counter()
        self._llm.llm_engine.step()
        seconds = time.perf_counter() - begun
        new = {name: row.request.num_computed_tokens - row.computed for name, row in rows.items()}
        total = max(1, sum(new.values()))
        chosen, counts, ended = 0, None, []
        for name, row in list(rows.items()):
            share = seconds * new[name] / total
            if before[name]:
                row.decode_sec += share
            else:
                row.prefill_sec += share
            row.computed += new[name]
            tokens, is_over = row.request.num_output_tokens, row.request.is_finished()
            chosen += tokens - before[name]
            if tokens > before[name] and (is_over or tokens % self._model.check_every == 0):
                counts = counts or self._llm.collective_rpc("keys_read")[0]
                row.costs.append(self._cost(row, tokens, counts["running"].get(name, {})))
            if is_over:
                del rows[name]
                ended.append(self._ended(row, together))
        yield StepCount(chosen)
        yield from ended

    def _cost(self, row: _Row, tokens: int, counts: Mapping[str, int]) -> Cost:
        """What the engine counted of a row, whose counts are empty before its first decode step."""
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
        # The curve counts the end of text as a token that is no text.
        text = [*pieces[:-1], b"" if is_eos else pieces[-1]]
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
            curve=tuple(token_curve(text, model.check_every)),
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


def _llm(model: ServedModel, text: str, block: int) -> vllm.LLM:
    """An engine in this process."""
    options: dict[str, Any] = {
        "tokenizer_revision": model.source.revision,
        "revision": model.source.revision,
        "dtype": "float32",
        "max_model_len": model.longest,
        "max_num_seqs": model.rows,
        "block_size": block,
        "worker_cls": "lil.serving.vllm.sparse.worker.CPUWorker",
        "logits_processors": [*map(_PROCESSOR.format, model.penalties), _SPARSE],
        "additional_config": {"lil": {"attention": text}},
        "distributed_executor_backend": "uni",
        "gpu_memory_utilization": 0.1,  # of the machine's memory, which it wants to see free
        # A step at a time, each with all that was chosen before it; no row reads another's keys.
        "enforce_eager": True,
        "async_scheduling": False,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if SPACE not in os.environ:
        options["kv_cache_memory_bytes"] = CACHE
    # What the engine reads as it starts: no process of its own, and no line on stdout.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        from vllm import LLM

        return LLM(model.source.location, **options)
    except InvalidValue:
        raise
    except Exception as error:  # whatever a foreign model makes of it
        allowed = f"a model that vLLM starts with under {text} ({message(error)})"
        raise InvalidValue("model", model.source.name, allowed) from error


#: What an estimate cannot know.
MEMORY = (
    "memory is what lil.decode would take: under vllm every method holds blocks of all its tokens"
)
NOT_HERE = "vLLM is not installed here: the sweep needs it (docs/serving.md)"


def is_installed() -> bool:
    """Whether the engine, which is not imported, is installed."""
    return importlib.util.find_spec("vllm") is not None


def require_installed() -> None:
    """Refuse the runtime where the engine is not installed."""
    if not is_installed():
        allowed = "transformers; vllm where vLLM 0.32 is installed (docs/serving.md)"
        raise InvalidValue("runtime", "vllm", allowed)


def require_decodable(config: Config) -> None:
    """Refuse what the engine cannot do, or where nobody has compared its tokens."""
    here = "under vllm, which decodes in this process"
    allowed = {
        "dtype": (("float32",), "float32: no other was compared"),
        "weights": (("stored",), "stored under vllm"),
        "device": (("auto", "cpu"), "auto or cpu: a sweep decodes by vLLM's CPU build alone"),
        "engine": (("auto",), "auto: kernels are vLLM's own"),
        "compile": (("off", "auto"), "off or auto: vLLM runs eagerly here"),
        "workers": ((1,), f"1 {here}"),
        "temperature": ((0,), "0: vLLM draws by random numbers of its own"),
        "beyond_positions": ((False,), "false: vLLM ends a request where the model's positions do"),
    }
    for key, (values, text) in allowed.items():
        if getattr(config, key) not in values:
            raise InvalidValue(key, getattr(config, key), text)
    if config.batch_size == "auto":
        raise InvalidValue("batch_size", "auto", "a number: vLLM has memory of its own for keys")
    for name in config.models:
        if name in PACKAGED or is_gguf(name):
            raise InvalidValue("model", name, "no GGUF file under vllm")


def require_compared(experiment: Experiment) -> None:
    """Refuse methods, penalties and detectors that the engine cannot run."""
    for backend in experiment.backends:
        policy_of(backend)
        for name, source in experiment.sources.items():
            if backend.dense_layers >= (layers := positions.layers(source)):
                allowed = f"fewer than the {layers} layers of {name}"
                raise InvalidValue("dense_layers", backend.dense_layers, allowed)
    for penalties in experiment.penalties:
        request_values(penalties)
    for detector in experiment.detectors:
        if detector.signals:
            text = "one that reads tokens alone: vLLM shows no hidden states"
            raise InvalidValue("detector", detector.name, text)
        if continues_after_verdict(detector):
            text = "stop, which is replayed: under vllm nothing is generated after a verdict"
            raise InvalidValue("action", detector.action.name, text)


@contextmanager
def opened(prepared: Prepared, source: models.ModelSource) -> Iterator[OnVLLM]:
    """The engine's executor; its engine is gone when the block ends."""
    prepared.shelf.clear()
    experiment = prepared.experiment
    config, tokenizer = experiment.config, models.load_tokenizer(source)
    cap = max(config.full_cap, config.sparse_cap(config.full_cap))
    prompts = (ids for (model, *_), ids in experiment.prompts.items() if model == source.name)
    longest, most = cap + max(map(len, prompts)), positions.positions(source)
    ends = eos_ids(SimpleNamespace(generation_config=positions.generation(source)), tokenizer)
    longest = longest if most is None else min(longest, most)
    table, rows = token_bytes(tokenizer), config.rows
    kinds = sorted({type(penalty).__name__ for own in experiment.penalties for penalty in own})
    model = ServedModel(source, rows, longest, most, config.check_every, table, ends, kinds)
    executor = OnVLLM(model)
    try:
        yield executor
    finally:
        executor.close()


class OnVLLM(Here):
    """Decodes here, a job at a time, with the engine of its backend."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__()
        self._model = model
        self._engine: VLLMEngine | None = None

    def wait(self, report: Report) -> None:
        """Decode the job; where the engine fails, the rows that have not ended fail with it."""
        job = self.taken()
        left = [*range(len(job.requests))]
        with closing(self._engine_of(job.backend).decode(job)) as events:
            while left:
                try:
                    event = next(events)
                except Exception as error:  # whatever it is, it must not end the sweep
                    if is_own_mistake(error, job):
                        raise
                    failure = error.with_traceback(None)
                    break
                if not isinstance(event, StepCount):
                    left.remove(event.index)
                report(0, event)
        if left:
            self.close()  # nobody knows what state it is in
            status = "out_of_memory" if is_out_of_memory(failure) else "error"
            for row in left:
                report(0, RowFailure(row, status, message(failure), len(job.requests)))
        report(0, JobEnd())

    def _engine_of(self, backend: Backend) -> VLLMEngine:
        if self._engine is None or self._engine.backend != backend:
            self.close()
            self._engine = VLLMEngine(self._model, backend)
            self.place = self._engine.place
        return self._engine

    def close(self) -> None:
        """Let the engine go."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
