"""How a model's layers attend, seen in a forward without attention, and what caches know of it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from attention.core.kernels import accumulator
from attention.core.ropes import Rope, Still, rotate
from attention.errors import InvalidValue
from attention.layers.layer import Method
from attention.patching.recurrent import StateCache

# Largest difference of a turned key from the model's own; cosines of many models are in float32.
_TURN_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}  # of half precision 0.05
# What a config calls the attention of a survey.
_SURVEY = "lil_attention_survey"
_TAG = "_lil_survey"
# Arguments of attention functions that change nothing in them, or that ours takes into account.
KNOWN = frozenset(
    {"cache_position", "dropout", "is_causal", "position_embeddings", "position_ids", "s_aux"}
    | {"scaling", "sliding_window", "use_cache", "past_key_values", "output_attentions"}
    | {"output_hidden_states", "output_router_logits", "return_dict", "layer_idx"}
)
# Kinds of layers that remember nothing of earlier tokens, in the words of configs.
MEMORYLESS = ("mlp", "moe")
# How far masks are looked at, in tokens.
_LONGEST = 1 << 20
# Columns of a survey, and how much later the second row's positions are.
_COLUMNS, _LATER = 3, 9


@dataclass(frozen=True)
class Anatomy:
    """How a model attends, as the probe measured it.

    Attributes:
        layers: of the model, of whatever kind.
        softmax: those that hand keys to the cache, in the order in which they run: methods act on
            these, and a cache counts these. `windows`, `window_arguments`, `turns` are by these.
        windows: the model's own sliding window in tokens, as its masks have it, or None.
        window_arguments: the `sliding_window` that the attention function is handed, or None.
        turns: how keys turn with their position: "halves", as `Rope` turns them; "none", where they
            have no position; "other".
        states: layers that keep another state, with keys or without.
        difference: the largest of the comparison, as a part of the length of a hidden state.
        parts: whether several tokens on top of others are read as in one forward; false where
            layers drop the state they had.
        heads, groups: KV heads of each of `softmax`, and G of each; none where nobody looked.
        switch: tokens beyond which the model reads its text anew, with keys turned otherwise, as
            Phi-3 does; None where it never does.
    """

    layers: int
    softmax: tuple[int, ...]
    windows: tuple[int | None, ...]
    window_arguments: tuple[int | None, ...]
    turns: tuple[str, ...]
    states: tuple[int, ...]
    difference: float = 0.0
    parts: bool = True
    switch: int | None = None
    heads: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()

    @classmethod
    def plain(cls, layers: int) -> Self:
        """That of layers which all attend to all earlier tokens, as Llama's do."""
        none, halves = (None,) * layers, ("halves",) * layers
        return cls(layers, tuple(range(layers)), none, none, halves, ())


class _Call(NamedTuple):
    """One layer's call of its attention function."""

    layer: int
    group: int
    key: Tensor
    value: Tensor
    mask: Any
    kwargs: dict[str, Any]


