"""Sparse attention backends for transformers models, applied and removed by a `with` block.

with attention.Sink(budget=1024).on(model) as cache:
    model.generate(**inputs, past_key_values=cache)
"""

import lazy_loader

# The names are in __init__.pyi; each is imported at its first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
