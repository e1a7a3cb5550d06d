"""Sparse attention in `model.generate(custom_generate=FOLDER)`; transformers runs a copy of this.

folder = attention.__path__[0] + "/hub"
call = {"custom_generate": folder, "trust_remote_code": True}
model.generate(**inputs, **call, backend="h2o", budget=512, max_new_tokens=100)
"""

import inspect
from typing import Any

from transformers import GenerationConfig

# transformers advises packages of a missing module's name, except of modules imported in a `try`.
try:
    from attention.errors import InvalidValue
    from attention.methods import METHODS
except ImportError as error:
    raise ImportError("custom_generate: needs the package lil-attention") from error


def generate(model: Any, backend: str, **arguments: Any) -> Any:
    """What the model's own `generate` gives while it attends through a method.

    Args:
        backend: NAME or NAME(PARAMETER=VALUE, ...).
        arguments: of `generate`, and the method's parameters. A name that both have, such as
            `top_p`, is an argument of `generate`; write the method's in the brackets.

    Raises:
        InvalidValue: the method, a parameter or the model does not fit, or there is a cache.
    """
    if (cache := arguments.pop("past_key_values", None)) is not None:
        allowed = "none: each call has a cache of its backend (`with METHOD.on(model)` keeps one)"
        raise InvalidValue("past_key_values", type(cache).__name__, allowed)
    arguments.pop("revision", None)  # of this file, on a hub
    own = {"tokenizer", "assistant_tokenizer", *vars(GenerationConfig())}
    for call in (type(model).generate, model.prepare_inputs_for_generation, model.forward):
        own |= inspect.signature(call).parameters.keys()
    params = {name: arguments.pop(name) for name in arguments.keys() - own}
    with METHODS.get(backend, **params).on(model) as cache:
        # `model.generate` is this function where the model was loaded from a folder with it.
        return type(model).generate(model, **arguments, past_key_values=cache)
