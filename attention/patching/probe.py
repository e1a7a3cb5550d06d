"""Whether a model attends the same through our cache as by itself, tried on a few tokens.

What a model is called says nothing of how it attends; what it does can be seen. A *survey* is one
forward in which no attention is computed: which layers hand over keys, under which mask, with which
arguments, and how a key turns when its position changes. The *comparison* is the model's own
forward of two short texts, each alone, against the same texts in one padded batch under full
attention through our cache: a prompt, a second part of it, and a decode step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from attention.core.kernels import accumulator
from attention.core.ropes import Rope, rotate
from attention.errors import InvalidValue
from attention.patching.families import check_family
from attention.patching.states import States

#: The largest difference of hidden states, as a part of their length, that is rounding of sums.
#: Norms of many models are in float32 whatever the model is in.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
# Of a turned key, beside the model's own; cosines of many models are in float32.
_TURN_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}
_HALF_TURN_TOLERANCE = 0.05
# What a config calls the attention of a survey.
_SURVEY = "lil_attention_survey"
_TAG = "_lil_survey"
# Arguments that modules hand to their attention function and that change nothing in it, or that
# ours takes into account.
KNOWN = frozenset(
    {"cache_position", "dropout", "is_causal", "position_embeddings", "position_ids", "s_aux"}
    | {"scaling", "sliding_window", "use_cache", "past_key_values", "output_attentions"}
    | {"output_hidden_states", "output_router_logits", "return_dict", "layer_idx"}
)
# Kinds of layers that remember nothing of earlier tokens, in the words of configs.
MEMORYLESS = ("mlp", "moe")
# Tokens of the two texts, in columns: a prompt, its second part, and a decode step.
_PARTS = (6, 2, 1)
# The same for models that cannot go on with several tokens.
_WHOLE = (8, 1)
# Padding before the shorter text.
_PADDING = 2
# How far masks are looked at, in tokens.
_LONGEST = 1 << 20
# Columns of a survey, and how much later the second row's positions are.
_COLUMNS, _LATER = 3, 9


@dataclass(frozen=True)
class Anatomy:
    """How a model attends, as the probe found it.

    Attributes:
        layers: of the model, of whatever kind.
        softmax: those that hand keys to the cache, in the order in which they run. Methods act on
            these, and everything that a cache counts is counted over these.
        windows: the model's own sliding window of each of these, in tokens, as its masks have it;
            None where it sees all earlier tokens.
        given: what each of these hands its attention function as `sliding_window`; that name is
            left out where it hands nothing.
        turns: how keys of each of these turn with their position: "halves", as `Rope` turns them;
            "none", where they have no position; "other".
        states: layers that keep a state of their own beside keys or instead of them.
        difference: the largest one that the comparison found, as a part of the length of a hidden
            state.
        parts: whether several tokens on top of others are read as the model reads them in one
            forward; false where layers drop the state they had.
    """

    layers: int
    softmax: tuple[int, ...]
    windows: tuple[int | None, ...]
    given: tuple[int | None, ...]
    turns: tuple[str, ...]
    states: tuple[int, ...]
    difference: float = 0.0
    parts: bool = True
    places: Mapping[int, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", {index: i for i, index in enumerate(self.softmax)})

    @classmethod
    def plain(cls, layers: int) -> Self:
        """That of layers which all attend to all earlier tokens, as Llama's do."""
        none, halves = (None,) * layers, ("halves",) * layers
        return cls(layers, tuple(range(layers)), none, none, halves, ())


# ---------------------------------------------------------------- the survey


@dataclass
class _Call:
    """One layer's call of its attention function."""

    index: int
    key: Tensor
    value: Tensor
    mask: Any
    given: dict[str, Any]


