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
from counted_here import ALONE, counted  # noqa: E402
from vllm.v1.worker.gpu.sample.logits_processor import (  # noqa: E402
    LogitsContext,
    LogitsProcessor,
    build_custom_logits_processors_params_validator,
)

import lil  # noqa: E402
import lil.serving.vllm as serving  # noqa: E402
from attention.errors import InvalidValue  # noqa: E402
from lil.detectors import Answer  # noqa: E402
from lil.penalties import DRYPenalty, PresenceWindowPenalty  # noqa: E402

CAP, EOS, LONGEST, PIECE = 60, 0, 200, 5


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
    cue = {"stop_on_cue": " Anna has word7"}
    return SimpleNamespace(
        model_config=model,
        additional_config={"lil": cue | values},
        speculative_config=None,
        parallel_config=ALONE,
    )


def params(extra: Any = None, **more: Any) -> Any:
    made = vllm.SamplingParams(temperature=0, max_tokens=CAP, extra_args=extra, **more)
    made.update_from_generation_config({}, EOS)
    return made


class Request:
    """A prompt, what it asks for, and what has been generated."""

    def __init__(self, prompt: list[int], asked: Any) -> None:
        self.prompt, self.asked, self.out = prompt, asked, []
        self.slot, self.read = -1, 0

    @property
    def over(self) -> bool:
        return len(self.out) >= CAP or bool(self.out and self.out[-1] == EOS)


class Engine:
    """Requests in slots; at every step their rows stand in another order."""

    def __init__(self, model: Any, kind: type, config: Any, slots: int = 3, seed: int = 0) -> None:
        self.model, self.random = model, random.Random(seed)
        self.tokens = torch.zeros(slots, LONGEST, dtype=torch.int32)
        self.prompt_len, self.prefill_len = (np.zeros(slots, dtype=np.int32) for _ in range(2))
        states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=self.tokens),
            prompt_len=SimpleNamespace(np=self.prompt_len),
            prefill_len=SimpleNamespace(np=self.prefill_len),
        )
        self.processor = kind(config, states)
        self.free, self.running = list(range(slots)), []

    def add(self, one: Request) -> None:
        one.slot, one.read = self.free.pop(), 0
        given = [*one.prompt, *one.out]
        # What the slot's last request left behind its end stays.
        self.tokens[one.slot, : len(given)] = torch.tensor(given, dtype=torch.int32)
        self.prompt_len[one.slot], self.prefill_len[one.slot] = len(one.prompt), len(given)
        self.processor.add_request(one.slot, one.asked)
        self.running.append(one)

    def remove(self, one: Request) -> None:
        self.running.remove(one)
        self.free.append(one.slot)

    def serve(self, requests: list[Request], back: float = 0.0) -> None:
        waiting = list(requests)
        while waiting or self.running:
            while waiting and self.free:
                self.add(waiting.pop(0))
            self.processor.apply_staged_writes()
            self.step()
            for one in list(self.running):
                if one.over:
                    self.remove(one)
                elif self.random.random() < back:
                    self.remove(one)
                    waiting.append(one)

    def step(self) -> None:
        self.random.shuffle(self.running)
        # Some of those that run are not scheduled.
        rows = [one for one in self.running if self.random.random() < 0.9] or self.running[:1]
        for one in rows:
            prefill = int(self.prefill_len[one.slot])
            one.read = min(one.read + PIECE, prefill) if one.read < prefill else one.read + 1
        logits, newest = [], []
        for one in rows:
            ids = self.tokens[one.slot, : one.read].long()
            with torch.inference_mode():
                logits.append(self.model(ids[None]).logits[0, -1])
            newest.append(int(ids[-1]))
        slots = np.array([one.slot for one in rows], dtype=np.int32)
        index = torch.from_numpy(slots)
        context = LogitsContext(
            expanded_idx_mapping=index,
            idx_mapping=index,
            idx_mapping_np=slots,
            expanded_local_pos=torch.zeros_like(index),
            input_ids=torch.tensor(newest, dtype=torch.int32),
            pos=torch.tensor([one.read - 1 for one in rows]),
            seq_lens_upper_bound_np=np.array([one.read for one in rows], dtype=np.int32),
        )
        scores = self.processor.apply(torch.stack(logits), context)
        for one, row in zip(rows, scores, strict=True):
            if one.read >= int(self.prefill_len[one.slot]):  # otherwise what is sampled is dropped
                one.out.append(int(row.argmax()))
                self.tokens[one.slot, one.read] = one.out[-1]


def decoded(model: Any, tokenizer: Any, prompt: list[int], **options: Any) -> lil.Trace:
    (trace,) = lil.decode(model, tokenizer, [prompt], max_new_tokens=CAP, **options)
    return trace


PENALTIES = {
    "LZPenalty": [
        ({"lz_alpha": 0.9}, lil.LZPenalty(alpha=0.9)),
        ({"lz_alpha": 0.9, "lz_formula": "rate"}, lil.LZPenalty(alpha=0.9, formula="rate")),
        ({"lz_include_prompt": "on"}, lil.LZPenalty(include_prompt=True)),
    ],
    "DRYPenalty": [({"dry": "on"}, DRYPenalty())],
    "PresenceWindowPenalty": [({"presence_window_window": 9}, PresenceWindowPenalty(window=9))],
}


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("back", [0.0, 0.05])
def test_penalties_are_those_of_decode(qwen, eos, tokenizer, tokenizer_path, name, back):
    eos(EOS)
    given = [*PENALTIES[name], (None, None)]
    requests = [
        Request(prompt, params(given[i % len(given)][0])) for i, prompt in enumerate(PROMPTS * 2)
    ]
    engine = Engine(qwen, getattr(serving, name), config(tokenizer_path))
    what = getattr(serving, name).values.kind.name
    before = counted("requests", what=what), counted("tokens", what=what)
    engine.serve(requests, back)
    own = [one for one in requests if one.asked.extra_args]
    assert counted("requests", what=what) - before[0] == len(own)
    assert counted("tokens", what=what) - before[1] == sum(len(one.out) for one in own)
    for i, one in enumerate(requests):
        penalty = given[i % len(given)][1]
        chosen = [] if penalty is None else [penalty]
        assert one.out == list(decoded(qwen, tokenizer, one.prompt, penalties=chosen).new_ids)


