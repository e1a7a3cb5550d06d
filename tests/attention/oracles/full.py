"""Oracle of `full`: every token is kept and read."""

from __future__ import annotations

from .layer import Layer


class FullLayer(Layer):
    """Nothing to add: the shared layer is full attention."""
