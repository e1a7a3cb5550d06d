"""Compression meters, early stopping and the batched decode loop.

`decode` generates and records a `Trace` a prompt; a `Guardian` watches each through a `Meter`;
`replay` puts any detector over a stored trace; `curve` shows how a text compresses as it grows.
"""

import importlib.util
from pathlib import Path

import lazy_loader


def _check_attention() -> None:
    """Raise ImportError where another module called `attention` hides this project's own."""
    spec = importlib.util.find_spec("attention")
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    if origin is None or origin.parent != Path(__file__).parent.with_name("attention"):
        raise ImportError(
            f"lil needs its own package `attention`, which {origin} hides: rename that file, or "
            "start Python in another folder"
        )


_check_attention()

# The names are in __init__.pyi; each is imported at its first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
