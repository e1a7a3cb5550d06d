"""The control `h2o_uniform`: full attention, then none at all."""

from __future__ import annotations

import pytest
import torch
from driving import follow, model, prefill, step, tokens

import attention


def test_above_the_budget_all_tokens_weigh_alike() -> None:
    """The output of a layer is then the mean of all values, whatever is asked."""
    m = model()
    outputs: list[torch.Tensor] = []
    hook = m.model.layers[1].self_attn.o_proj.register_forward_hook(
        lambda *call: outputs.append(call[1][0].detach()[:, -1])
    )
    with attention.H2OUniform(budget=16, dense_layers=0).on(m) as cache:
        prefill(m, cache, [tokens(30), tokens(12, seed=1)])
        for column in tokens(2, 6).T:
            step(m, cache, column)
            values = cache.layers[1].state["v"].data
            for r, n in enumerate(cache.seen.tolist()):
                mean = values[r, :, :n].mean(1).repeat_interleave(2, dim=0).flatten()
                assert ((outputs[-1][r] - mean).abs().max() < 1e-9) == (n > 16)
        assert cache.row_stats().read_max.tolist() == [36, 18]
    hook.remove()


def test_the_first_layers_are_left_as_they_are() -> None:
    m, text, given = model(layers=4), [tokens(30)], tokens(1, 5)
    with attention.H2OUniform(budget=16, dense_layers=2).on(m) as cache:
        follow(m, cache, text, given)
        assert [x.dense for x in cache.stats(per_layer=True).layers] == [True, True, False, False]
        kept = cache.layers[1].state["k"].data.clone()
    with attention.Full().on(m) as cache:
        follow(m, cache, text, given)
        full = cache.layers
        assert (full[1].state["k"].data - kept).abs().max() < 1e-9


@pytest.mark.parametrize("arguments", [{"budget": 0}, {"budget": 8, "dense_layers": -1}])
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.H2OUniform(**arguments)


def test_it_is_sparse_where_h2o_is() -> None:
    assert attention.H2OUniform(budget=16).dense_layers == attention.H2O(budget=16).dense_layers
