"""vLLM's V1 runner: requests join, leave and change places in every way its batch knows."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from acting_rows import PROMPTS  # noqa: E402
from counted_here import ALONE, counted  # noqa: E402
from vllm.v1.sample.logits_processor import (  # noqa: E402
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)

import lil  # noqa: E402
import lil.serving.vllm as serving  # noqa: E402
from lil.detectors import Answer  # noqa: E402
from lil.penalties import DRYPenalty  # noqa: E402

CAP, EOS, LONGEST = 40, 0, 200
CUE = " Anna has word7"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tiny_models import build_tokenizer

    path = str(tmp_path_factory.mktemp("tokenizer"))
    build_tokenizer().save_pretrained(path)
    model = SimpleNamespace(
        tokenizer=path, tokenizer_revision=None, trust_remote_code=False, max_model_len=LONGEST
    )
    values = {"lil": {"stop_on_cue": CUE}}
    return SimpleNamespace(
        model_config=model,
        additional_config=values,
        speculative_config=None,
        parallel_config=ALONE,
    )


def params(extra: Any) -> Any:
    made = vllm.SamplingParams(temperature=0, max_tokens=CAP, extra_args=extra)
    made.update_from_generation_config({}, EOS)
    return made


class Request:
    def __init__(self, prompt: list[int], extra: Any) -> None:
        self.prompt, self.params, self.out = prompt, params(extra), []

    @property
    def over(self) -> bool:
        return len(self.out) >= CAP or bool(self.out and self.out[-1] == EOS)


def serve(model, processors, requests, places=4, seed=0) -> None:
    """A persistent batch: places that become free are filled first, then the last moves there."""
    drawn, waiting = random.Random(seed), list(requests)
    batch: list[Request | None] = []
    while waiting or batch:
        removed, added, moved = [], [], []
        for place, one in enumerate(batch):
            # Some are put back, and read again with what they had.
            back = not one.over and drawn.random() < 0.05
            if one.over or back:
                batch[place] = None
                removed.append(place)
                if back:
                    one.out = list(one.out)  # another list, as of a request that is resumed
                    waiting.append(one)
        holes = sorted(removed)
        while waiting and (holes or len(batch) < places):
            one = waiting.pop(0)
            if holes:
                batch[holes[0]] = one
                place = holes.pop(0)
            else:
                batch.append(one)
                place = len(batch) - 1
            added.append((place, one.params, one.prompt, one.out))
        while None in batch:
            while batch and batch[-1] is None:
                batch.pop()
            if None in batch:
                place = batch.index(None)
                moved.append((len(batch) - 1, place, MoveDirectionality.UNIDIRECTIONAL))
                batch[place] = batch.pop()
        if len(batch) > 1 and drawn.random() < 0.3:
            a, b = drawn.sample(range(len(batch)), 2)
            batch[a], batch[b] = batch[b], batch[a]
            moved.append((a, b, MoveDirectionality.SWAP))
        changed = removed or added or moved
        update = BatchUpdate(len(batch), sorted(removed, reverse=True), added, moved)
        for processor in processors:
            processor.update_state(update if changed else None)
        if not batch:
            break
        rows = []
        for one in batch:
            with torch.inference_mode():
                rows.append(model(torch.tensor([[*one.prompt, *one.out]])).logits[0, -1])
        logits = torch.stack(rows)
        for processor in processors:
            logits = processor.apply(logits)
        for one, row in zip(batch, logits, strict=True):
            # What a prompt that is read in pieces brings before its end is dropped.
            if drawn.random() < 0.9:
                one.out.append(int(row.argmax()))


@pytest.mark.parametrize("seed", range(6))
def test_every_request_has_its_own_state(qwen, eos, tokenizer, config, seed):
    eos(EOS)
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (None, {}),
        ({"lz_alpha": 0.9}, {"penalties": [lil.LZPenalty(alpha=0.9)]}),
        ({"dry": "on"}, {"penalties": [DRYPenalty()]}),
        (
            {"stop_on": "budget(tokens=12):answer", "stop_on_tokens": 7},
            {"detectors": [lil.Budget(tokens=12, on_stop=Answer(cue=CUE, tokens=7))]},
        ),
        (
            {"lz_formula": "rate", "stop_on": "budget(tokens=20)"},
            {"penalties": [lil.LZPenalty(formula="rate")], "detectors": [lil.Budget(tokens=20)]},
        ),
    ]
    names = ("lz", "dry", "presence_window", "stop_on")
    before = [(counted("requests", what=one), counted("tokens", what=one)) for one in names]
    stopped = counted("verdicts", detector="budget", then="stop")
    device = torch.device("cpu")
    processors = [
        getattr(serving, name)(config, device, False)
        for name in ("LZPenalty", "DRYPenalty", "PresenceWindowPenalty", "StopOn")
    ]
    requests = [Request(prompt, kinds[i % 5][0]) for i, prompt in enumerate(PROMPTS * 3)]
    serve(qwen, processors, requests, seed=seed)
    for i, one in enumerate(requests):
        (trace,) = lil.decode(qwen, tokenizer, [one.prompt], max_new_tokens=CAP, **kinds[i % 5][1])
        kept = list(trace.new_ids)
        forced = trace.finish != "eos" and len(kept) < CAP
        assert one.out == kept + [EOS] * forced
    for processor in processors:
        assert not processor._places.at
    for name, (begun, chosen) in zip(names, before, strict=True):
        own = [one for one in requests if any(key.startswith(name) for key in asked_of(one))]
        assert counted("requests", what=name) - begun == len(own)
        assert counted("tokens", what=name) - chosen == sum(len(one.out) for one in own)
    ended = [one for one in requests if one.out[20:] == [EOS] and "lz_formula" in asked_of(one)]
    assert counted("verdicts", detector="budget", then="stop") - stopped == len(ended)


def asked_of(one):
    return one.params.extra_args or {}


def test_both_runners_take_the_classes():
    for name in serving.__all__:
        assert issubclass(getattr(serving, name), LogitsProcessor)
