"""An exported decode step as operations that a graph can hold, or the reason why it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from attention.patching.decode_step import NotCompiled, constants, exported, operator, quiet

Call = Callable[..., Any]
#: What the compiler does in any step.
OPTIONS: dict[str, Any] = {
    "emulate_precision_casts": True,  # rounded to half precision where the model itself rounds
    "compile_threads": 1,  # others would be processes that outlive this one
}
# What the exporter raises of a model that it cannot trace: its own errors, and those of the model.
_EXPORT_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)


class Program:
    """A model's decode step for any number of rows, or `NotCompiled` where it cannot be captured.

    Attributes:
        weights: what it reads of the model, by name, as it was exported: without values.
        extra: values of its own, by name.
    """

    def __init__(self, model: PreTrainedModel, states: Sequence[str]) -> None:
        try:
            with quiet():
                program = exported(model, states)
        except _EXPORT_ERRORS as error:
            raise NotCompiled.because(error) from error
        self._module = program.graph_module
        self._pieces: dict[int, tuple[fx.GraphModule, dict[str, Call]]] = {}
        signature, nodes = program.graph_signature, list(self._module.graph.nodes)
        for node in nodes:
            if (reason := _obstacle(node, model.device)) is not None:
                raise NotCompiled(reason)
        written = [x for node in nodes for x in _written(node) if x.op == "placeholder"]
        if written or signature.buffers_to_mutate or signature.user_inputs_to_mutate:
            # Warming up and capturing would change them as well.
            raise NotCompiled("its forward changes the model's own buffers")
        names = signature.inputs_to_parameters | signature.inputs_to_buffers
        names |= signature.inputs_to_lifted_tensor_constants
        places, own = [n for n in nodes if n.op == "placeholder"], constants(model)
        self._names = [names.get(node.name) for node in places]
        self.weights: dict[str, Tensor] = {
            name: node.meta["val"] for name, node in zip(self._names, places, strict=True)
            if name in own
        }  # fmt: skip
        self.extra = {n: program.constants[n] for n in self._names if n and n not in own}

    def run(
        self, values: Mapping[str, Tensor], inputs: Sequence[Tensor], attend: Call, fused: bool
    ) -> list[Tensor]:
        """Scores and states of ids and positions, (R, 1) each, with values of weights and `extra`.

        `attend` is called in the place of the attention operator. Where it is `fused`, what lies
        between attentions is compiled, at the first run of so many rows.
        """
        left = iter(inputs)
        arguments = [next(left) if name is None else values[name] for name in self._names]
        rows = len(inputs[0])
        if fused and rows not in self._pieces:
            self._pieces[rows] = self._split()
        module, pieces = self._pieces[rows] if fused else (self._module, {})
        return list(_Run(module, attend, pieces).run(*arguments))

    def _split(self) -> tuple[fx.GraphModule, dict[str, Call]]:
        """The step as a graph of pieces, and those that are compiled, by name.

        Pieces of the same operations, as layers have, are one function for each number of rows: one
        for all numbers torch would compile for few of them alone.
        """
        places, at = {}, 0
        for node in self._module.graph.nodes:
            attends = node.target is operator()
            at += attends
            places[node] = at
            at += attends
        whole = split_module(self._module, None, places.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
        forms: dict[str, Call] = {}
        pieces = {}
        for name, piece in whole.named_children():
            assert isinstance(piece, fx.GraphModule)
            if all(node.target is not operator() for node in piece.graph.nodes):
                compiled = torch.compile(piece, fullgraph=True, dynamic=False, options=OPTIONS)
                pieces[name] = forms.setdefault(_form(piece.graph), compiled)
        return whole, pieces


def _form(graph: fx.Graph) -> str:
    """The operations of a graph, whatever its inputs are called."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    return repr([
        (node.op, node.op != "placeholder" and str(node.target),
         fx.map_arg((node.args, node.kwargs), lambda x: f"%{places[x]}"))
        for node in graph.nodes
    ])  # fmt: skip


def call(piece: Call, *args: Any) -> Any:
    """Run a compiled piece."""
    return piece(*args)


class _Run(fx.Interpreter):
    """Runs operations one by one; what is not needed any more is let go."""

    def __init__(self, module: fx.GraphModule, attend: Call, pieces: Mapping[str, Call]) -> None:
        super().__init__(module)
        self._attend, self._pieces = attend, pieces

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is operator():
            return self._attend(*args)
        return super().call_function(target, args, kwargs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        if target in self._pieces:
            return call(self._pieces[target], *args)
        return _Run(self.fetch_attr(target), self._attend, {}).run(*args)


def _obstacle(node: fx.Node, device: torch.device) -> str | None:
    """Why an operation cannot be captured, as far as it can be seen before trying."""
    if node.op in ("placeholder", "output") or node.target is operator():
        return None
    tags, aten = set(getattr(node.target, "tags", ())), torch.ops.aten
    if node.target is aten.index.Tensor:  # with booleans alone the shape depends on values
        indices = _all(Tensor, [at.meta.get("val") for at in _all(fx.Node, node.args[1])])
        if all(x.dtype not in (torch.bool, torch.uint8) for x in indices):
            tags.discard(torch.Tag.dynamic_output_shape)
    if node.target is aten.dropout.default and not node.args[2]:  # the model is not in training
        tags.discard(torch.Tag.nondeterministic_seeded)
    if tags & {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}:
        return f"{node.target} waits for the device"
    if torch.Tag.nondeterministic_seeded in tags:
        return f"{node.target} draws random numbers"
    if node.op != "call_function":
        return f"{node.op} {node.target} is no operation of torch"
    places = {x.device for x in _all(Tensor, node.meta.get("val"))}
    if others := sorted(str(place) for place in places if place.type != device.type):
        return f"{node.target} works on {', '.join(others)}"
    return None


def _written(node: fx.Node) -> list[fx.Node]:
    """What an operation writes to in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = zip(node.target._schema.arguments, node.args, strict=False)
    written = [x for at, x in arguments if at.alias_info is not None and at.alias_info.is_write]
    return _all(fx.Node, written)


def _all(kind: type[Any], values: Any) -> list[Any]:
    """What is of a kind among values, however they are nested."""
    return [x for x in tree_leaves(values) if isinstance(x, kind)]