class _Survey(Cache):
    """Takes down what a model hands to its cache and to its attention function."""

    is_compileable = False

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.calls: list[_Call] = []
        self.handed: list[int] = []
        self.states = States()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.handed.append(layer_idx)
        setattr(key_states, _TAG, (self, layer_idx))
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002
        return (query_length if isinstance(query_length, int) else len(query_length)), 0

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None: nothing was read before."""

    get_recurrent_state = get_conv_state

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        return False

    def is_recording_past(self, layer_idx: int) -> bool:  # noqa: ARG002
        return False

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        return self.states.push((layer_idx, state_idx), conv_states, conv_kernel_size)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        return self.states.write((layer_idx, state_idx), recurrent_states)


def _surveyed(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    **given: Any,
) -> tuple[Tensor, None]:
    """The attention function of a survey: each query reads the value of its own token alone.

    So two rows of the same tokens have the same hidden states, wherever their positions begin, and
    their keys differ by the turn alone.
    """
    survey, index = getattr(key, _TAG, (None, 0))
    if not isinstance(survey, _Survey):
        raise InvalidValue(
            "model",
            module.config.model_type,
            f"keys as the cache returned them: {type(module).__name__} attends to others, of "
            "another layer or changed behind the cache",
        )
    survey.calls.append(_Call(index, key, value, attention_mask, given))
    read = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
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
    """How many tokens a query sees, itself included; None where it sees all earlier ones.

    Raises:
        InvalidValue: what it sees is neither all earlier tokens nor the newest of them.
    """
    zero = torch.tensor(0)
    found: set[int | None] = set()
    for at in (longest + 3, longest + longest // 2 + 8):
        keys = torch.arange(at + 2)
        visible = torch.as_tensor(sees(zero, zero, torch.tensor(at), keys)).expand(len(keys))
        if bool(visible[at + 1]):
            raise InvalidValue(
                "model", family, f"causal attention: layer {index} sees later tokens"
            )
        count = int(visible.sum())
        if not bool(visible[at + 1 - count : at + 1].all()):
            found.add(-1)
        found.add(None if count == at + 1 else count)
    if len(found) > 1 or -1 in found:
        raise InvalidValue(
            "model",
            family,
            f"attention to all earlier tokens or to the newest ones: layer {index} sees others",
        )
    return found.pop()


def _turning(rope: Rope, call: _Call, positions: Tensor) -> str:
    """How keys of a layer differ between the same tokens at two places; see `Anatomy.turns`."""
    early, late = call.key[:1], call.key[1:]
    kind = early.dtype
    allowed = _TURN_TOLERANCE.get(kind, _HALF_TURN_TOLERANCE) * float(early.abs().max())
    if float((early - late).abs().max()) <= allowed / 10:
        return "none"
    try:
        rope.require_fixed("")
        turn = rope.turn(positions[:1], positions[1:], early)
        turned = rotate(early.to(accumulator(kind)), turn)
    except (InvalidValue, RuntimeError, TypeError):  # no such embedding, or of another size
        return "other"
    return "halves" if float((turned - late).abs().max()) <= allowed else "other"


def rope_of(model: PreTrainedModel) -> Rope:
    """The model's rotary embedding, wherever it has it; whether keys turn by it is tried out."""
    names = ("rotary_emb", "pos_emb")
    found = (getattr(model.base_model, name, None) for name in names)
    return Rope(next((module for module in found if module is not None), None))


def survey(model: PreTrainedModel) -> Anatomy:
    """What a model's layers hand over, in one forward of a few tokens.

    Args:
        model: that attends by `_SURVEY`.

    Raises:
        InvalidValue: attention of a kind that methods are not defined on.
    """
    config, taken = model.config, _Survey()
    family = config.model_type
    positions = torch.arange(_COLUMNS, device=model.device) + torch.tensor(
        [[0], [_LATER]], device=model.device
    )
    ids = _text(model, _COLUMNS).expand(2, -1)
    _forward(model, ids, positions, torch.ones_like(ids), taken)
    if not taken.calls:
        raise InvalidValue(
            "model",
            family,
            "layers that attend through transformers' attention interface: none of these does",
        )
    order = [call.index for call in taken.calls]
    if order != taken.handed or len(set(order)) < len(order):
        raise InvalidValue(
            "model",
            family,
            f"layers that attend once, to keys of their own: keys came from {taken.handed} and "
            f"were attended to in {order}",
        )
    _check_others(config, {*order, *taken.states.layers})
    rope = rope_of(model)
    sizes = ("max_position_embeddings", "sliding_window", "attention_chunk_size")
    longest = max(64, *(2 * int(getattr(config, name, None) or 0) for name in sizes))
    longest = min(longest, _LONGEST)
    seen: dict[int, int | None] = {}
    found: list[tuple[int | None, int | None, str]] = []
    for call in taken.calls:
        _check_call(call, family)
        sees = getattr(call.mask, _TAG, None)
        if sees is None:
            raise InvalidValue(
                "model",
                family,
                f"masks that transformers makes: layer {call.index} was handed "
                f"{type(call.mask).__name__}, which does not tell what it sees",
            )
        if id(sees) not in seen:
            seen[id(sees)] = _window(sees, longest, family, call.index)
        window = seen[id(sees)]
        turns = "other" if window is not None else _turning(rope, call, positions)
        found.append((window, call.given.get("sliding_window"), turns))
    if rope.module is not None and all(x[2] == "none" for x in found):
        found = [(window, given, "other") for window, given, _ in found]
    return Anatomy(
        layers=config.num_hidden_layers,
        softmax=tuple(order),
        windows=tuple(window for window, _, _ in found),
        given=tuple(given for _, given, _ in found),
        turns=tuple(turns for _, _, turns in found),
        states=taken.states.layers,
    )


