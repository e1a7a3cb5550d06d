"""vLLM's V2 runner, driven by stand-ins of its objects: nothing here has run on a GPU.

Its classes of processors and contexts are the engine's own; requests, slots and steps are made
here: slots are recycled, rows change places at every step, prompts are read in pieces, and requests
are put back and read again.
"""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from acting_rows import PROMPTS  # noqa: E402
from vllm.v1.worker.gpu.sample.logits_processor import (  # noqa: E402
    LogitsContext,
    build_custom_logits_processors_params_validator,
)

import lil  # noqa: E402
import lil.serving.vllm as serving  # noqa: E402
from attention.errors import InvalidValue  # noqa: E402
from lil.detectors import Answer  # noqa: E402

CAP, EOS, LONGEST, PIECE = 40, 0, 200, 5
CUE = " Anna has word7"


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tiny_models import build_tokenizer

    path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(path)
    return str(path)


def config(path: str, **values: Any) -> Any:
    model = SimpleNamespace(
        tokenizer=path, tokenizer_revision=None, trust_remote_code=False, max_model_len=LONGEST
    )
    values = {"lil": {"stop_on_cue": CUE} | values}
    return SimpleNamespace(model_config=model, additional_config=values, speculative_config=None)


def params(values: Any = None) -> Any:
    made = vllm.SamplingParams(temperature=0, max_tokens=CAP, extra_args=values)
    made.update_from_generation_config({}, EOS)
    return made


class Request:
    """A prompt, what it asks for, and what has been generated."""

    def __init__(self, prompt: list[int], values: Any) -> None:
        self.prompt, self.params = prompt, params(values)
        self.out: list[int] = []
        self.slot, self.read = -1, 0

    @property
    def over(self) -> bool:
        return len(self.out) >= CAP or bool(self.out and self.out[-1] == EOS)