@pytest.mark.parametrize("back", [0.0, 0.05])
@pytest.mark.parametrize("what", ["stop", "answer"])
def test_stops_are_those_of_decode_where_every_token_is_looked_at(
    qwen, tokenizer, tokenizer_path, tmp_path, what, back
):
    told = tmp_path / "told.jsonl"
    asked = [
        {"stop_on": f"budget(tokens=20):{what}", "stop_on_tokens": 9, "stop_on_label": str(i)}
        if i % 3
        else None
        for i in range(8)
    ]
    if what == "stop":
        asked = [one and {k: v for k, v in one.items() if k != "stop_on_tokens"} for one in asked]
    requests = [Request(p, params(one)) for p, one in zip(PROMPTS * 2, asked, strict=True)]
    server = config(tokenizer_path, stop_on_every=1, stop_on_file=str(told))
    engine = Engine(qwen, serving.StopOn, server)
    names = {"verdicts": {"detector": "budget", "then": what}, "tokens": {"what": "stop_on"}}
    before = {name: counted(name, **labels) for name, labels in names.items()}
    engine.serve(requests, back)
    more = {name: counted(name, **labels) - before[name] for name, labels in names.items()}
    action = Answer(cue=" Anna has word7", tokens=9) if what == "answer" else "stop"
    for one, extra in zip(requests, asked, strict=True):
        watched = [] if extra is None else [lil.Budget(tokens=20, on_stop=action)]
        trace = decoded(qwen, tokenizer, one.prompt, detectors=watched)
        kept = list(trace.new_ids)
        ended = EOS in kept or one.out[-1] == EOS
        found = one.out[: one.out.index(EOS)] if EOS in one.out else one.out
        assert found == (kept[: kept.index(EOS)] if EOS in kept else kept)
        assert ended == (extra is not None or EOS in kept)
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    labels = [line["label"] for line in lines]
    chosen = sum(len(one.out) for one, extra in zip(requests, asked, strict=True) if extra)
    assert more == {"verdicts": len(lines), "tokens": chosen}
    assert len(labels) == len(set(labels))  # each is told once, however often it was put back
    assert all(line["tokens"] == 20 for line in lines)


@pytest.mark.parametrize("every", [7, 25])
def test_stops_are_late_by_less_than_the_distance_of_looks(qwen, tokenizer_path, every):
    server = config(tokenizer_path, stop_on_every=every)
    requests = [Request(prompt, params({"stop_on": "budget(tokens=20)"})) for prompt in PROMPTS]
    Engine(qwen, serving.StopOn, server).serve(requests)
    due = -(-20 // every) * every
    for one in requests:
        assert len(one.out) == due + 1 or EOS in one.out[:due]
        assert one.out[-1] == EOS


def test_slots_keep_nothing_of_their_last_request(qwen, tokenizer_path):
    engine = Engine(qwen, serving.LZPenalty, config(tokenizer_path), slots=1)
    requests = [Request(p, params({"lz": "on"} if i % 2 else None)) for i, p in enumerate(PROMPTS)]
    engine.serve(requests)
    assert len(engine.processor._slots) <= 1
    assert not engine.processor.add_request(0, params())
    assert not engine.processor._slots


def test_the_engine_takes_the_classes_and_gives_our_messages():
    names = [f"lil.serving.vllm:{name}" for name in (*PENALTIES, "StopOn")]
    check = build_custom_logits_processors_params_validator(names)
    check(params({"lz": "on", "dry": "on", "stop_on": "cycle"}))
    with pytest.raises(vllm.exceptions.VLLMValidationError, match="did you mean 'lz_alpha'"):
        check(params({"lz_alhpa": 1}))
    assert all(issubclass(getattr(serving, name), LogitsProcessor) for name in PENALTIES)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lz_alpha": -1}, "alpha"),
        ({"stop_on": "guardain"}, "did you mean 'guardian'"),
        ({"stop_onn": "guardian"}, "one of stop_on"),
        ({"stop_on_every": 0}, "stop_on_every"),
        ({"stop_on_cue": "answer!"}, "cue"),
        ({"stop_on_file": "/nowhere/at/all"}, "stop_on_file"),
    ],
)
def test_a_server_that_is_told_nonsense_does_not_start(qwen, tokenizer_path, values, message):
    kind = serving.LZPenalty if "lz_alpha" in values else serving.StopOn
    with pytest.raises(InvalidValue, match=message):
        Engine(qwen, kind, config(tokenizer_path, **values))


def test_drafts_and_other_runners_are_refused(tokenizer_path):
    drafting = config(tokenizer_path)
    drafting.speculative_config = SimpleNamespace(method="ngram")
    with pytest.raises(InvalidValue, match="speculative"):
        serving.StopOn(drafting, SimpleNamespace())
    with pytest.raises(InvalidValue, match="speculative"):  # of V1, which does not tell rows apart
        serving.LZPenalty(drafting, torch.device("cpu"), False)
    with pytest.raises(InvalidValue, match="another version"):
        serving.LZPenalty(config(tokenizer_path), 1, 2, 3)
