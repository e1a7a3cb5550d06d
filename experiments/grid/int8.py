"""Linear layers that multiply in 8 bits, which on a CPU is what makes models of billions usable."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

import attention
from attention.errors import InvalidValue
from attention.patching.decode_step import CALL

#: The largest scaled value on both sides of zero, and the number without sign that is zero.
LARGEST, ZERO = 127, 128
# Rows of zeros are divided by it.
_LEAST = 1e-30
# Rows scaled together: more of them, as in prompts, would leave the processor's caches.
_AT_ONCE = 256
# Where a model has its layers of whole numbers, in order.
_LAYERS = "_lil_int8_layers"


class Int8Linear(nn.Module):
    """A linear layer of whole numbers, whose sums are exact: a row is the same in any batch."""

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
            products = self._product(rows, operator())
        elif len(rows) <= _AT_ONCE:
            products = self._product(rows)
        else:
            products = x.new_empty(len(rows), self.out_features)
            for at in range(0, len(rows), _AT_ONCE):
                products[at : at + _AT_ONCE] = self._product(rows[at : at + _AT_ONCE])
        return products.reshape(*x.shape[:-1], self.out_features)

    def _product(self, rows: Tensor, multiply: Any = None) -> Tensor:
        scales, numbers = scaled(rows.float())
        if multiply is None:
            products = self.packed.times(numbers, self.scales, self.zeros)
        else:
            products = multiply(numbers, self.scales, self.zeros, self.place)
        if self.with_bias:
            return torch.addcmul(self.bias, products, scales).to(rows.dtype)
        return products.mul_(scales).to(rows.dtype)


class _Packed:
    """Weights in blocks of the CPU's kernels, which alone can read them."""

    def __init__(self, numbers: Tensor) -> None:
        half = numbers // 2
        parts = [half, numbers - half] if saturates() else [numbers]
        self._blocks = [torch.ops.onednn.qlinear_prepack(part, None) for part in parts]
        if not _is_exact(self, numbers):
            allowed = "weights that this processor's 8-bit kernels multiply exactly: stored"
            raise InvalidValue("weights", "int8", allowed)

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Packed:
        return self

    def times(self, numbers: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        """Products (n, out features) with inputs of whole numbers (n, in features)."""
        first, *others = (_product(numbers, part, scales, zeros) for part in self._blocks)
        for other in others:
            first += other
        return first


def _product(numbers: Tensor, blocks: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    # Of the two kinds of inputs that the kernel takes, signed ones have no fast form.
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        numbers, 1.0, ZERO, blocks, scales, zeros,
        None, 1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return product


@functools.cache
def saturates() -> bool:
    """Whether sums of two products end at 16 bits here, as with AVX2 and without VNNI."""
    weights = torch.full((32, 64), LARGEST, dtype=torch.int8)
    blocks = torch.ops.onednn.qlinear_prepack(weights, None)
    inputs = torch.full((_AT_ONCE, 64), 2 * ZERO - 1, dtype=torch.uint8)
    ones, zeros = torch.ones(32), torch.zeros(32, dtype=torch.int32)
    exact = float((2 * ZERO - 1 - ZERO) * LARGEST * 64)
    return any(
        not bool((_product(rows, blocks, ones, zeros) == exact).all())
        for rows in (inputs, inputs[:1])
    )


def _is_exact(packed: _Packed, numbers: Tensor) -> bool:
    """Whether products of the largest input are right, those of the sums of the weights."""
    outputs, size = numbers.shape
    largest = torch.full((1, size), 2 * ZERO - 1, dtype=torch.uint8)
    got = packed.times(largest, torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32))
    exact = numbers.sum(dim=1, dtype=torch.int64) * (ZERO - 1)
    return bool(torch.allclose(got[0].double(), exact.double(), rtol=1e-6, atol=0.5))


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
    """`lil::int8_product` of compiled steps, with the weights of the model in `CALL`."""
    library: Any = torch.library.Library("lil", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("int8_product(Tensor numbers, Tensor scales, Tensor zeros, int place) -> Tensor")
    library.impl("int8_product", _multiplied, "CPU")
    torch.library.register_fake("lil::int8_product", _empty, lib=library)
    operator.library = library  # type: ignore[attr-defined]  # a library ends with its last reference
    return torch.ops.lil.int8_product.default


def _multiplied(numbers: Tensor, scales: Tensor, zeros: Tensor, place: int) -> Tensor:
    call = CALL.get()
    if call.error is None:
        try:
            layers = getattr(call.cache.session.model, _LAYERS)
            products: Tensor = layers[place].packed.times(numbers, scales, zeros)
            return products
        except BaseException as error:
            call.error = error
    return _empty(numbers, scales, zeros, place).zero_()


def _empty(numbers: Tensor, scales: Tensor, _zeros: Tensor, _place: int) -> Tensor:
    return scales.new_empty(numbers.shape[0], scales.shape[0])


def in_int8(model: Any, device: str) -> Any:
    """A model on a CPU whose linear layers, with the language-model head, are `Int8Linear`."""
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
