"""What each architecture's tensors and values become: names, shapes and changes of transformers.

An architecture is here where its files say all that its model computes, so that what is converted
is that model, to the bit of its dequantised weights. Others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attention.errors import InvalidValue
from experiments.grid.gguf import rope
from experiments.grid.gguf.header import Header, Unconvertible
from experiments.grid.gguf.values import Values

_OUTPUT = "output.weight"


@dataclass(frozen=True)
class Part:
    """What a tensor of a file becomes.

    Args:
        name: in the model.
        shape: there, and in the file.
        heads: rows lie in pairs in each of so many heads, and are sorted to halves; 0: they stay.
        added: to each number.
    """

    name: str
    shape: tuple[int, ...]
    heads: int = 0
    added: float = 0.0


@dataclass(frozen=True)
class Conversion:
    """A model that a file becomes.

    Args:
        config: of config.json, but for what the vocabulary says.
        parts: by the names of the file's tensors.
        told: names of tensors that are in the config.
    """

    config: dict[str, Any]
    parts: Mapping[str, Part]
    told: frozenset[str] = frozenset()


def conversion(header: Header, read: rope.Read) -> Conversion:
    """What a file becomes; nothing is read of its weights.

    Args:
        header: of the file.
        read: a small tensor of it by name and length.

    Raises:
        Unconvertible: an architecture that is not here, or values that are not known.
    """
    name = header.architecture
    if name not in ARCHITECTURES:
        near = InvalidValue("", name, "", ARCHITECTURES).nearest
        hint = f"; {near} is near" if near else ""
        raise Unconvertible(
            f"its architecture is {name[:80]!r}, not one of {', '.join(ARCHITECTURES)}{hint}"
        )
    values = Values(header)
    if values.take("expert_count", 0):
        raise Unconvertible(f"it is a mixture of experts of {name}")
    values.take("expert_used_count")
    values.expect("attention.causal", True)
    made = ARCHITECTURES[name](_Sizes(values, header), values, read)
    values.done()
    return made


class _Sizes:
    """What the values of all architectures say in the same words."""

    def __init__(self, values: Values, header: Header) -> None:
        self.header = header
        self.layers = values.whole("block_count")
        if self.layers > len(header.tensors):
            raise Unconvertible(f"it claims {self.layers:,} layers")
        self.hidden = values.whole("embedding_length")
        self.inner = values.whole("feed_forward_length")
        self.heads = values.whole("attention.head_count")
        self.groups = values.whole("attention.head_count_kv", self.heads)
        self.head = values.whole("attention.key_length", max(1, self.hidden // self.heads))
        values.expect("attention.value_length", self.head)
        if self.heads % self.groups or self.head % 2:
            raise Unconvertible(f"it has {self.heads} heads of {self.head} over {self.groups}")
        self.turned = values.whole("rope.dimension_count", self.head)
        self.theta = values.number("rope.freq_base", 10_000.0)
        self.epsilon = values.number("attention.layer_norm_rms_epsilon")
        self.positions = values.whole("context_length")
        embedding = header.tensors.get("token_embd.weight")
        if embedding is None:
            raise Unconvertible("its tensor token_embd.weight is missing")
        self.words = embedding.shape[0]
        self.tied = _OUTPUT not in header.tensors

    def config(self, kind: str, model_class: str, **more: Any) -> dict[str, Any]:
        """What a config of transformers has of them."""
        return {
            "architectures": [model_class],
            "model_type": kind,
            "vocab_size": self.words,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.groups,
            "head_dim": self.head,
            "rms_norm_eps": self.epsilon,
            "max_position_embeddings": self.positions,
            "tie_word_embeddings": self.tied,
            **more,
        }

    def whole_heads(self) -> None:
        """Refuse heads that are turned in part."""
        if self.turned != self.head:
            raise Unconvertible(f"{self.turned} of the {self.head} dimensions of a head are turned")

    def parts(self, layer: Mapping[str, Part], norm: float = 0.0) -> dict[str, Part]:
        """All parts, from those of a layer, whose names are relative to it."""
        words, hidden = self.words, self.hidden
        found = {
            "token_embd.weight": Part("model.embed_tokens.weight", (words, hidden)),
            "output_norm.weight": Part("model.norm.weight", (hidden,), added=norm),
        }
        if not self.tied:
            found[_OUTPUT] = Part("lm_head.weight", (words, hidden))
        for i in range(self.layers):
            for name, part in layer.items():
                full = f"model.layers.{i}.{part.name}"
                found[f"blk.{i}.{name}"] = Part(full, part.shape, part.heads, part.added)
        return found

    def attention(self, turned_heads: bool = False) -> dict[str, Part]:
        """Projections of a layer's attention, each of its own.

        Args:
            turned_heads: rows of queries and keys lie in pairs.
        """
        queries, keys = self.heads * self.head, self.groups * self.head
        q_heads, k_heads = (self.heads, self.groups) if turned_heads else (0, 0)
        name = "self_attn.{}_proj.weight".format
        return {
            "attn_q.weight": Part(name("q"), (queries, self.hidden), q_heads),
            "attn_k.weight": Part(name("k"), (keys, self.hidden), k_heads),
            "attn_v.weight": Part(name("v"), (keys, self.hidden)),
            "attn_output.weight": Part(name("o"), (self.hidden, queries)),
        }

    def gated(self) -> dict[str, Part]:
        """Projections of a layer's gated perceptron."""
        return {
            "ffn_gate.weight": Part("mlp.gate_proj.weight", (self.inner, self.hidden)),
            "ffn_up.weight": Part("mlp.up_proj.weight", (self.inner, self.hidden)),
            "ffn_down.weight": Part("mlp.down_proj.weight", (self.hidden, self.inner)),
        }

    def norms(
        self, names: Mapping[str, str], width: int = 0, added: float = 0.0
    ) -> dict[str, Part]:
        """Norms of a layer, of the hidden size where no width is given."""
        shape = (width or self.hidden,)
        return {
            f"{name}.weight": Part(f"{target}.weight", shape, added=added)
            for name, target in names.items()
        }


