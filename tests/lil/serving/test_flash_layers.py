"""The form for GPUs against attention over what each policy chooses, put together in float64.

With LIL_TEST_DEVICE=cuda over FlashAttention's own kernel in bfloat16, and with torch's debug mode
in which whatever waits for the device raises; `scripts/gpu_check` runs it so. Elsewhere in float32
over the kernel's description.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paged_flash import Metadata, Paged, kernel_of, layer_of
from test_serving_blocks import always_and_gap, text

from attention.errors import InvalidValue
from lil.serving.blocks.plans import WHOLE, StepReads, queries
from lil.serving.blocks.policies import policy_of
from lil.serving.blocks.ropes import RopeTable

DEVICE = os.environ.get("LIL_TEST_DEVICE", "cpu")
DTYPE, ROUNDING = (torch.float32, 1e-4) if DEVICE == "cpu" else (torch.bfloat16, 3e-2)
BLOCK, HKV, G, D, POOL, CHUNK = 16, 2, 3, 64, 26, 24
RATES = 0.3 ** torch.arange(D // 2, dtype=torch.float64) + 1e-3
ANGLES = torch.arange(200, dtype=torch.float64)[:, None] * RATES
ROPE = RopeTable(torch.cat((ANGLES.cos(), ANGLES.sin()), dim=-1).float().to(DEVICE), halves=True)

INFLLM = {"budget": 64, "n_init": 16, "n_local": 10, "topk": 1, "block": 16, "repr_topk": 16}
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "sink": ("sink", {"budget": 41, "sinks": 16}),
    "window": ("window", {"budget": 37}),
    "quest": ("quest", {"budget": 48}),
    "quest, max": ("quest", {"budget": 32, "gqa": '"max"'}),
    "infllm": ("infllm", INFLLM),
    "infllm, heads": ("infllm", INFLLM | {"selection": '"kv_head"'}),
}


@dataclass
class Request:
    """A prompt, the tokens that are known at first, and all tokens that there will be."""

    prompt: int
    known: int
    end: int
    whole: bool = False
    past: int = 0
    owned: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        shapes = ((self.end, HKV * G, D), (self.end, HKV, D), (self.end, HKV, D))
        self.q, self.k, self.v = (torch.randn(shape).to(DEVICE, DTYPE) for shape in shapes)
        self.out = torch.zeros_like(self.q)


def requests() -> list[Request]:
    """Ragged: short and long prompts, one in full, one put back; the last come into used blocks."""
    return [
        Request(70, 70, 84),
        Request(5, 5, 12),
        Request(20, 61, 70),  # generated tokens are read again next to those of the prompt
        Request(50, 50, 66, whole=True),
        Request(33, 33, 99),
        Request(64, 64, 90),
    ]


def step_of(rows: list[Request], new: Any, policy: Any) -> Metadata:
    """What the engine's builder and the plan say of a step."""
    past = np.array([request.past for request in rows])
    owned = torch.zeros(len(rows), max(len(r.owned) for r in rows), dtype=torch.int32)
    for row, request in enumerate(rows):
        owned[row, : len(request.owned)] = torch.tensor(request.owned)
    owned = owned.to(DEVICE)
    prompts = np.array([WHOLE if request.whole else request.prompt for request in rows])
    step = queries(policy, past, new, prompts)
    reads = StepReads.planned(policy, step, past, new, owned, HKV)
    full, count, lengths = step.in_full(past)
    slots = [
        request.owned[position // BLOCK] * BLOCK + position % BLOCK
        for request, more in zip(rows, new, strict=True)
        for position in range(request.past, request.past + more)
    ]
    starts = np.r_[0, np.cumsum(count)].astype(np.int32)
    return Metadata(
        **vars(reads),
        num_actual_tokens=int(new.sum()),
        query_start_loc=torch.from_numpy(starts).to(DEVICE),
        seq_lens=torch.from_numpy(lengths.astype(np.int32)).to(DEVICE),
        max_query_len=int(count.max(initial=0)),
        max_seq_len=int(lengths.max(initial=0)),
        block_table=owned[torch.from_numpy(full).to(DEVICE)],
        slot_mapping=torch.tensor([*slots, -1], device=DEVICE),  # and one of padding
    )


@contextmanager
def no_waiting(steps: int) -> Iterator[None]:
    """Whatever waits for the device raises, once the first steps have compiled their kernels."""
    if DEVICE == "cpu" or steps < 4:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def serve(policy: Any, layer: Paged) -> list[Request]:
    """Requests in three places until all have ended."""
    every = requests()
    waiting, running = list(every), list[Request]()
    free = torch.randperm(POOL).tolist()
    # Blocks that were used before hold what is far from all that is read.
    cache = (50 * torch.randn(POOL, HKV, BLOCK, 2 * D)).to(DEVICE, DTYPE)
    padding = torch.full((1, HKV, D), 1e4, device=DEVICE, dtype=DTYPE)
    while waiting or running:
        while waiting and len(running) < 3:
            running.append(waiting.pop(0))
        new = np.array([min(CHUNK, max(r.known - r.past, 1)) for r in running])
        for request, more in zip(running, new, strict=True):
            while len(request.owned) * BLOCK < request.past + more:
                request.owned.append(free.pop())
        meta = step_of(running, new, policy)
        some = [slice(r.past, r.past + n) for r, n in zip(running, new, strict=True)]
        q, k, v = (
            torch.cat([getattr(r, name)[part] for r, part in zip(running, some, strict=True)])
            for name in "qkv"
        )
        slots = meta.slot_mapping[:-1]
        cache[slots // BLOCK, :, slots % BLOCK] = torch.cat((k, v), dim=-1)
        q, k, v = torch.cat((q, q[:1])), torch.cat((k, padding)), torch.cat((v, padding))
        out = torch.full_like(q, 7.0)
        calls = len(layer.calls)
        with no_waiting(calls):
            layer.forward(None, q, k, v, cache, meta, out)
        assert len(layer.calls) - calls == (meta.sparse is not None)
        assert (out[-1] == 7).all()
        parts = out[:-1].split(new.tolist())
        for request, part, tokens in zip(running, some, parts, strict=True):
            request.out[part] = tokens
            request.past = part.stop
        for request in [r for r in running if r.past == r.end]:
            running.remove(request)
            free += request.owned
    return every


def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Pairs of halves as complex numbers, turned by an angle each."""
    a, b = x.double().chunk(2, dim=-1)
    pairs = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def chosen(name: str, numbers: dict[str, Any], request: Request, position: int) -> list[set[int]]:
    """Tokens that each KV head of a query reads."""
    counts = {key: value for key, value in numbers.items() if isinstance(value, int)}
    always, competing, wins = always_and_gap(name, counts, BLOCK, position + 1)
    if not wins:
        return [always] * HKV
    worth = torch.zeros(HKV, len(competing), dtype=torch.float64)
    for head in range(HKV):
        q = request.q[position].view(HKV, G, D)[head].double().cpu()
        for column, block in enumerate(competing):
            tokens = torch.arange(block * BLOCK, (block + 1) * BLOCK)
            keys = request.k[tokens, head].double().cpu()
            if name == "quest":
                bounds = torch.maximum(q * keys.amax(0), q * keys.amin(0)).sum(-1)
                worth[head, column] = bounds.max() if "gqa" in numbers else bounds.sum()
            else:
                mean = turned(keys, -ANGLES[tokens]).mean(0)
                far = ANGLES[numbers["n_local"] - 1] - ANGLES[position]
                worth[head, column] = (turned(q, far.expand(G, -1)) @ mean).sum()
    if name == "infllm" and "selection" not in numbers:
        worth = worth.sum(0, keepdim=True).expand(HKV, -1)
    best = worth.topk(wins).indices.tolist()
    blocks = [[competing[column] for column in columns] for columns in best]
    return [always | {b * BLOCK + i for b in some for i in range(BLOCK)} for some in blocks]


def naive(name: str, numbers: dict[str, Any], request: Request, position: int) -> torch.Tensor:
    """Attention of a token over what it reads, (Hq, D)."""
    read = [set(range(position + 1))] * HKV
    if position >= request.prompt and not request.whole:
        read = chosen(name, numbers, request, position)
    heads = []
    for head, tokens in enumerate(read):
        index = torch.tensor(sorted(tokens))
        q = request.q[position].view(HKV, G, D)[head].double()
        shares = (D**-0.5 * q @ request.k[index, head].double().T).softmax(-1)
        heads.append(shares @ request.v[index, head].double())
    return torch.cat(heads)


@pytest.mark.parametrize("kind", POLICIES)
def test_outputs_are_attention_over_what_was_chosen(kind: str) -> None:
    """Chunks of prompts next to decode queries, ragged rows, blocks begun and used before."""
    torch.manual_seed(3)
    name, numbers = POLICIES[kind]
    policy = policy_of(text(name, numbers), BLOCK)
    layer = layer_of(kernel_of(DEVICE), policy, ROPE, HKV, G, D)
    with torch.inference_mode():
        every = serve(policy, layer)
    assert len(layer.calls) > 20
    sparse = 0
    for request in every:
        for position in range(request.end):
            expected = naive(name, numbers, request, position)
            difference = (request.out[position].double() - expected).abs().max()
            assert difference < ROUNDING, (position, difference)
            sparse += position >= request.prompt and not request.whole
    assert sparse > 80


@pytest.mark.slow
def test_blocks_are_compared_by_the_triton_kernel_as_by_torch() -> None:
    """The same test in Triton's interpreter, where its kernel takes the place of torch."""
    pytest.importorskip("triton", reason="needs the extra triton")
    program = f"""
import pytest, sys
from lil.serving.blocks.policies import policy_of
from lil.serving.blocks.summaries import Summaries
assert Summaries(policy_of("quest(budget=64)", 16), 3, 2, 8, None).fused
sys.exit(pytest.main(["-q", "-k", "outputs and (quest or infllm)", {str(__file__)!r}]))
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "LIL_TEST_DEVICE": "cpu"}
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize("at_once", [1, 300, 2**14])
@pytest.mark.parametrize("kind", ["quest, max", "infllm"])
def test_many_blocks_are_compared_by_turns(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(text(*POLICIES[kind]), BLOCK)
    known = layer_of(kernel_of("cpu"), policy, ROPE, HKV, G, D).remember(
        torch.zeros(9, HKV, BLOCK, 2 * D)
    )
    known.data.normal_()
    q, blocks, positions = torch.randn(7, HKV, G, D), torch.randint(9, (7, 4)), torch.arange(7) + 40
    whole = known.worth(q, positions, blocks)
    monkeypatch.setattr("lil.serving.blocks.summaries.GATHERED", at_once)
    assert torch.allclose(known.worth(q, positions, blocks), whole, atol=1e-4)


@pytest.mark.parametrize("field", ["alibi_slopes", "sinks", "kv_sharing_target_layer_name"])
def test_layers_that_a_table_computes_wrongly_are_refused(field: str) -> None:
    policy = policy_of("window(budget=32)", 16)
    with pytest.raises(InvalidValue, match=field):
        layer_of(kernel_of("cpu"), policy, ROPE, HKV, G, D, **{field: "some"})