def _check_others(config: Any, known: set[int]) -> None:
    """Refuse layers that may remember something behind the cache."""
    kinds = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None)
    for index in range(config.num_hidden_layers):
        kind = kinds[index] if kinds and index < len(kinds) else "unknown"
        if index not in known and kind not in MEMORYLESS:
            raise InvalidValue(
                "model",
                config.model_type,
                "layers whose keys or states are in the cache: nothing of layer "
                f"{index} ({kind}) is",
            )


def _check_call(call: _Call, family: str) -> None:
    unknown = sorted(name for name, x in call.given.items() if x is not None and name not in KNOWN)
    if unknown:
        raise InvalidValue(
            unknown[0],
            f"given by layer {call.index} of {family}",
            "None: attention through our cache does not take it into account",
        )
    if call.value.shape != call.key.shape:
        raise InvalidValue(
            "model",
            family,
            f"keys and values of one size: those of layer {call.index} are "
            f"{tuple(call.key.shape)} and {tuple(call.value.shape)}",
        )


# ---------------------------------------------------------------- the comparison


def _text(model: PreTrainedModel, tokens: int, seed: int = 0) -> Tensor:
    """Some tokens of a model's vocabulary, (1, tokens)."""
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = (torch.arange(tokens) * 7 + seed * 5 + 11) % vocabulary
    given: Tensor = ids[None].to(model.device)
    return given


def _forward(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Any
) -> Tensor:
    """Hidden states behind the last norm, (B, T, ...), without hooks of the whole model."""
    output = model.base_model(
        input_ids=ids,
        position_ids=positions,
        attention_mask=mask,
        past_key_values=cache,
        use_cache=cache is not None,
    )
    hidden: Tensor = output[0]
    return hidden


def own(model: PreTrainedModel, parts: Sequence[int] = ()) -> list[Tensor]:
    """What the model itself makes of the two texts, each alone, (1, n, ...).

    Args:
        model: that attends by itself.
        parts: columns of each forward, through the model's own cache; all in one, and without a
            cache, by default.
    """
    found = []
    for seed, padding in enumerate((0, _PADDING)):
        ids = _text(model, sum(_PARTS) - padding, seed)
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        if parts:
            sizes, cache = [parts[0] - padding, *parts[1:]], DynamicCache(config=model.config)
            pairs = zip(torch.split(ids, sizes, 1), torch.split(positions, sizes, 1), strict=True)
            found.append(torch.cat([_forward(model, *x, None, cache) for x in pairs], dim=1))
        else:
            found.append(_forward(model, ids, positions, None, None))
    return found


def batched(model: PreTrainedModel, cache: Any, parts: Sequence[int]) -> list[Tensor]:
    """The same through a cache, of both texts in one padded batch.

    Args:
        model: that attends through our cache.
        cache: empty, under full attention.
        parts: columns of each forward.
    """
    total = sum(_PARTS)
    ids = torch.zeros(2, total, dtype=torch.int64, device=model.device)
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, _PADDING)):
        ids[row, padding:] = _text(model, total - padding, row)[0]
        mask[row, :padding] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    got, start = [], 0
    for part in parts:
        end = start + part
        here = slice(start, end)
        got.append(_forward(model, ids[:, here], positions[:, here], mask[:, :end], cache))
        start = end
    every = torch.cat(got, dim=1)
    return [every[:1], every[1:, _PADDING:]]


def apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The largest difference between hidden states, as a part of the length of one.

    Infinite where a number is not finite.
    """
    worst = 0.0
    for x, y in zip(ours, theirs, strict=True):
        found = (x.double() - y.double()).norm(dim=-1) / y.double().norm(dim=-1).clamp(min=1e-30)
        if not bool(found.isfinite().all()):
            return float("inf")
        worst = max(worst, float(found.max()))
    return worst


@contextmanager
def undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, no gradients and no hooks, whatever the caller has; all come back.

    Hooks of others are not called: what they count or record is not meant to see a probe.
    """
    training = [module for module in model.modules() if module.training]
    hooks = [
        (registered, dict(registered))
        for module in model.modules()
        for registered in (module._forward_pre_hooks, module._forward_hooks)
        if registered
    ]
    accelerators = [model.device] if model.device.type == "cuda" else []
    for module in training:
        module.training = False
    for registered, _ in hooks:  # in place: who removes a hook later knows it by its dictionary
        registered.clear()
    try:
        with (
            torch.random.fork_rng(devices=accelerators),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            yield
    finally:
        for module in training:
            module.training = True
        for registered, before in hooks:
            new = dict(registered)
            registered.clear()
            registered.update(before | new)


#: Reads the texts through our cache, in forwards of so many columns, as `batched` does.
Through = Callable[[Anatomy, Sequence[int]], list[Tensor]]


def probed(model: PreTrainedModel, through: Through) -> Anatomy:
    """What is known of a model's attention; found out where it was not before.

    The model is left as it was. What was found is remembered as long as the model lives and its
    config stays the same.

    Args:
        model: that attends by itself.
        through: reads the texts through our cache, as `batched` does.

    Raises:
        InvalidValue: attention that is not the model's own through our cache, with the reason or
            with the difference.
    """
    check_family(model.config)
    known = _KNOWN.get(model)
    state = json.dumps(model.config.to_dict(), sort_keys=True, default=str)
    if known is None or known[0] != state:
        known = _KNOWN[model] = state, _found(model, through)
    if isinstance(known[1], InvalidValue):
        raise InvalidValue(known[1].field, known[1].value, known[1].allowed)
    return known[1]


def _found(model: PreTrainedModel, through: Through) -> Anatomy | InvalidValue:
    AttentionInterface.register(_SURVEY, _surveyed)
    AttentionMaskInterface.register(_SURVEY, _masked)
    family, before = model.config.model_type, model.config._attn_implementation
    with undisturbed(model):
        if before == "flex_attention":  # compiled for each shape, which would take a minute
            model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
        try:
            wanted = own(model)
        finally:
            model.set_attn_implementation(before)
        if not all(bool(x.isfinite().all()) for x in wanted):
            return InvalidValue(
                "model", family, "weights with which hidden states of a few tokens are finite"
            )
        try:
            model.set_attn_implementation(_SURVEY)
            try:
                anatomy = survey(model)
            finally:
                model.set_attn_implementation(before)
            allowed = TOLERANCE.get(model.dtype, 0.0)
            difference, parts = apart(through(anatomy, _PARTS), wanted), True
            if anatomy.states and not difference <= allowed:
                # Whether it is only that the model itself forgets its states between two parts.
                ours = through(anatomy, _WHOLE)
                whole = apart(ours, wanted)
                if not whole <= allowed:  # its decode steps may round otherwise than its prefill
                    whole = apart(ours, own(model, _WHOLE))
                if whole <= allowed:
                    difference, parts = whole, False
        except InvalidValue as error:
            # Without its traceback, which would keep the model.
            return InvalidValue(error.field, error.value, error.allowed)
        except (AttributeError, IndexError, KeyError, NotImplementedError) as error:
            return _stumbled(family, error)
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            return _stumbled(family, error)
    if not difference <= allowed:
        return InvalidValue(
            "model",
            family,
            "a model that attends through our cache as by itself: hidden states of a few tokens "
            f"differ by {difference:.2g} of their length",
        )
    return replace(anatomy, difference=difference, parts=parts)


def _stumbled(family: str, error: Exception) -> InvalidValue:
    if isinstance(error, AttributeError) and not hasattr(Cache, "get_conv_state"):
        return InvalidValue(
            "model",
            family,
            "a model that takes transformers' common cache: with transformers "
            f"{transformers.__version__} this one needs more than it has ({error}), with newer "
            "ones states of other layers are kept in it",
        )
    said = (str(error).strip().splitlines() or [""])[0][:200]
    return InvalidValue(
        "model",
        family,
        f"a model that runs through our cache: this one stops with {type(error).__name__}: {said}",
    )


# What was found of each model: its config then, and the anatomy or the reason against it.
_KNOWN: WeakKeyDictionary[PreTrainedModel, tuple[str, Anatomy | InvalidValue]] = WeakKeyDictionary()
