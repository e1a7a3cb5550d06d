"""A decode step in which attention is one operator, so that a compiler takes the rest whole."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from attention.errors import InvalidValue
from attention.patching.cache import AttentionCache
from attention.patching.patched import announce, padding_mask
from attention.patching.recurrent import StateCache

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Raised with every change of what is compiled: pieces of another version are not used.
VERSION = 3
# What the config of a model that is being exported calls its attention.
_ATTENTION = "lil_attention_operator"
#: What such a step may differ by from an eager one, of the largest score: roundings of sums.
#: Norms of many models are in float32 whatever the model is in.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.06, torch.float16: 0.02}
#: Rows that a step is tried on where two differ: in a model of 8-bit layers a last bit may decide
#: between two whole numbers in some of them.
ROWS = 8
#: These may differ by so many times what the model's own scores do where last bits change.
TIMES_OWN = 2
Names = tuple[str, ...]
#: What follows the scores (R, V) of a step in its graph; it is also given the tokens read, (R, 1),
#: and which rows are live, (R,) int32, and gives tensors of R rows. Where live is 0 it must change
#: nothing. It holds what it reads, at fixed addresses, and is captured anew for any other object.
Then = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


@dataclass
class Call:
    """One forward that runs compiled: the cache it goes through, and what went wrong in it.

    C++ passes no exception of Python on: the first is raised when the step has come back.
    """

    cache: AttentionCache
    positions: Tensor
    error: BaseException | None = None


#: The forward that runs in this thread. A graph holds tensors and numbers, and no cache.
CALL: ContextVar[Call] = ContextVar("lil_compiled_call")


@functools.cache
def operator() -> Any:
    """`lil::attend`, defined at its first use.

    q (B, Hq, 1, D), k and v (B, Hkv, 1, D) to (B, 1, Hq, D); state is that of the cache in `CALL`.
    """
    library: Any = torch.library.Library("lil", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(
        "attend(Tensor q, Tensor k, Tensor v, float scaling, int layer, Tensor? sinks) -> Tensor"
    )
    for device in ("CPU", "CUDA"):
        library.impl("attend", _attend, device)
    torch.library.register_fake("lil::attend", empty_output, lib=library)
    operator.library = library  # type: ignore[attr-defined]  # it goes when nobody holds it
    return torch.ops.lil.attend.default


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, layer: int, sinks: Tensor | None
) -> Tensor:
    call = CALL.get()
    if call.error is None:
        try:
            more = None, scaling, call.positions, sinks
            return call.cache.attend(layer, q, k, v, *more).contiguous()
        except BaseException as error:
            call.error = error
    return empty_output(q, k, v, scaling, layer, sinks).zero_()


def empty_output(
    q: Tensor, _k: Tensor, v: Tensor, _scaling: float, _layer: int, _sinks: Tensor | None
) -> Tensor:
    """What the operator gives for such arguments, not filled in: (B, 1, Hq, D)."""
    B, Hq, T, _ = q.shape
    return q.new_empty(B, T, Hq, v.shape[3])


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """What a model that is being exported calls; its other arguments were checked in the prompt."""
    more = kwargs["scaling"], module.layer_idx, kwargs.get("s_aux")
    return operator()(query, key, value, *more), None


class _NoCache(StateCache):
    """Hands keys and values on; the cache in `CALL` stores them."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        return key_states, value_states


