"""Detectors that read hidden states, in the decode loop: their signals, and going back."""

from __future__ import annotations

import pytest
import torch
from tiny_models import build_tokenizer, run_in_chunks

import attention
import lil
from lil.chopper import Classifier

END = build_tokenizer()("\n\n")["input_ids"][0]


def chopper(qwen: torch.nn.Module, **options: object) -> lil.Chopper:
    generator = torch.Generator().manual_seed(5)
    size = qwen.config.hidden_size
    layer = Classifier(torch.randn(size, generator=generator), 0.4, -2, "tiny")
    return lil.Chopper(layer, short=3, **options)


@pytest.mark.parametrize("name", ["full", "h2o"])
def test_signals_are_those_of_one_forward_over_the_text(qwen, tokenizer, name):
    """The oracle: transformers' own hidden states of the whole text, for full attention."""
    detector = chopper(qwen)
    backend = attention.get(name) if name == "full" else attention.get(name, budget=24)
    for trace in run_in_chunks(qwen, tokenizer, probes=[detector], backend=backend):
        (signal,) = trace.signals.values()
        ends = [i + 1 for i, token in enumerate(trace.new_ids) if token == END]
        # The last token is never read, so a chunk that ends there has no number.
        assert [at for at, _ in signal] == [n for n in ends if n < trace.tokens]
        assert trace.finish == "length"
        assert trace == lil.Trace.from_dict(trace.to_dict())
        if name == "full":
            ids = torch.tensor([[*trace.prompt_ids, *trace.new_ids]])
            with torch.no_grad():
                states = qwen(ids, output_hidden_states=True).hidden_states[-2][0]
            for at, p in signal:
                state = states[len(trace.prompt_ids) + at - 1]
                expected = torch.sigmoid(state @ detector.classifier.weight.double() + 0.4)
                assert p == pytest.approx(float(expected), abs=1e-6)
