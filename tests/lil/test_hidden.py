"""Hidden states read while decoding, against the ones transformers itself reports."""

from __future__ import annotations

import pytest
import torch

from attention.errors import InvalidValue
from lil.hidden_states import HiddenStates

IDS = torch.tensor([[5, 9, 3, 7, 2, 8, 4], [0, 0, 6, 1, 9, 3, 5]])
MASK = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])


def hooks(model: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.mark.parametrize("family", ["qwen", "llama"])
def test_states_are_what_transformers_reports(family: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(family)
    blocks = model.config.num_hidden_layers
    with torch.no_grad(), HiddenStates(model, range(blocks)) as states:
        out = model(IDS, attention_mask=MASK, output_hidden_states=True, use_cache=False)
        got = [states[i].clone() for i in range(blocks)]
    # Entry 0 is the embedding; the last entry is behind the final norm.
    for i in range(blocks - 1):
        assert torch.equal(got[i], out.hidden_states[i + 1][:, -1])
        assert torch.equal(states[i - blocks], got[i])
    normed = model.base_model.norm(got[-1])
    assert torch.allclose(normed, out.hidden_states[-1][:, -1])
    assert not torch.allclose(got[-1], normed)


def test_hooks_are_gone_afterwards_and_states_stay(qwen: torch.nn.Module) -> None:
    before = hooks(qwen)
    reader = HiddenStates(qwen, [0, -qwen.config.num_hidden_layers, 1])
    with reader, torch.no_grad():
        assert hooks(qwen) == before + 2  # one a block, however often it was named
        qwen(IDS[:, :2])
        state = reader[0]
    assert hooks(qwen) == before
    with pytest.raises(IndexError), reader, torch.no_grad():
        qwen(torch.tensor([[10_000]]))
    assert hooks(qwen) == before
    with reader, torch.no_grad():
        qwen(IDS[:, :2])
    with torch.no_grad():
        qwen(IDS)
    assert torch.equal(reader[0], state)
    with reader, pytest.raises(RuntimeError, match="first forward"):
        _ = reader[0]  # a second block starts empty


def test_misuse_is_refused(qwen: torch.nn.Module) -> None:
    with pytest.raises(InvalidValue, match="layers"):
        HiddenStates(torch.nn.Linear(2, 2), [0])
    reader = HiddenStates(qwen, [0])
    with reader:
        with pytest.raises(InvalidValue, match="one that is read"):
            _ = reader[1]
        with pytest.raises(RuntimeError, match="already"):
            reader.__enter__()
