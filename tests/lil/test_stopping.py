"""Detectors in transformers' `generate()`: the verdicts and tokens of `lil.decode`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from acting_rows import Seeing
from tiny_models import Endings, build_model
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GENERATION_MODES_MAPPING

import lil
from attention.errors import InvalidValue
from lil.chopper.classifier import Classifier
from lil.detectors import Detector

PAD = 59
PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 12, 13, 12, 13]]


def padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    return ids, mask


def generate(model: Any, stop: lil.StopOn, prompts: list[list[int]], **options: Any) -> Any:
    """New ids of every row."""
    ids, mask = padded(prompts)
    options |= {"stopping_criteria": StoppingCriteriaList([stop]), "attention_mask": mask}
    out = model.generate(ids, do_sample=False, pad_token_id=PAD, **options)
    return out[:, ids.shape[1] :].tolist()


def same_as_decode(
    new: list[list[int]], verdicts: list[lil.Verdict | None], traces: list[lil.Trace]
) -> None:
    for ids, verdict, trace in zip(new, verdicts, traces, strict=True):
        assert PAD not in trace.new_ids
        assert ids == [*trace.new_ids, *[PAD] * (len(ids) - trace.tokens)]
        if trace.finish in ("eos", "length"):
            assert verdict is None
        else:
            assert verdict is not None
            assert (verdict.detector, verdict.token) == (trace.finish, trace.tokens)
            assert dict(verdict.evidence) == trace.evidence


DETECTORS: dict[str, list[Detector]] = {
    "guardian": [lil.Guardian(f=7, rate=1.5)],
    "cycle": [lil.Cycle(repeats=2, min_tokens=4, outside=0)],
    "budget": [lil.Budget(tokens=11)],
    "the first of three": [
        lil.Cycle(repeats=3, min_tokens=20, outside=0),
        lil.Guardian(f=9, rate=1.5),
        lil.Budget(tokens=50),
    ],
}


@pytest.mark.parametrize("which", DETECTORS)
@pytest.mark.parametrize("penalised", [False, True])
def test_verdicts_and_tokens_are_those_of_decode(which, penalised, qwen, tokenizer, eos):
    penalties = [lil.LZPenalty(alpha=0.2, window=40, buffer=3)] if penalised else []
    free = lil.decode(qwen, tokenizer, PROMPTS, penalties=penalties, max_new_tokens=60)
    ends = free[1].new_ids[4]  # one row ends by itself after a while
    eos([ends])
    detectors = DETECTORS[which]
    traces = lil.decode(
        qwen, tokenizer, PROMPTS, detectors=detectors, penalties=penalties, max_new_tokens=60
    )
    finishes = {trace.finish for trace in traces}
    assert finishes - {"eos", "length"}  # else this shows nothing
    assert penalised or "eos" in finishes
    stop = lil.StopOn(*detectors, tokenizer=tokenizer, eos_token_id=ends, pad_token_id=PAD)
    for _ in range(2):  # one object serves one generation after another
        processors = LogitsProcessorList([p.with_mask(padded(PROMPTS)[1]) for p in penalties])
        options = {"logits_processor": processors, "eos_token_id": ends}
        new = generate(qwen, stop, PROMPTS, max_new_tokens=60, **options)
        same_as_decode(new, stop.verdicts, traces)


def test_one_object_over_different_generations(qwen, tokenizer):
    stop = lil.StopOn(lil.Budget(tokens=4), tokenizer=tokenizer, pad_token_id=PAD)
    for prompts in (PROMPTS, [[9] * 9, [8]]):
        new = generate(qwen, stop, prompts, max_new_tokens=20)
        assert [len(row) for row in new] == [4] * len(prompts)
    # The last output is the next prompt: one column more, and yet another generation.
    ids = [PROMPTS[0]]
    for _ in range(3):
        (new,) = generate(qwen, stop, ids, max_new_tokens=20)
        assert len(new) == 4
        ids = [ids[0] + new]
    stop = lil.StopOn(lil.Budget(tokens=9), tokenizer=tokenizer, pad_token_id=PAD)
    for forget, length in ((False, 5), (True, 9)):  # the cap ended the first: that it cannot tell
        (new,) = generate(qwen, stop, [PROMPTS[0]], max_new_tokens=4)
        if forget:
            stop.forget()
        (more,) = generate(qwen, stop, [PROMPTS[0] + new], max_new_tokens=20)
        assert len(more) == length


def test_a_row_sees_its_prompt_without_padding_and_nothing_after_its_end(tokenizer):
    table = lil.token_bytes(tokenizer)
    for options in ({"pad_token_id": PAD}, {"attention_mask": padded(PROMPTS)[1]}):
        seeing = Seeing(4)
        stop = lil.StopOn(seeing, tokenizer=tokenizer, eos_token_id=3, **options)
        ids, _ = padded(PROMPTS)
        pads = PAD if "pad_token_id" in options else 40  # whatever it is padded with
        for column in ([20, 21, 22], [23, 3, 24], [25, pads, 26], [27, pads, 28]):
            ids = torch.cat((ids, torch.tensor(column)[:, None]), dim=1)
            stops = stop(ids, None)
        assert stops.dtype == torch.bool
        assert stops.tolist() == [True, False, True]
        rows = [[20, 23, 25, 27], [21], [22, 24, 26, 28]]
        assert seeing.log == [
            [b"".join(table[i] for i in prompt), *(table[i] for i in row)]
            for prompt, row in zip(PROMPTS, rows, strict=True)
        ]


def test_the_mask_knows_a_padding_id_that_begins_a_text(tokenizer):
    table, log = lil.token_bytes(tokenizer), []
    ids = torch.tensor([[2, 2, 5, 20], [2, 6, 7, 21]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    lil.StopOn(Seeing(log=log), tokenizer=tokenizer, attention_mask=mask)(ids, None)
    prompts = [[2, 5], [2, 6, 7]]
    assert [row[0] for row in log] == [b"".join(table[i] for i in p) for p in prompts]
    with pytest.raises(InvalidValue, match=r"attention_mask = \(2, 3\).*\(B, 2\)"):
        lil.StopOn(Seeing(), tokenizer=tokenizer, attention_mask=mask)(ids[:, :3], None)


def test_beams_are_judged_from_their_own_ids(tokenizer):
    """Candidates change places at every step; each gets the verdict of its ids."""
    draw = random.Random(5)
    table = lil.token_bytes(tokenizer)
    detector = lil.Cycle(repeats=2, min_tokens=4, outside=0)
    mask = padded(PROMPTS)[1]
    stop = lil.StopOn(detector, tokenizer=tokenizer, eos_token_id=3, attention_mask=mask)
    beams = 4
    rows = [row for row in padded(PROMPTS)[0].tolist() for _ in range(beams)]
    fired = 0
    for step in range(14):
        chosen = []
        for group in range(len(PROMPTS)):
            own = rows[group * beams : (group + 1) * beams]
            chosen += [[*draw.choice(own), draw.choice([3, 4, 5, 6])] for _ in range(beams)]
        stops = stop(torch.tensor(chosen), None).tolist()
        for row, is_done, verdict in zip(chosen, stops, stop.verdicts, strict=True):
            new = row[mask.shape[1] :]
            alone = detector.watch()
            shown = new[: new.index(3)] if 3 in new else new
            assert len(new) == step + 1
            assert verdict == alone.update([table[i] for i in shown])
            assert is_done is (verdict is not None)
            fired += is_done
        rows = chosen
    assert 0 < fired < 14 * len(rows)


@pytest.mark.parametrize(
    ("detectors", "message"),
    [
        ([], "detectors"),
        ([lil.Guardian(on_stop="answer")], "on_stop = 'answer': expected stop .guardian"),
        ([lil.Cycle(), lil.Budget(on_stop="densify")], "on_stop = 'densify': expected stop"),
    ],
)
def test_what_generate_cannot_do_is_refused(detectors, message, tokenizer):
    with pytest.raises(InvalidValue, match=message):
        lil.StopOn(*detectors, tokenizer=tokenizer)


def tiny_chopper(seed: int = 5) -> lil.Chopper:
    weight = torch.randn(32, generator=torch.Generator().manual_seed(seed))
    return lil.Chopper(Classifier(weight, 0.4, -2, "tiny"), short=3)


def test_detectors_of_hidden_states_fire_as_in_decode(qwen, tokenizer):
    prompts = [[5, 6, 7, 8], [9] * 4, [11, 12, 13, 14], [30, 31, 32, 33]]
    chopper = tiny_chopper()
    options = {"detectors": [chopper], "penalties": [Endings()], "max_new_tokens": 60}
    traces = lil.decode(qwen, tokenizer, prompts, **options)
    fired = [trace.finish == "chopper" for trace in traces]
    assert 0 < sum(fired) < len(fired)
    hooks = [len(layer._forward_hooks) for layer in qwen.model.layers]
    with lil.StopOn(chopper, tokenizer=tokenizer, pad_token_id=PAD, model=qwen) as stop:
        for _ in range(2):
            processors = LogitsProcessorList([Endings()])
            new = generate(qwen, stop, prompts, max_new_tokens=60, logits_processor=processors)
            for ids, verdict, trace in zip(new, stop.verdicts, traces, strict=True):
                tokens = [*trace.new_ids, *trace.dropped]  # generate() cannot drop
                assert ids[: len(tokens)] == tokens
                assert set(ids[len(tokens) :]) <= {PAD}
                assert (verdict is None) == (trace.finish != "chopper")
                if verdict is not None:
                    assert (verdict.token, verdict.step) == (trace.tokens, len(tokens))
                    assert trace.evidence is not None
                    for key, value in verdict.evidence.items():
                        assert trace.evidence[key] == pytest.approx(value)
    assert [len(layer._forward_hooks) for layer in qwen.model.layers] == hooks  # as before


@pytest.fixture(scope="module")
def drafting() -> dict[str, dict[str, Any]]:
    """What makes `generate()` draft: an assistant that is always right, and prompt lookup."""
    assistant = build_model("qwen3")
    assistant.generation_config.update(
        num_assistant_tokens=4,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    return {"assistant": {"assistant_model": assistant}, "lookup": {"prompt_lookup_num_tokens": 3}}


@pytest.mark.parametrize("how", ["assistant", "lookup"])
@pytest.mark.parametrize("which", ["guardian", "the first of three"])
def test_drafted_tokens_give_the_verdicts_of_plain_decoding(how, which, drafting, qwen, tokenizer):
    late = 0
    for prompt in PROMPTS:
        plain = lil.StopOn(*DETECTORS[which], tokenizer=tokenizer, pad_token_id=PAD)
        (tokens,) = generate(qwen, plain, [prompt], max_new_tokens=60)
        knowing = ({"prompt_tokens": len(prompt)}, {"attention_mask": padded([prompt])[1]})
        for known in knowing:
            stop = lil.StopOn(*DETECTORS[which], tokenizer=tokenizer, **known)
            for _ in range(2):  # one object serves one generation after another
                (new,) = generate(qwen, stop, [prompt], max_new_tokens=60, **drafting[how])
                assert stop.verdicts == plain.verdicts
                assert new[: len(tokens)] == tokens
                late += len(new) - len(tokens)
    assert late > 0  # verdicts fell among tokens that came together


@pytest.mark.parametrize("how", ["assistant", "lookup"])
@pytest.mark.parametrize("tokens", [1, 99])
def test_drafts_of_an_unknown_prompt_are_refused(how, tokens, drafting, qwen, tokenizer):
    stop = lil.StopOn(lil.Budget(tokens=tokens), tokenizer=tokenizer)
    with pytest.raises(InvalidValue, match="prompt_tokens = None: expected the prompts' width"):
        generate(qwen, stop, PROMPTS[:1], max_new_tokens=20, **drafting[how])
    (new,) = generate(qwen, stop, PROMPTS[:1], max_new_tokens=20)  # still fit for use
    assert len(new) == min(tokens, 20)


def test_where_transformers_names_no_draft_nothing_is_guessed(qwen, tokenizer, monkeypatch):
    monkeypatch.delitem(GENERATION_MODES_MAPPING, GenerationMode.ASSISTED_GENERATION)
    stop = lil.StopOn(lil.Budget(tokens=1), tokenizer=tokenizer)
    with pytest.raises(InvalidValue, match="does not say which of its methods drafts"):
        generate(qwen, stop, PROMPTS[:1], max_new_tokens=20)


def test_widths_that_cannot_be_are_refused(drafting, qwen, tokenizer):
    ids = torch.tensor([[5, 6, 7, 20, 21, 22, 23]])
    log: list[list[bytes]] = []
    stop = lil.StopOn(Seeing(log=log), tokenizer=tokenizer)
    stop(ids[:, :4], None)
    with pytest.raises(InvalidValue, match="prompt_tokens = None"):
        stop(ids, None)  # three more at once: the first call may have held several too
    stop(torch.cat((ids, ids[:, :1]), dim=1), None)  # starts anew: no token is skipped
    assert [len(row) for row in log] == [2, 2]
    with pytest.raises(InvalidValue, match="prompt_tokens = 7: expected fewer than the 7 columns"):
        lil.StopOn(lil.Cycle(), tokenizer=tokenizer, prompt_tokens=7)(ids, None)
    with pytest.raises(InvalidValue, match="prompt_tokens = True"):
        lil.StopOn(lil.Cycle(), tokenizer=tokenizer, prompt_tokens=True)
    reads = {"model": qwen, "attention_mask": padded(PROMPTS[:1])[1]}
    with lil.StopOn(tiny_chopper(), tokenizer=tokenizer, **reads) as stop:
        for options in drafting.values():
            with pytest.raises(InvalidValue, match="'beams or drafts'"):
                generate(qwen, stop, PROMPTS[:1], max_new_tokens=1, **options)