_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def _biases(parts: Mapping[str, Part]) -> dict[str, Part]:
    return {
        f"{name.removesuffix('.weight')}.bias": Part(
            f"{part.name.removesuffix('.weight')}.bias", part.shape[:1], part.heads
        )
        for name, part in parts.items()
    }


def _llama(sizes: _Sizes, values: Values, read: rope.Read) -> Conversion:
    sizes.whole_heads()
    tensors = sizes.header.tensors
    attention, gated = sizes.attention(turned_heads=True), sizes.gated()
    layer = attention | gated | sizes.norms(_NORMS)
    biased, wide = "blk.0.attn_q.bias" in tensors, "blk.0.ffn_gate.bias" in tensors
    if biased:
        layer |= _biases(attention)
    if wide:
        layer |= _biases(gated)
    turns = rope.llama(values, sizes.theta, sizes.turned, read)
    config = sizes.config(
        *("llama", "LlamaForCausalLM"),
        hidden_act="silu",
        attention_bias=biased,
        mlp_bias=wide,
        rope_parameters=turns,
    )
    return Conversion(config, sizes.parts(layer), frozenset({rope.FREQUENCIES}))


def _qwen2(sizes: _Sizes, values: Values, _: rope.Read) -> Conversion:
    sizes.whole_heads()
    attention = sizes.attention()
    biases = _biases({name: part for name, part in attention.items() if "output" not in name})
    config = sizes.config(
        *("qwen2", "Qwen2ForCausalLM"),
        hidden_act="silu",
        use_sliding_window=False,
        rope_parameters=rope.plain(values, sizes.theta),
    )
    layer = attention | biases | sizes.gated() | sizes.norms(_NORMS)
    return Conversion(config, sizes.parts(layer))


_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


