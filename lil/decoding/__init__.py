"""The batched decode loop.

`entry.py` is what callers use, `loop.py` holds the order of one step, `request.py` what was asked
for, `row.py` one sequence on its way, `ledger.py` what the steps cost, `record.py` the trace of a
finished row.
"""

from lil.decoding.entry import decode, stream

__all__ = ["decode", "stream"]
