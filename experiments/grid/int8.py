"""Linear layers that multiply in 8 bits, which on a CPU is what makes models of billions usable."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

import attention
from attention.errors import InvalidValue
from attention.patching.attention_op import CALL

#: The largest whole number that a scaled value may take, on both sides of zero.
LARGEST = 127
#: The number without sign that stands for zero.
ZERO = 128
# Rows of zeros are divided by it.
_LEAST = 1e-30
# Rows scaled together: more of them, as in prompts, would leave the processor's caches.
_AT_ONCE = 256
# Where a model has its layers of whole numbers, in order.
_LAYERS = "_lil_int8_layers"


class Int8Linear(nn.Module):
    """A linear layer of whole numbers: weights with a scale for each output, inputs for each token.

    Sums of products are whole numbers and so exact, which is why a row has the same outputs in
    whatever batch it is.

    Args:
        linear: the layer, in any floating dtype; it is not kept.
        place: of this layer among those of its model.
    """

    def __init__(self, linear: nn.Linear, place: int = 0) -> None:
        super().__init__()
        self.place = place
        weight = linear.weight.detach().float()
        self.out_features, self.in_features = weight.shape
        scales, numbers = scaled(weight)
        signed = (numbers.to(torch.int16) - ZERO).to(torch.int8)
        self.scales = nn.Buffer(scales.squeeze(1))
        self.zeros = nn.Buffer(torch.zeros(self.out_features, dtype=torch.int32))
        self.packed = _Packed(signed)
        # A linear layer without it says that it has one.
        bias: Tensor | None = linear.bias
        self.with_bias = bias is not None
        none = torch.zeros(0)
        self.bias = nn.Buffer(none if bias is None else bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (..., out features) of inputs (..., in features), in their dtype."""
        rows = x.reshape(-1, self.in_features)
        if torch.compiler.is_exporting():  # a decode step, of which the graph has every row
            found = self._product(rows, operator())
        elif len(rows) <= _AT_ONCE:
            found = self._product(rows)
        else:
            found = x.new_empty(len(rows), self.out_features)
            for at in range(0, len(rows), _AT_ONCE):
                found[at : at + _AT_ONCE] = self._product(rows[at : at + _AT_ONCE])
        return found.reshape(*x.shape[:-1], self.out_features)

    def _product(self, rows: Tensor, multiply: Any = None) -> Tensor:
        scales, numbers = scaled(rows.float())
        if multiply is None:
            found = self.packed.times(numbers, self.scales, self.zeros)
        else:
            found = multiply(numbers, self.scales, self.zeros, self.place)
        if self.with_bias:
            return torch.addcmul(self.bias, found, scales).to(rows.dtype)
        return found.mul_(scales).to(rows.dtype)


class _Packed:
    """Weights in blocks of the CPU's kernels, which alone can read them.

    Nothing else does anything with them: no graph holds them, and copies of a layer share them.

    Args:
        numbers: (out features, in features), whole, with a sign.
    """

    def __init__(self, numbers: Tensor) -> None:
        self._blocks = torch.ops.onednn.qlinear_prepack(numbers, None)

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Packed:
        return self

    def times(self, numbers: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        """Products (n, out features) with inputs of whole numbers (n, in features)."""
        # Of the two kinds of inputs that it takes, signed ones have no fast kernel.
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            numbers, 1.0, ZERO, self._blocks, scales, zeros,
            None, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return found


def scaled(rows: Tensor) -> tuple[Tensor, Tensor]:
    """A scale for each row, (n, 1), and whole numbers (n, size), from which `ZERO` is to be taken.

    The scale times what is left is the value, to half a scale. A row with a number that is not
    finite has a scale that is none either, and so has what is multiplied with it.
    """
    # As few operations as there can be: for a few rows launching them is what takes time.
    largest = rows.abs().amax(dim=1, keepdim=True)
    scales = largest.mul_(1 / LARGEST).add_(_LEAST)
    # Cutting off what is behind the point rounds numbers above zero, if a half is added.
    return scales, (rows / scales).add_(ZERO + 0.5).to(torch.uint8)


@functools.cache
def operator() -> Any:
    """`lil::int8_product`, with which a compiled step multiplies, defined when it is first needed.

    Its weights are those of the model that the step in `CALL` belongs to.
    """
    library: Any = torch.library.Library("lil", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("int8_product(Tensor numbers, Tensor scales, Tensor zeros, int place) -> Tensor")
    library.impl("int8_product", _multiplied, "CPU")
    torch.library.register_fake("lil::int8_product", _empty, lib=library)
    operator.library = library  # type: ignore[attr-defined]  # it goes when nobody holds it
    return torch.ops.lil.int8_product.default


def _multiplied(numbers: Tensor, scales: Tensor, zeros: Tensor, place: int) -> Tensor:
    call = CALL.get()
    if call.error is None:
        try:
            layers = getattr(call.cache.session.model, _LAYERS)
            found: Tensor = layers[place].packed.times(numbers, scales, zeros)
            return found
        except BaseException as error:
            call.error = error
    return _empty(numbers, scales, zeros, place).zero_()


def _empty(numbers: Tensor, scales: Tensor, _zeros: Tensor, _place: int) -> Tensor:
    return scales.new_empty(numbers.shape[0], scales.shape[0])


def in_int8(model: Any, device: str) -> Any:
    """A model on a CPU whose linear layers, the language-model head among them, are `Int8Linear`.

    Embeddings, norms and layers of other kinds stay as they are.

    Raises:
        InvalidValue: another device, a build of torch without these kernels, or a model of other
            layers alone.
    """
    if device != "cpu":
        raise InvalidValue("weights", "int8", f"stored on {device}: whole numbers are for CPUs")
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise InvalidValue("weights", "int8", "stored: this build of torch has no oneDNN")
    linear = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    if not linear:
        raise InvalidValue("weights", "int8", f"stored: {type(model).__name__} has no linear layer")
    # What a model attends to is tried with weights as they are stored: rounding to 8 bits makes as
    # much of the last bit of a number as of the others.
    with attention.get("full").on(model):
        pass
    layers = []
    for place, (parent, name) in enumerate(linear):  # the whole is never held twice
        layers.append(Int8Linear(getattr(parent, name), place))
        setattr(parent, name, layers[-1])
    operator()
    # Not as a module's list of modules, which would give every weight a second name.
    object.__setattr__(model, _LAYERS, tuple(layers))
    return model