def _qwen3(sizes: _Sizes, values: Values, _: rope.Read) -> Conversion:
    sizes.whole_heads()
    config = sizes.config(
        *("qwen3", "Qwen3ForCausalLM"),
        hidden_act="silu",
        attention_bias=False,
        use_sliding_window=False,
        rope_parameters=rope.plain(values, sizes.theta),
    )
    layer = sizes.attention() | sizes.gated() | sizes.norms(_NORMS)
    return Conversion(config, sizes.parts(layer | sizes.norms(_HEAD_NORMS, sizes.head)))


#: Layers of Gemma 3 of which the last sees everything, where a file does not say.
_PERIOD = 6
#: Its largest model alone divides scores by another size than a head's, which no file says.
_GEMMA_27B = 62


def _gemma3(sizes: _Sizes, values: Values, _: rope.Read) -> Conversion:
    sizes.whole_heads()
    local = values.number("rope.freq_base_swa", 10_000.0)
    turns = {
        "full_attention": rope.plain(values, sizes.theta),
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }
    period = values.take("attention.sliding_window_pattern", _PERIOD)
    if isinstance(period, list) and len(period) == sizes.layers:
        windowed = [one is True for one in period]
    elif type(period) is int and period > 0:
        windowed = [bool((i + 1) % period) for i in range(sizes.layers)]
    else:
        raise Unconvertible("which of its layers have a window is not said")
    scored = sizes.hidden // sizes.heads if sizes.layers == _GEMMA_27B else sizes.head
    capped = values.number("final_logit_softcapping") if _CAPPED in values else None
    config = sizes.config(
        *("gemma3_text", "Gemma3ForCausalLM"),
        hidden_activation="gelu_pytorch_tanh",
        attention_bias=False,
        query_pre_attn_scalar=scored,
        sliding_window=values.whole("attention.sliding_window"),
        layer_types=["sliding_attention" if one else "full_attention" for one in windowed],
        attn_logit_softcapping=None,
        final_logit_softcapping=capped,
        rope_parameters=turns,
    )
    names = {
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    # Files hold what numbers are multiplied by; the model adds 1 to what it holds.
    layer = sizes.attention() | sizes.gated() | sizes.norms(names, added=-1.0)
    layer |= sizes.norms(_HEAD_NORMS, sizes.head, added=-1.0)
    return Conversion(config, sizes.parts(layer, norm=-1.0))


_CAPPED = "final_logit_softcapping"


def _phi3(sizes: _Sizes, values: Values, read: rope.Read) -> Conversion:
    if sizes.turned > sizes.head or sizes.turned % 2:
        raise Unconvertible(f"{sizes.turned} of the {sizes.head} dimensions of a head are turned")
    turns = rope.longrope(values, sizes.theta, sizes.turned, read)
    window = values.whole("attention.sliding_window", 0, least=0)
    original = turns.get("original_max_position_embeddings", sizes.positions)
    config = sizes.config(
        *("phi3", "Phi3ForCausalLM"),
        hidden_act="silu",
        sliding_window=window or None,
        original_max_position_embeddings=original,
        rope_parameters={**turns, "partial_rotary_factor": sizes.turned / sizes.head},
    )
    queries, keys = sizes.heads * sizes.head, sizes.groups * sizes.head
    layer = {
        "attn_qkv.weight": Part("self_attn.qkv_proj.weight", (queries + 2 * keys, sizes.hidden)),
        "attn_output.weight": Part("self_attn.o_proj.weight", (sizes.hidden, queries)),
        "ffn_up.weight": Part("mlp.gate_up_proj.weight", (2 * sizes.inner, sizes.hidden)),
        "ffn_down.weight": Part("mlp.down_proj.weight", (sizes.hidden, sizes.inner)),
    }
    told = frozenset({rope.LONG, rope.SHORT})
    return Conversion(config, sizes.parts(layer | sizes.norms(_NORMS)), told)


#: Architectures by the names that files give them.
ARCHITECTURES: dict[str, Callable[[_Sizes, Values, rope.Read], Conversion]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "phi3": _phi3,
}
