"""Many short requests through one vLLM engine with sparse attention: whether any of it is lost.

    PYTHONPATH=. .venv-vllm/bin/python scripts/checks/check_vllm_churn.py
    PYTHONPATH=. .venv-vllm/bin/python scripts/checks/check_vllm_churn.py --no-prefix-caching \\
        --attention 'sink(budget=96, sinks=32, positions="absolute")'

The reasoner that ships answers its own problems. A quarter of the requests is read in full, and one
in eight is aborted at a random step. Requests come in rounds. In the first half of a round all that
run at once fit in the cache; in the second half they do not, and the engine has to put some back.

After each round the engine is idle, and is asked for the blocks of its cache that are free, for all
tables in which it and our worker know requests, for the bytes that are remembered of blocks, and
for its resident memory. Exit code 1 if a block is missing, if a table is not empty, if what is
remembered of blocks has grown, if memory has grown by more than `--growth` MiB from the round in
which a fifth of the requests was done to the last, or if no request was aborted, or none was put
back, which would prove nothing.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from attention.errors import InvalidValue  # noqa: E402

if TYPE_CHECKING:
    import vllm

#: Tokens of a block, requests that run at once, and tokens of a step at most.
BLOCK, PLACES, PIECE = 32, 16, 64
#: Rounds at least: memory is compared from a fifth of the requests on.
ROUNDS = 5
#: Of requests: read in full, and aborted within so many steps.
IN_FULL, ABORTED, WITHIN = 0.25, 0.125, 40
#: Tokens of an output where the cache has room for all, and where it has not.
FEW, MANY = (1, 32), (64, 160)
#: What ends a request that was not aborted, by the engine's metrics.
ENDED = ("stop", "length")


@dataclass(frozen=True)
class IdleState:
    """What an idle engine holds.

    Args:
        requests: sent so far.
        aborted: of them.
        ended: of them, by the engine's metrics.
        put_back_with_room, put_back_without: by the engine's metrics, in first and second halves.
        free: blocks of the cache.
        summaries: bytes of what is remembered of blocks.
        resident: MiB of the process.
        tables: entries of each table of requests.
        seconds: since the first request.
    """

    requests: int
    aborted: int
    ended: int
    put_back_with_room: int
    put_back_without: int
    free: int
    summaries: int
    resident: float
    tables: dict[str, int]
    seconds: float


def growth(states: Sequence[IdleState]) -> float:
    """MiB by which memory grew after a fifth of the requests.

    Args:
        states: of the engine, round by round.
    """
    settled = next(one for one in states if one.requests * ROUNDS >= states[-1].requests)
    return states[-1].resident - settled.resident


def troubles(free: int, states: Sequence[IdleState], most: float) -> list[str]:
    """What was lost, or not shown, a sentence each.

    Args:
        free: blocks before the first request.
        states: of the engine, round by round.
        most: MiB by which memory may grow.
    """
    found = []
    for one in states:
        after = f"after {one.requests:,} requests"
        if one.free != free:
            found.append(f"{after} {one.free} blocks are free, not {free}")
        left = {name: count for name, count in one.tables.items() if count}
        found += [f"{after} {count} are left in {name}" for name, count in left.items()]
        if one.ended + one.aborted != one.requests:
            found.append(f"{after} {one.ended} have ended and {one.aborted} were aborted")
        if one.summaries != states[0].summaries:
            found.append(f"{after} {one.summaries:,} bytes are remembered of blocks, "
                         f"not {states[0].summaries:,}")  # fmt: skip
    last = states[-1]
    grown = growth(states)
    if grown > most:
        found.append(f"memory grew by {grown:.1f} MiB, more than {most:g}")
    if not last.aborted:
        found.append("no request was aborted: nothing is shown of those")
    if not last.put_back_without:
        found.append("no request was put back: nothing is shown of those")
    return found


class BusyEngine:
    """One vLLM, and the requests that it gets.

    Args:
        attention: the method of its layers.
        sharing: whether prefixes are shared.
        blocks: of its cache; None for three times what the longest request may hold.
        seed: of the requests.

    Attributes:
        free: blocks of the cache before the first request.

    Raises:
        InvalidValue: an engine that does not start, or a cache too small for one request.
    """

    def __init__(self, attention: str, sharing: bool, blocks: int | None, seed: int) -> None:
        from experiments.reasoner import checkpoint_path, problem
        from lil.serving.blocks import policy_of

        policy_of(attention, BLOCK)
        self._drawn = random.Random(seed)
        self._sent = self._aborted = self._steps = 0
        self._put_back = [0, 0]
        path = str(checkpoint_path())
        levels = ("easy", "medium", "hard")
        texts = [problem(level, "test", at).prompt for at in range(20) for level in levels]
        self._prompts = _encoded(path, texts)
        prompt = max(map(len, self._prompts))
        longest = -(-(prompt + MANY[1]) // BLOCK)
        self._llm = _llm(path, attention, sharing, blocks or 3 * longest + 1, BLOCK * longest)
        core: Any = self._llm.llm_engine.engine_core
        self._scheduler = core.engine_core.scheduler
        self._worker = core.engine_core.model_executor.driver_worker.worker
        self._pool = self._scheduler.kv_cache_manager.block_pool
        self.free: int = self._pool.get_num_free_blocks()
        groups = len(self._scheduler.kv_cache_config.kv_cache_groups)
        if self.free < groups * longest:
            self.close()
            allowed = f"at least {groups * longest + 1}, for one request"
            raise InvalidValue("blocks", self.free + 1, allowed)
        fit = self.free // (groups * -(-(prompt + FEW[1]) // BLOCK))
        self._halves = (min(fit, PLACES), FEW), (PLACES, MANY)
        self._begun = time.perf_counter()

    def close(self) -> None:
        """End it."""
        self._llm.llm_engine.engine_core.shutdown()

    def round(self, requests: int) -> IdleState:
        """Send so many, half with room for all and half without, and wait until all have ended."""
        for half, (together, tokens) in enumerate(self._halves):
            before = self._counted("vllm:num_preemptions")
            self._serve(requests // 2 + (half and requests % 2), together, tokens)
            self._put_back[half] += self._counted("vllm:num_preemptions") - before
        return self._idle()

    def _serve(self, left: int, together: int, tokens: tuple[int, int]) -> None:
        engine, drawn = self._llm.llm_engine, self._drawn
        running: set[str] = set()
        doomed: dict[str, int] = {}
        while left or running:
            while left and len(running) < together:
                left -= 1
                name = self._send(tokens)
                running.add(name)
                if drawn.random() < ABORTED:
                    doomed[name] = self._steps + drawn.randrange(WITHIN)
            running -= {one.request_id for one in engine.step() if one.finished}
            self._steps += 1
            for name in [name for name, step in doomed.items() if step < self._steps]:
                del doomed[name]
                if name in running:
                    self._abort(name)
                    running.remove(name)

    def _send(self, tokens: tuple[int, int]) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        drawn, name = self._drawn, f"request {self._sent}"
        params = SamplingParams(
            # Without a seed of its own: on CPUs vLLM 0.32 fails where the prompt of a request that
            # has one is read in pieces ("CPU Generator does not use offset").
            temperature=1.0,
            max_tokens=drawn.randint(*tokens),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={"attention": "full"} if drawn.random() < IN_FULL else None,
        )
        prompt = {"prompt_token_ids": list(drawn.choice(self._prompts))}
        self._llm.llm_engine.add_request(name, prompt, params)
        self._sent += 1
        return name

    def _abort(self, name: str) -> None:
        """Abort a request that runs; it counts as aborted once the scheduler knows it no more."""
        known = len(self._scheduler.requests)
        self._llm.llm_engine.abort_request([name])
        self._aborted += known - len(self._scheduler.requests)

    def _counted(self, name: str, reasons: Sequence[str] = ()) -> int:
        """A counter of the engine's metrics, of these reasons where any are named."""
        every = [one for one in self._llm.get_metrics() if one.name == name]
        assert every, name
        return sum(
            int(one.value)
            for one in every
            if not reasons or one.labels["finished_reason"] in reasons
        )

    def _idle(self) -> IdleState:
        # The worker is told of requests that have ended in the step after their last.
        self._llm.llm_engine.step()
        # What only waits for Python to look for circles has not leaked.
        gc.collect()
        layers = (layer.impl.summaries for layer in self._worker.sparse_layers.values())
        return IdleState(
            requests=self._sent,
            aborted=self._aborted,
            ended=self._counted("vllm:request_success", ENDED),
            put_back_with_room=self._put_back[0],
            put_back_without=self._put_back[1],
            free=self._pool.get_num_free_blocks(),
            summaries=sum(one.data.nbytes for one in layers if one is not None),
            resident=_resident(),
            tables=self._tables(),
            seconds=time.perf_counter() - self._begun,
        )

    def _tables(self) -> dict[str, int]:
        """Entries of all tables in which requests are known, ours and the engine's."""
        scheduler, worker = self._scheduler, self._worker
        runner, outputs = worker.model_runner, self._llm.llm_engine.output_processor
        found = {
            "the worker's counts": len(worker.reads.counts.running),
            "the runner's requests": len(runner.requests),
            "the runner's batch": runner.input_batch.num_reqs,
            "the scheduler's requests": len(scheduler.requests),
            "the scheduler's queue": len(scheduler.running) + len(scheduler.waiting),
            "what the worker was not told": len(scheduler.finished_req_ids),
            "the outputs' requests": len(outputs.request_states) + len(outputs.external_req_ids),
            "the pool's blocks in use": sum(
                block.ref_cnt > 0 for block in self._pool.blocks if not block.is_null
            ),
        }
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        for name in ("req_to_blocks", "num_cached_block", "told", "in_full"):
            found[f"the managers' {name}"] = sum(len(getattr(one, name)) for one in managers)
        return found


