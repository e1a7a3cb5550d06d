"""Which chunks of a finished trace are word salad, and what makes two chunks similar."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from attention.errors import InvalidValue, check_int

#: The Word Salad Chopper's embedding model (footnote 3), by its name on the hub.
MINILM = "sentence-transformers/all-MiniLM-L6-v2"


class Embedder(Protocol):
    """Turns texts into vectors; similar texts have a cosine near 1."""

    name: ClassVar[str]

    def params(self) -> dict[str, object]: ...

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Vectors (texts, D) of length 1, comparable within one call."""
        ...


@dataclass(frozen=True)
class TextMatch:
    """Counts of character n-grams: texts are similar when they are the same but for a little.

    The vector space of q-gram profiles (Ukkonen, 1992), compared by cosine. Case, width and kind of
    white space count for nothing; each end is padded. At the paper's threshold of 0.99 two chunks
    of 300 characters may differ in one of them.

    Raises:
        InvalidValue: `n`, the characters of an n-gram, below 2.
    """

    n: int = 3

    name: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        if self.n < 2:
            raise InvalidValue("n", self.n, "at least 2 characters")

    def params(self) -> dict[str, object]:
        return {"n": self.n}

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        counts = [Counter(self._grams(text)) for text in texts]
        grams = dict.fromkeys(gram for count in counts for gram in count)
        columns = {gram: column for column, gram in enumerate(grams)}
        vectors = np.zeros((len(texts), len(columns)))
        for row, count in enumerate(counts):
            for gram, number in count.items():
                vectors[row, columns[gram]] = number
        lengths: npt.NDArray[np.float64] = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, 1.0)

    def _grams(self, text: str) -> list[str]:
        even = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
        padded = f"{' ' * (self.n - 1)}{even}{' ' * (self.n - 1)}"
        return [padded[i : i + self.n] for i in range(len(padded) - self.n + 1)]


@dataclass(frozen=True)
class SentenceModel:
    """A model of sentence-transformers by name or folder, the paper's all-MiniLM-L6-v2 by default.

    Raises:
        InvalidValue: on first use, sentence-transformers is not installed (extra `chopper`), or the
            model cannot be loaded.
    """

    model: str = MINILM
    batch_size: int = 32
    _loaded: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    name: ClassVar[str] = "sentence"

    def params(self) -> dict[str, object]:
        return {"model": self.model, "batch_size": self.batch_size}

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        if not self._loaded:
            self._loaded.append(self._load())
        (model,) = self._loaded
        vectors = model.encode(
            list(texts),
            batch_size=self.batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float64)

    def _load(self) -> Any:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            allowed = "the extra `chopper`, or the embedder `text`, which needs none"
            raise InvalidValue("embedder", self.model, allowed) from error
        try:
            return SentenceTransformer(self.model, trust_remote_code=False)
        except (OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            allowed = f"a sentence-transformers model that can be loaded ({reason})"
            raise InvalidValue("embedder", self.model, allowed) from error


@dataclass(frozen=True)
class Labeller:
    """Marks a trace's chopping point, after the Word Salad Chopper's curation (section 3.1).

    A chunk is a repeat if its embedding's cosine with one of the `window` chunks before it is at
    least `similarity`. The first run of `run` repeats marks the chopping point: every chunk before
    it is sound (0), that run and everything after it is word salad (1). Blank chunks, of which the
    paper does not speak, are similar to each other.

    Raises:
        InvalidValue: a value outside its range.
    """

    embedder: Embedder = field(default_factory=TextMatch)
    similarity: float = 0.99
    window: int = 100
    run: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise InvalidValue("similarity", self.similarity, "a cosine above 0, at most 1")
        for name in ("window", "run"):
            check_int(name, getattr(self, name), 1)

    def params(self) -> dict[str, Any]:
        """The parameters, JSON-able."""
        return {
            "embedder": {"name": self.embedder.name, **self.embedder.params()},
            "similarity": self.similarity,
            "window": self.window,
            "run": self.run,
        }

    def repeats(self, texts: Sequence[str]) -> list[bool]:
        """Of each chunk whether it repeats one of those before it."""
        if not texts:
            return []  # an embedder requires a text
        vectors = self.embedder.embed(texts)
        # Equal texts have a cosine of 1 but for rounding.
        least = self.similarity - 1e-9
        windows = (vectors[max(0, i - self.window) : i] for i in range(len(texts)))
        return [
            bool(len(before) and np.max(before @ vector) >= least)
            for before, vector in zip(windows, vectors, strict=True)
        ]

    def salad_from(self, texts: Sequence[str]) -> int | None:
        """The first of a trace's chunks that is word salad; None where none is."""
        in_a_row = 0
        for i, repeats in enumerate(self.repeats(texts)):
            in_a_row = in_a_row + 1 if repeats else 0
            if in_a_row == self.run:
                return i - self.run + 1
        return None
