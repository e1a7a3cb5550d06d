"""What a model's positions leave behind each prompt: no output is decoded beyond, unless asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from attention.errors import InvalidValue
from experiments.grid.models import ModelSource

X = TypeVar("X")


class Prompt(NamedTuple):
    """How long the prompt of a problem is, in tokens."""

    dataset: str
    item_id: str
    tokens: int


def positions(source: ModelSource, *, here: bool = False) -> int | None:
    """Tokens that a model was made for, by its config; None where that names no number."""
    from lil.decoding.options import positions_of

    return _from_config(source, positions_of, here)


def counted_layers(source: ModelSource) -> dict[str, int]:
    """What a manifest says of a model in which some layers hold no keys; nothing of others."""
    from attention.families import key_windows

    def count(config: Any) -> tuple[int, int]:
        text = config.get_text_config()
        return len(key_windows(text)), text.num_hidden_layers

    with_keys, layers = _from_config(source, count)
    return {} if with_keys == layers else {"key_layers": with_keys, "layers": layers}


def layers(source: ModelSource) -> int:
    """Layers of a model."""
    return _from_config(source, lambda config: int(config.get_text_config().num_hidden_layers))


def generation(source: ModelSource) -> Any:
    """How a model generates: its own file, or what its config says."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(source.location, revision=source.revision)
    except OSError:  # as transformers does where there is no such file
        return _from_config(source, GenerationConfig.from_model_config)


def _from_config(source: ModelSource, ask: Callable[[Any], X], here: bool = False) -> X:
    from transformers import AutoConfig

    try:
        options = {"local_files_only": here, "trust_remote_code": False}
        return ask(AutoConfig.from_pretrained(source.location, revision=source.revision, **options))
    except Exception as error:  # whatever a foreign config makes of it
        reason = str(error).strip().split("\n")[0]
        raise InvalidValue("model", source.name, f"a readable config.json ({reason})") from error


def require_room(
    model: str, most: int | None, prompts: Iterable[Prompt], *, beyond: bool = False
) -> None:
    """Refuse prompts that fill the positions, before anything is decoded."""
    if most is None or beyond:
        return
    every = list(prompts)
    long = [prompt for prompt in every if prompt.tokens >= most]
    if not long:
        return
    first = max(long, key=lambda prompt: prompt.tokens)
    allowed = f"fewer than the {most:,} positions of {model} (--beyond-positions goes on behind)"
    if len(every) > 1:
        allowed += f"; {len(long)} of {len(every)} are too long"
    field = f"prompt of {first.item_id} in {first.dataset}"
    raise InvalidValue(field, f"{first.tokens} tokens", allowed)