def _encoded(path: str, texts: Sequence[str]) -> list[list[int]]:
    from transformers import AutoTokenizer

    encoded: list[list[int]] = AutoTokenizer.from_pretrained(path)(list(texts)).input_ids
    return encoded


def _llm(path: str, attention: str, sharing: bool, blocks: int, longest: int) -> vllm.LLM:
    """An engine in this process, a step at a time.

    Raises:
        InvalidValue: it does not start.
    """
    from vllm import LLM

    try:
        return LLM(
            path,
            dtype="float32",
            max_num_seqs=PLACES,
            max_model_len=longest,
            # oneDNN keeps its kernels for each number of tokens of a step that it has seen, and
            # memory would grow until it has seen them all.
            max_num_batched_tokens=PIECE,
            enable_chunked_prefill=True,
            block_size=BLOCK,
            num_gpu_blocks_override=blocks,
            kv_cache_memory_bytes=2**29,
            gpu_memory_utilization=0.1,  # of the machine's memory, which it wants to see free
            enable_prefix_caching=sharing,
            worker_cls="lil.serving.vllm.sparse.worker.CPUWorker",
            logits_processors=["lil.serving.vllm.sparse.processor:Attention"],
            additional_config={"lil": {"attention": attention}},
            distributed_executor_backend="uni",
            enforce_eager=True,
            async_scheduling=False,
            disable_log_stats=False,  # what was put back is counted there
            use_tqdm_on_load=False,
        )
    except InvalidValue:
        raise
    except Exception as error:  # whatever the engine makes of it
        allowed = f"what vLLM starts with ({str(error).splitlines()[0] if str(error) else error!r})"
        raise InvalidValue("attention", attention, allowed) from error


