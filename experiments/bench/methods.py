"""Methods as benchmarks run them."""

from __future__ import annotations

import dataclasses
from typing import Any

from attention.contract import Backend
from attention.methods import find, get


def unsparing(name: str, budget: int, **wanted: Any) -> Backend:
    """A method by name, whose prompts may be longer than its budget: it spares none.

    Args:
        name: of the method.
        budget: tokens, for a method that has one.
        wanted: other parameters, for a method that has them.

    Raises:
        InvalidValue: no such method, or a value it refuses.
    """
    fields = {f.name for f in dataclasses.fields(find(name)) if f.init}
    wanted = {"budget": budget, "keep_prompt": False, **wanted}
    return get(name, **{field: value for field, value in wanted.items() if field in fields})