class _Survey(StateCache):
    """Takes down what a model hands to its cache and to its attention function."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.handed: list[int] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.handed.append(layer_idx)
        setattr(key_states, _TAG, (self, layer_idx))
        return key_states, value_states


def _surveyed(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """The attention function of a survey: each query reads the value of its own token alone.

    So the keys of two rows of the same tokens differ by their positions alone.
    """
    survey, index = getattr(key, _TAG, (None, 0))
    if not isinstance(survey, _Survey):
        allowed = f"keys as the cache returned them: {type(module).__name__} attends to others"
        raise InvalidValue("model", module.config.model_type, allowed)
    group = query.shape[1] // value.shape[1]
    survey.calls.append(_Call(index, group, key, value, attention_mask, kwargs))
    read = value.repeat_interleave(group, dim=1)
    return read.transpose(1, 2).contiguous(), None


def _masked(
    *_: Any, attention_mask: Tensor | None = None, mask_function: Any = None, **__: Any
) -> Tensor | None:
    """The mask function of a survey: the padding mask, and the function that says who sees whom."""
    if attention_mask is None:
        return None
    mask = attention_mask.clone()
    setattr(mask, _TAG, mask_function)
    return mask


def _window(sees: Callable[..., Tensor], longest: int, family: str, index: int) -> int | None:
    """How many tokens a query sees, itself included; None where it sees all earlier ones."""
    zero = torch.tensor(0)
    windows: set[int | None] = set()
    for at in (longest + 3, longest + longest // 2 + 8):
        keys = torch.arange(at + 2)
        visible = torch.as_tensor(sees(zero, zero, torch.tensor(at), keys)).expand(len(keys))
        if bool(visible[at + 1]):
            allowed = f"causal attention: layer {index} sees later tokens"
            raise InvalidValue("model", family, allowed)
        count = int(visible.sum())
        if not bool(visible[at + 1 - count : at + 1].all()):
            windows.add(-1)
        windows.add(None if count == at + 1 else count)
    if len(windows) > 1 or -1 in windows:
        allowed = "attention to all earlier tokens or to the newest ones"
        raise InvalidValue("model", family, f"{allowed}: layer {index} sees others")
    return windows.pop()


def _turning(rope: Rope, call: _Call, positions: Tensor) -> str:
    """How keys of a layer differ between the same tokens at two places; see `Anatomy.turns`."""
    early, late = call.key[:1], call.key[1:]
    kind = early.dtype
    allowed = _TURN_TOLERANCE.get(kind, 0.05) * float(early.abs().max())
    if float((early - late).abs().max()) <= allowed / 10:
        return "none"
    try:
        rope.require_fixed("")
        turn = rope.turn(positions[:1], positions[1:], early)
        turned = rotate(early.to(accumulator(kind)), turn)
    except (InvalidValue, RuntimeError, TypeError):  # no such embedding, or of another size
        return "other"
    return "halves" if float((turned - late).abs().max()) <= allowed else "other"


@contextmanager
def attending(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """The model attends in another way inside the block."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def rope_of(model: PreTrainedModel) -> Rope:
    """The model's rotary embedding, wherever it has it; whether keys turn by it is tried out."""
    pos_emb = getattr(model.base_model, "pos_emb", None)
    return Rope(getattr(model.base_model, "rotary_emb", pos_emb))