class Engine:
    """Requests in three slots; at every step their rows are in another order."""

    def __init__(self, model: Any, kind: Any, config: Any) -> None:
        self.model, self.random = model, random.Random(0)
        self.tokens = torch.zeros(3, LONGEST, dtype=torch.int32)
        self.prompt_len, self.prefill_len = (np.zeros(3, dtype=np.int32) for _ in range(2))
        states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=self.tokens),
            prompt_len=SimpleNamespace(np=self.prompt_len),
            prefill_len=SimpleNamespace(np=self.prefill_len),
        )
        self.processor = kind(config, states)
        self.free, self.running = [0, 1, 2], list[Request]()

    def add(self, request: Request) -> None:
        request.slot, request.read = self.free.pop(), 0
        ids = [*request.prompt, *request.out]
        # What the slot's last request left behind its end stays.
        self.tokens[request.slot, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        self.prompt_len[request.slot] = len(request.prompt)
        self.prefill_len[request.slot] = len(ids)
        self.processor.add_request(request.slot, request.params)
        self.running.append(request)

    def serve(self, requests: list[Request], back: float = 0.0) -> None:
        waiting = list(requests)
        while waiting or self.running:
            while waiting and self.free:
                self.add(waiting.pop(0))
            self.step()
            for request in list(self.running):
                put_back = not request.over and self.random.random() < back
                if request.over or put_back:
                    self.running.remove(request)
                    self.free.append(request.slot)
                    waiting += [request] * put_back

    def step(self) -> None:
        self.random.shuffle(self.running)
        # Some of those that run are not scheduled.
        rows = [r for r in self.running if self.random.random() < 0.9] or self.running[:1]
        logits, newest = [], []
        for request in rows:
            prefill = int(self.prefill_len[request.slot])
            more = PIECE if request.read < prefill else 1
            request.read = min(request.read + more, max(prefill, request.read + 1))
            ids = self.tokens[request.slot, : request.read].long()
            with torch.inference_mode():
                logits.append(self.model(ids[None]).logits[0, -1])
            newest.append(int(ids[-1]))
        slots = np.array([request.slot for request in rows], dtype=np.int32)
        index = torch.from_numpy(slots)
        context = LogitsContext(
            expanded_idx_mapping=index,
            idx_mapping=index,
            idx_mapping_np=slots,
            expanded_local_pos=torch.zeros_like(index),
            input_ids=torch.tensor(newest, dtype=torch.int32),
            pos=torch.tensor([request.read - 1 for request in rows]),
            seq_lens_upper_bound_np=np.array([request.read for request in rows], dtype=np.int32),
        )
        scores = self.processor.apply(torch.stack(logits), context)
        for request, row in zip(rows, scores, strict=True):
            if request.read >= int(self.prefill_len[request.slot]):  # else what is sampled is lost
                request.out.append(int(row.argmax()))
                self.tokens[request.slot, request.read] = request.out[-1]


@pytest.mark.parametrize("back", [0.0, 0.05])
def test_penalties_are_those_of_decode(
    qwen: Any, eos: Any, tokenizer: Any, tokenizer_path: str, back: float
) -> None:
    eos(EOS)
    kinds: list[tuple[Any, Any]] = [
        ({"lz_alpha": 0.9}, lil.LZPenalty(alpha=0.9)),
        ({"lz_alpha": 0.9, "lz_formula": "rate"}, lil.LZPenalty(alpha=0.9, formula="rate")),
        ({"lz_include_prompt": "on"}, lil.LZPenalty(include_prompt=True)),
        (None, None),
    ]
    requests = [Request(prompt, kinds[i % 4][0]) for i, prompt in enumerate(PROMPTS * 2)]
    Engine(qwen, serving.LZPenalty, config(tokenizer_path)).serve(requests, back)
    for i, request in enumerate(requests):
        penalties = [] if kinds[i % 4][1] is None else [kinds[i % 4][1]]
        options: dict[str, Any] = {"max_new_tokens": CAP, "penalties": penalties}
        (trace,) = lil.decode(qwen, tokenizer, [request.prompt], **options)
        assert request.out == list(trace.new_ids)


@pytest.mark.parametrize("back", [0.0, 0.05])
@pytest.mark.parametrize("action", ["stop", "answer"])
def test_stops_are_those_of_decode_where_every_token_is_looked_at(
    qwen: Any, tokenizer: Any, tokenizer_path: str, tmp_path: Any, action: str, back: float
) -> None:
    file = tmp_path / "verdicts.jsonl"
    values: dict[str, Any] = {"stop_on": f"budget(tokens=20):{action}"}
    values |= {"stop_on_tokens": 9} if action == "answer" else {}
    requests = [
        Request(prompt, {**values, "stop_on_label": str(i)} if i % 3 else None)
        for i, prompt in enumerate(PROMPTS * 2)
    ]
    server = config(tokenizer_path, stop_on_every=1, stop_on_file=str(file))
    Engine(qwen, serving.StopOn, server).serve(requests, back)
    on_stop: Any = Answer(cue=CUE, tokens=9) if action == "answer" else "stop"
    watch = lil.Budget(tokens=20, on_stop=on_stop)
    for request in requests:
        watched = [] if request.params.extra_args is None else [watch]
        (trace,) = lil.decode(
            qwen, tokenizer, [request.prompt], max_new_tokens=CAP, detectors=watched
        )
        left, right = (ids[: [*ids, EOS].index(EOS)] for ids in (request.out, list(trace.new_ids)))
        assert left == right
        assert not watched or request.out[-1] == EOS
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    labels = [line["label"] for line in lines]
    assert len(labels) == len(set(labels))  # each once, however often it was put back
    assert all(line["tokens"] == 20 for line in lines)


def test_stops_are_late_by_less_than_the_distance_of_looks(qwen: Any, tokenizer_path: str) -> None:
    server = config(tokenizer_path, stop_on_every=7)
    requests = [Request(prompt, {"stop_on": "budget(tokens=20)"}) for prompt in PROMPTS]
    Engine(qwen, serving.StopOn, server).serve(requests)
    for request in requests:
        assert len(request.out) == 22 or EOS in request.out[:21]
        assert request.out[-1] == EOS


def test_the_engine_takes_the_classes_and_gives_our_messages() -> None:
    names = [f"lil.serving.vllm:{name}" for name in serving.__all__]
    check = build_custom_logits_processors_params_validator(names)
    check(params({"lz": "on", "dry": "on", "stop_on": "cycle"}))
    with pytest.raises(vllm.exceptions.VLLMValidationError, match="did you mean 'lz_alpha'"):
        check(params({"lz_alhpa": 1}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lz_alpha": -1}, "alpha"),
        ({"stop_on": "guardain"}, "did you mean 'guardian'"),
        ({"stop_on_every": 0}, "stop_on_every"),
        ({"stop_on_cue": "answer!"}, "cue"),
        ({"stop_on_file": "/nowhere/at/all"}, "stop_on_file"),
    ],
)
def test_a_server_that_is_told_nonsense_does_not_start(
    qwen: Any, tokenizer_path: str, values: Any, message: str
) -> None:
    kind = serving.LZPenalty if "lz_alpha" in values else serving.StopOn
    with pytest.raises(InvalidValue, match=message):
        Engine(qwen, kind, config(tokenizer_path, **values))


def test_drafts_and_other_runners_are_refused(tokenizer_path: str) -> None:
    drafting = config(tokenizer_path)
    drafting.speculative_config = SimpleNamespace(method="ngram")
    for kind in (serving.StopOn, serving.LZPenalty):
        for runner in ((SimpleNamespace(),), (torch.device("cpu"), False)):
            with pytest.raises(InvalidValue, match="speculative"):
                kind(drafting, *runner)
    with pytest.raises(InvalidValue, match="another version"):
        serving.LZPenalty(config(tokenizer_path), 1, 2, 3)