class _Step(nn.Module):
    """One token a row, (B, 1), at positions (B, 1), to scores (B, V) and outputs of `states`."""

    def __init__(self, model: PreTrainedModel, states: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.model = model
        self._outputs: list[Tensor] = []
        for module in states:
            module.register_forward_hook(self._add)

    def _add(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        self._outputs.append(hidden[:, -1])

    def forward(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        more = {"past_key_values": _NoCache(1), "use_cache": True, "logits_to_keep": 1}
        scores = self.model(input_ids=ids, position_ids=positions, **more).logits[:, -1]
        outputs = scores, *self._outputs
        self._outputs.clear()  # the exporter refuses tensors that stay in a module
        return outputs


def refusal(model: PreTrainedModel) -> str | None:
    """Why a model's step cannot be compiled, as far as it can be seen before trying."""
    for name, module in model.named_modules():
        called = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if any(hook is not announce for hook in called):
            return f"{name or 'the model'} has a hook, which a compiled step would not call"
        if "forward" in vars(module):
            return f"the forward of {name or 'the model'} was replaced by another one"
        if any(isinstance(x, Tensor) and x.is_mkldnn for x in vars(module).values()):
            return f"{name} has weights that only its own kernels can read"
    return None


def constants(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters and buffers by the names that an exported step has for them."""
    step = _Step(model)
    parameters = step.named_parameters(remove_duplicate=False)
    return dict(chain(parameters, step.named_buffers(remove_duplicate=False)))


def exported(model: PreTrainedModel, states: Sequence[str]) -> ExportedProgram:
    """One decode step of a model, of a copy that shares its tensors, for any number of rows."""
    from torch.export import Dim, export  # a third of a second, which most who import need not pay

    operator()
    AttentionInterface.register(_ATTENTION, _attention)
    AttentionMaskInterface.register(_ATTENTION, padding_mask)
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    twin = copy.deepcopy(model, shared)
    for module in twin.modules():
        module._forward_pre_hooks.clear()
    twin.set_attn_implementation(_ATTENTION)
    ids = torch.zeros(4, 1, dtype=torch.int64, device=model.device)  # 1 row would be a constant
    rows = {0: Dim("rows", min=1)}
    with torch.no_grad():
        step = _Step(twin, [twin.get_submodule(name) for name in states])
        return export(step, (ids, ids + 1), dynamic_shapes=(rows, rows), strict=False)


class NotCompiled(Exception):  # noqa: N818 - it names a state that callers go on from, not a fault
    """A step that could not be compiled, with the reason; the model runs as it is."""

    @classmethod
    def because(cls, error: Exception) -> NotCompiled:
        """The first line of what torch or a compiler raised."""
        lines = str(error).strip().splitlines() or [""]
        return cls(f"{type(error).__name__}: {lines[0][:200]}")


class DecodeStep(ABC):
    """A model's decode step, attention being one operator in it: for every method and cache.

    It sees changes of weights in place; hooks that are added later it does not call.

    Attributes:
        seconds: what making it took; 0 where it was kept from earlier.
        states: names of modules whose outputs it returns after the scores.
        how: what was done to make it, in words.
    """

    seconds: float
    states: Names
    how: ClassVar[str]

    def __call__(self, cache: AttentionCache, ids: Tensor, positions: Tensor) -> Tensor:
        """Scores (B, V) of the tokens behind `ids`, as a forward of the model; see `followed`."""
        return self.followed(cache, ids, positions)[0][0]

    def follows(self, _cache: AttentionCache) -> bool:
        """Whether a step of this cache is one graph, which can hold what follows."""
        return False

    def followed(
        self, cache: AttentionCache, ids: Tensor, positions: Tensor, then: Then | None = None
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """What `then` makes of the scores, or they alone; outputs (B, hidden size) of `states`.

        `ids` and `positions` are each row's newest token and its position, (B, 1). Where it cannot
        be made for so many rows `NotCompiled` is raised, and the cache is as it was.
        """
        if not cache.session.open:
            closed = f"a cache of a closed {cache.backend.name} block"
            raise InvalidValue("cache", closed, "one of an open block")
        cache.expect(1)
        call = Call(cache, positions)
        before = CALL.set(call)
        try:
            outputs = self.run(ids.contiguous(), positions.contiguous(), then)
        except RuntimeError as error:
            # A signal that comes while the step is in Python leaves it as an error of C++.
            name, _, code = str(error).partition("\n")[0].partition(": ")
            if name == "KeyboardInterrupt":
                raise KeyboardInterrupt from error
            if name == "SystemExit":
                raise SystemExit(int(code) if code.isdigit() else 1) from error
            raise
        finally:
            CALL.reset(before)
        if call.error is not None:
            raise call.error
        edge = len(outputs) - len(self.states)
        return outputs[:edge], outputs[edge:]

    @abstractmethod
    def run(self, ids: Tensor, positions: Tensor, then: Then | None) -> Sequence[Tensor]:
        """Scores, or what follows them, and states, through the cache in `CALL`."""


def probe(step: DecodeStep, model: PreTrainedModel, cache: AttentionCache) -> None:
    """Compare a step with the model itself on a few tokens."""
    tolerance = TOLERANCE[model.dtype]
    for rows in (2, ROWS):
        ids = torch.arange(1, 1 + 4 * rows, device=model.device).view(rows, 4) * 7
        ids %= model.get_input_embeddings().num_embeddings
        wanted, read = _eager(model, cache, ids)
        with torch.inference_mode():
            scores = step(read, ids[:, 3:], read.seen[:, None]).double()
        differences = _apart(scores, wanted)
        worst, half = float(differences.max()), float(differences.median())
        if worst <= tolerance:
            return
    # A step that computes something else does so in every row.
    if half <= tolerance:
        nudged = (_nudged(model, cache, ids, seed) for seed in (0, 1))
        own = max(float(_apart(scores_of_nudged, wanted).max()) for scores_of_nudged in nudged)
        if worst <= max(tolerance, TIMES_OWN * own):
            return
    most = f"in half of {ROWS} rows by {half:.2g} or more"
    raise NotCompiled(f"its scores differ from the model's by {worst:.2g} of the largest, {most}")


@torch.inference_mode()
def _eager(
    model: PreTrainedModel, cache: AttentionCache, ids: Tensor
) -> tuple[Tensor, AttentionCache]:
    """Scores behind the last of some tokens, (B, V), and a cache of the others."""
    eager = AttentionCache(cache.session.full_session)
    model(input_ids=ids[:, :3], past_key_values=eager, use_cache=True, logits_to_keep=1)
    read = eager.clone()
    inputs = {"input_ids": ids[:, 3:], "position_ids": eager.seen[:, None]}
    scores = model(**inputs, past_key_values=eager, use_cache=True, logits_to_keep=1).logits[:, -1]
    return scores.double(), read


def _apart(scores: Tensor, wanted: Tensor) -> Tensor:
    """The largest difference of each row, of the row's largest score, (B,)."""
    return (scores - wanted).abs().amax(-1) / wanted.abs().amax(-1)


def _nudged(model: PreTrainedModel, cache: AttentionCache, ids: Tensor, seed: int) -> Tensor:
    """Scores of the model itself with the last bits of its embeddings changed, (B, V)."""
    dice = torch.Generator().manual_seed(seed)

    def nudge(_module: object, _args: object, embedded: Tensor) -> Tensor:
        # Norms in float32 see no finer changes.
        step = 2 * max(torch.finfo(x).eps for x in (embedded.dtype, torch.float32))
        moved = torch.rand(embedded.shape, generator=dice).to(embedded.device) * 2 - 1
        return embedded * (1 + step * moved.to(embedded.dtype))

    with model.get_input_embeddings().register_forward_hook(nudge):
        return _eager(model, cache, ids)[0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what compilers print; their errors are raised."""
    level = logging.getLogger("torch").level
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch").setLevel(level)