def capacity(tokens: int) -> int:
    """Tokens of a row that are reserved where it may have so many: a multiple of 256."""
    return -(-tokens // 256) * 256


class Session:
    """One `on()` block: the backend, what caches must know of the model, and whether it is open."""

    def __init__(
        self, backend: Method, full: Method, model: Any, engine: str, anatomy: Anatomy
    ) -> None:
        self.backend, self.engine, self.anatomy = backend, engine, anatomy
        self.config, self._model = model.config, weakref.ref(model)
        self.family = model.config.model_type
        # Those that hold keys, which caches count from 0 on, and the model's own sliding windows.
        self.layers, self.windows = len(anatomy.softmax), anatomy.windows
        rope, still = rope_of(model), Rope(Still())
        self.ropes = tuple(still if turns == "none" else rope for turns in anatomy.turns)
        # Rows and tokens of a row that are reserved for captured steps; state grows to as many.
        self.open, self.room = True, (0, 0)
        # Why layers of a class and number cannot be captured, once they were asked.
        self.obstacles: dict[tuple[type, int], str | None] = {}
        self._full = full

    @property
    def model(self) -> Any:
        """The patched model; None once nobody else holds it."""
        return self._model()

    @cached_property
    def full_session(self) -> Session:
        """The same block under full attention: one for all caches that go on so."""
        if self.backend == self._full:
            return self
        twin = copy.copy(self)
        twin.backend, twin.room = self._full, (0, 0)
        return twin

    def close(self) -> None:
        """No cache of this block can be fed any more."""
        self.open = self.full_session.open = False


def survey(model: PreTrainedModel) -> Anatomy:
    """What a model's layers hand over, in one forward of a few tokens."""
    # They change no model until a config names them.
    AttentionInterface.register(_SURVEY, _surveyed)
    AttentionMaskInterface.register(_SURVEY, _masked)
    config, taken, family = model.config, _Survey(), model.config.model_type
    positions = (torch.arange(_COLUMNS) + torch.tensor([[0], [_LATER]])).to(model.device)
    ids = text_of(model, _COLUMNS).expand(2, -1)
    with attending(model, _SURVEY):
        forward(model, ids, positions, torch.ones_like(ids), taken)
    if not taken.calls:
        allowed = "layers that attend through transformers' attention interface: none of these does"
        raise InvalidValue("model", family, allowed)
    order = [call.layer for call in taken.calls]
    if order != taken.handed or len(set(order)) < len(order):
        allowed = f"layers that attend once, to keys of their own: keys came from {taken.handed} "
        raise InvalidValue("model", family, f"{allowed}and were attended to in {order}")
    _check_others(config, {*order, *taken.states.layers})
    rope = rope_of(model)
    sizes = ("max_position_embeddings", "sliding_window", "attention_chunk_size")
    longest = max(64, *(2 * int(getattr(config, name, None) or 0) for name in sizes))
    seen: dict[int, int | None] = {}
    windows, turns = [], []
    for call in taken.calls:
        _check_call(call, family)
        sees = getattr(call.mask, _TAG, None)
        if sees is None:
            what = type(call.mask).__name__
            allowed = f"masks that transformers makes: layer {call.layer} was handed {what}"
            raise InvalidValue("model", family, f"{allowed}, which does not tell what it sees")
        if id(sees) not in seen:
            seen[id(sees)] = _window(sees, min(longest, _LONGEST), family, call.layer)
        windows.append(seen[id(sees)])
        turns.append("other" if windows[-1] is not None else _turning(rope, call, positions))
    if rope.module is not None and {*turns} == {"none"}:
        turns = ["other"] * len(turns)
    arguments = tuple(call.kwargs.get("sliding_window") for call in taken.calls)
    kinds = tuple(windows), arguments, tuple(turns)
    known = config.num_hidden_layers, tuple(order), *kinds, taken.states.layers
    heads, groups = zip(*((call.key.shape[1], call.group) for call in taken.calls), strict=True)
    return Anatomy(*known, heads=heads, groups=groups)


def _check_others(config: Any, known: set[int]) -> None:
    """Refuse layers that may remember something behind the cache."""
    kinds = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None)
    for index in range(config.num_hidden_layers):
        kind = kinds[index] if kinds and index < len(kinds) else "unknown"
        if index not in known and kind not in MEMORYLESS:
            allowed = "layers whose keys or states are in the cache: nothing of layer "
            raise InvalidValue("model", config.model_type, f"{allowed}{index} ({kind}) is")


def _check_call(call: _Call, family: str) -> None:
    unknown = sorted(name for name, x in call.kwargs.items() if x is not None and name not in KNOWN)
    if unknown:
        allowed = "None: attention through our cache does not take it into account"
        raise InvalidValue(unknown[0], f"given by layer {call.layer} of {family}", allowed)
    if call.value.shape != call.key.shape:
        sizes = f"{tuple(call.key.shape)} and {tuple(call.value.shape)}"
        allowed = f"keys and values of one size: those of layer {call.layer} are {sizes}"
        raise InvalidValue("model", family, allowed)


def text_of(model: PreTrainedModel, tokens: int, seed: int = 0) -> Tensor:
    """Some tokens of a model's vocabulary, (1, tokens)."""
    ids = torch.arange(tokens, device=model.device)[None] * 7 + seed * 5 + 11
    text: Tensor = ids % model.get_input_embeddings().num_embeddings
    return text


def forward(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Any
) -> Tensor:
    """Hidden states behind the last norm, (B, T, ...), without hooks of the whole model."""
    past = {"attention_mask": mask, "past_key_values": cache, "use_cache": cache is not None}
    hidden: Tensor = model.base_model(input_ids=ids, position_ids=positions, **past)[0]
    return hidden
