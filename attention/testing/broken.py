"""How a check says what it found."""

from __future__ import annotations

from torch import Tensor

# All is computed in float64; where transformers rounds its norms to float32, far below this.
TOLERANCE = 1e-6


class ContractBroken(AssertionError):  # noqa: N818
    """A method does not keep the contract: which method, which check, what was found.

    Args:
        method: name of the backend.
        check: a name of `CHECKS`.
        found: what was found, and where to look.
    """

    def __init__(self, method: str, check: str, found: str) -> None:
        self.method, self.check, self.found = method, check, found
        super().__init__(f"{method} fails the check {check!r}: {found}")


class Broken(Exception):  # noqa: N818
    """What was found, before it is known in which check."""


def require(holds: bool, found: str) -> None:
    """Raise Broken unless a condition holds."""
    if not holds:
        raise Broken(found)


def same(got: Tensor, want: Tensor, found: str) -> None:
    """Raise Broken where logits (n, V) differ.

    Args:
        found: what to say; `{at}` becomes the first place, `{by}` how far apart they are.
    """
    apart = (got - want).abs().amax(-1)
    wrong = (~(apart <= TOLERANCE)).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise Broken(found.format(at=at, by=f"{float(apart[at]):.2g}"))
