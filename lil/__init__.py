"""Compression meters, early stopping and the batched decode loop.

`decode` generates and records a `Trace` a prompt; a `Guardian` watches each through a `Meter`;
`replay` puts any detector over a stored trace; `curve` shows how a text compresses as it grows.
"""

import lazy_loader

# The names are in __init__.pyi; each is imported when it is asked for.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
