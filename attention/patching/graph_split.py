"""An exported decode step, cut at its attentions, and what of it cannot be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx

from attention.patching.attention_op import operator
from attention.patching.decode_step import NotCompiled

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class Piece(NamedTuple):
    """What is between two attentions.

    Attributes:
        nodes: in order.
        gives: those of them whose values are read behind it.
    """

    nodes: list[fx.Node]
    gives: list[fx.Node]


@dataclass(frozen=True)
class CutStep:
    """An exported step, cut at its attentions.

    Attributes:
        parts: pieces and attentions in turns, in order; first and last is a piece.
        inputs: placeholders of ids and positions.
        weights: names of the model's tensors by their placeholders.
        extra: values of placeholders that the model itself does not have.
        outputs: scores and states.
    """

    parts: list[Piece | fx.Node]
    inputs: tuple[fx.Node, fx.Node]
    weights: dict[fx.Node, str]
    extra: dict[fx.Node, Tensor]
    outputs: list[fx.Node]

    @property
    def whole(self) -> Piece:
        """All of it as one piece."""
        nodes = [n for part in self.parts for n in getattr(part, "nodes", [part])]
        return Piece(nodes, self.outputs)


def computed(
    piece: Piece, values: Mapping[fx.Node, Any], attend: Callable[..., Tensor] | None = None
) -> list[Any]:
    """What a piece gives; what it needs for that alone is let go as soon as it can be.

    Args:
        attend: what is called in the place of the attention operator; None for itself.
    """
    own: dict[fx.Node, Any] = {}
    left = {node: len(node.users) for node in piece.nodes}
    for node in piece.gives:
        left[node] += 1
    for node in piece.nodes:
        arguments = fx.node.map_arg(node.args, lambda n: own[n] if n in own else values[n])
        options = fx.node.map_arg(node.kwargs, lambda n: own[n] if n in own else values[n])
        attends = attend is not None and node.target is operator()
        target: Any = attend if attends else node.target
        own[node] = target(*arguments, **options)
        for used in (*node.all_input_nodes, node):
            if used in left:
                left[used] -= used is not node
                if not left[used]:
                    del own[used], left[used]
    return [own[node] for node in piece.gives]


def value_of(argument: Any, values: Mapping[fx.Node, Any]) -> Any:
    """An argument of a node with the values of the nodes in it."""
    return fx.node.map_arg(argument, lambda node: values[node])


def cut(program: ExportedProgram, own: Mapping[str, Tensor], device: torch.device) -> CutStep:
    """Cut a step at its attentions."""
    attend, signature = operator(), program.graph_signature
    nodes = list(program.graph_module.graph.nodes)
    for node in nodes:
        reason = None if node.target is attend else _obstacle(node, device)
        if reason is not None:
            raise NotCompiled(reason)
    written = [x for node in nodes for x in _written(node) if x.op == "placeholder"]
    if written or signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        # Warming up and capturing would change them as well.
        raise NotCompiled("its forward changes the model's own buffers")
    named = {node.name: node for node in nodes}
    names = signature.inputs_to_parameters | signature.inputs_to_buffers
    names |= signature.inputs_to_lifted_tensor_constants
    ids, positions = (named[str(name)] for name in signature.user_inputs)
    weights = {named[at]: name for at, name in names.items() if name in own}
    extra = {named[at]: program.constants[name] for at, name in names.items() if name not in own}
    parts, piece = list[Piece | fx.Node](), Piece([], [])
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.target is attend:
            parts += [piece, node]
            piece = Piece([], [])
        else:
            piece.nodes.append(node)
    parts.append(piece)
    for part in parts:
        if isinstance(part, Piece):
            inside = set(part.nodes)
            part.gives.extend(n for n in part.nodes if any(u not in inside for u in n.users))
    outputs = [named[str(name)] for name in signature.user_outputs]
    return CutStep(parts, (ids, positions), weights, extra, outputs)


def _obstacle(node: fx.Node, device: torch.device) -> str | None:
    """Why an operation cannot be captured, as far as it can be seen before trying."""
    if node.op in ("placeholder", "output"):
        return None
    tags, aten = set(getattr(node.target, "tags", ())), torch.ops.aten
    if node.target is aten.index.Tensor:  # with booleans alone the shape depends on values
        indices = [x for at in _nodes(node.args[1]) for x in _tensors(at.meta.get("val"))]
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
    places = {x.device for x in _tensors(node.meta.get("val"))}
    if others := sorted(str(place) for place in places if place.type != device.type):
        return f"{node.target} works on {', '.join(others)}"
    return None


def _written(node: fx.Node) -> list[fx.Node]:
    """What an operation writes to in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = zip(node.target._schema.arguments, node.args, strict=False)
    written = [x for at, x in arguments if at.alias_info is not None and at.alias_info.is_write]
    return _nodes(written)


def _nodes(arguments: Any) -> list[fx.Node]:
    return [x for x in arguments if isinstance(x, fx.Node)]


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [x for x in value if isinstance(x, Tensor)] if isinstance(value, list | tuple) else []
