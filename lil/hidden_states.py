"""Hidden states of some blocks and margins of some tokens, read while a model decodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attention.errors import InvalidValue


class HiddenStates:
    """Keeps what some blocks of a model put out at the last position of its newest forward.

    A context manager that hooks the model. `states[block]` is (B, hidden size), a copy.
    `margin(token)`, (B,), is the distance of that token's log-probability below the best token's,
    before penalties and temperature. A block's output is the residual stream behind it: for block
    -2 it is `output_hidden_states`'s entry -2; block -1 comes before the model's final norm.

    Args:
        model: a causal language model of transformers.
        blocks: which blocks, from 0, or from -1 for the last; repeats cost nothing.
        compared: ids of tokens whose margins are wanted, by their bytes.

    Raises:
        InvalidValue: the model's blocks are unknown, or it has no such block.
    """

    def __init__(
        self, model: Any, blocks: Sequence[int], compared: Mapping[bytes, int] | None = None
    ) -> None:
        modules = _blocks(model) if blocks else ()
        self._model, self._count = model, len(modules)
        self._hooked: dict[int, nn.Module] = {}
        for block in blocks:
            index = self._index(block)
            self._hooked[index] = modules[index]
        self.compared = dict(compared or {})
        self._handles: list[RemovableHandle] = []
        self._newest: dict[int, Tensor] = {}
        self._margins: dict[bytes, Tensor] = {}
        # The thread whose forwards are meant; None for all.
        self._thread: int | None = None

    def here_only(self) -> None:
        """From now on mean forwards of the calling thread alone: others may use the model, too."""
        self._thread = get_ident()

    def _meant(self) -> bool:
        return self._thread in (None, get_ident())

    @property
    def modules(self) -> list[str]:
        """Names of the blocks that are read, as the model's modules are named, in their order."""
        wanted = {id(block) for _, block in sorted(self._hooked.items())}
        return [name for name, module in self._model.named_modules() if id(module) in wanted]

    def take(self, states: Sequence[Tensor], margins: Sequence[Tensor]) -> None:
        """States of `modules`, (B, hidden size), and margins (B,) of a forward without hooks."""
        self._newest = dict(zip(sorted(self._hooked), states, strict=True))
        self._margins = dict(zip(self.compared, margins, strict=True))

    def __enter__(self) -> HiddenStates:
        if self._handles:
            raise RuntimeError("these hidden states are already being read")
        self._newest.clear()
        self._margins.clear()
        for index, block in self._hooked.items():
            self._handles.append(block.register_forward_hook(self._keep(index)))
        if self.compared:
            self._handles.append(self._model.register_forward_hook(self._compare))
        return self

    def __exit__(self, *error: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def __getitem__(self, block: int) -> Tensor:
        """The block's newest output, (B, hidden size)."""
        index = self._index(block)
        if index not in self._hooked:
            raise InvalidValue("block", block, f"one that is read: {sorted(self._hooked)}")
        if index not in self._newest:
            raise RuntimeError("hidden states before the first forward")
        return self._newest[index]

    def margin(self, token: bytes) -> Tensor:
        """How far the best token's log-probability is above this one's, (B,), float32 or wider."""
        if token not in self.compared:
            raise InvalidValue("token", token, f"one that is compared: {sorted(self.compared)}")
        if token not in self._margins:
            raise RuntimeError("margins before the first forward")
        return self._margins[token]

    def snapshot(self, copied: Callable[[Tensor], Tensor]) -> HiddenStates:
        """Copies of the newest states, which stay what they are while the model goes on."""
        twin = copy.copy(self)
        twin._newest = {index: copied(states) for index, states in self._newest.items()}
        twin._margins = {token: copied(margin) for token, margin in self._margins.items()}
        twin._handles = []
        return twin

    def _index(self, block: int) -> int:
        if not -self._count <= block < self._count:
            raise InvalidValue("block", block, f"{-self._count} to {self._count - 1}")
        return block % self._count

    def _keep(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not self._meant():
                return
            hidden = output[0] if isinstance(output, tuple) else output
            # A copy: a view would hold the whole prompt's states until the next forward.
            self._newest[index] = hidden[:, -1].detach().clone()

        return hook

    def _compare(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not self._meant():
            return
        scores = margins(output.logits[:, -1].detach(), self.compared.values())
        self._margins = dict(zip(self.compared, scores, strict=True))


def widened(logits: Tensor) -> Tensor:
    """Half precision is widened before anything acts on it; float64 stays."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def margins(logits: Tensor, tokens: Iterable[int]) -> list[Tensor]:
    """How far some tokens' log-probabilities are below the best one's, (B,) each."""
    indices = list(tokens)
    if not indices:
        return []
    wide = widened(logits)
    best = wide.amax(-1)
    # The sum that both are normalised by is the same.
    return [best - wide[:, index] for index in indices]


class Reading:
    """The numbers of a forward at the newest token of row `row` of the batch."""

    def __init__(self, states: HiddenStates, row: int) -> None:
        self._states, self._row = states, row

    def hidden(self, block: int) -> Tensor:
        """The hidden state behind a block, (hidden size,)."""
        return self._states[block][self._row]

    def margin(self, token: bytes) -> float:
        """By how much the best next token's log-probability is above this one's."""
        return float(self._states.margin(token)[self._row])


def _blocks(model: Any) -> Sequence[nn.Module]:
    """The decoder's blocks, in order."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    for owner in (decoder, getattr(model, "base_model", None)):
        layers = getattr(owner, "layers", None)
        if isinstance(layers, nn.ModuleList) and len(layers):
            return list(layers)
    allowed = "a causal language model of transformers with its blocks in `layers`"
    raise InvalidValue("model", type(model).__name__, allowed)