def _resident() -> float:
    """MiB of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def shown(told: dict[str, Any], states: Sequence[IdleState]) -> None:
    """Print the rounds as a table, and what it comes to."""
    print(f"{told['attention']}, prefixes {'shared' if told['prefix_caching'] else 'not shared'}, "
          f"{told['free']} blocks")  # fmt: skip
    print(f"{'requests':>9}{'aborted':>9}{'put back':>9}{'room':>6}{'free':>6}{'left':>6}"
          f"{'MiB':>9}{'seconds':>9}")  # fmt: skip
    for one in states:
        print(f"{one.requests:>9,}{one.aborted:>9,}{one.put_back_without:>9,}"
              f"{one.put_back_with_room:>6,}{one.free:>6}{sum(one.tables.values()):>6}"
              f"{one.resident:>9.1f}{one.seconds:>9.1f}")  # fmt: skip
    print(f"memory grew by {told['growth_mib']:.1f} MiB after a fifth of the requests; "
          f"{told['requests_per_second']:.1f} requests a second")  # fmt: skip
    for line in told["troubles"]:
        print(line)
    print("something is lost" if told["troubles"] else "nothing is lost")


def main(argv: Sequence[str] | None = None) -> int:
    """Send, look, print; 0 if nothing is lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attention", default="quest(budget=64)", help="of the engine's layers")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1000, help="requests of a round")
    parser.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--growth", type=float, default=8.0, help="MiB that memory may grow by")
    parser.add_argument("--blocks", type=int, help="of the cache, with the one that is nobody's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    args = parser.parse_args(argv)
    for name, least in (("every", 2), ("requests", ROUNDS * max(args.every, 2)), ("blocks", 2)):
        value = getattr(args, name)
        if value is not None and value < least:
            parser.error(f"--{name} {value}: expected at least {least}")
    if not args.growth > 0:
        parser.error(f"--growth {args.growth}: expected a number above 0")
    if importlib.util.find_spec("vllm") is None:
        parser.error("vLLM is not installed here: scripts/vllm_env makes an environment with it")
    # Before it is imported: in this process, so that its tables and its memory can be looked at.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        engine = BusyEngine(args.attention, args.prefix_caching, args.blocks, args.seed)
    except InvalidValue as error:
        print(f"check_vllm_churn: {error}", file=sys.stderr)
        return 2
    states: list[IdleState] = []
    try:
        for start in range(0, args.requests, args.every):
            states.append(engine.round(min(args.every, args.requests - start)))
            last = states[-1]
            said = f"{last.requests:,} requests, {last.resident:.1f} MiB"
            print(said, file=sys.stderr, flush=True)
    finally:
        engine.close()
    told: dict[str, Any] = {
        "attention": args.attention,
        "prefix_caching": args.prefix_caching,
        "free": engine.free,
        "growth_mib": growth(states),
        "requests_per_second": states[-1].requests / states[-1].seconds,
        "troubles": troubles(engine.free, states, args.growth),
    }
    if args.json:
        print(json.dumps(told | {"rounds": [asdict(one) for one in states]}))
    else:
        shown(told, states)
    return 1 if told["troubles"] else 0


if __name__ == "__main__":
    sys.exit(main())
