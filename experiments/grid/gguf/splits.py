"""How texts are cut before a byte-level vocabulary's merges, by the name that a file gives it.

The cut decides which merges can meet, so a name that is not here is refused: by another cut a text
would have other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SHORT_FORMS = r"'s|'t|'re|'ve|'m|'ll|'d"
#: What follows words and numbers in all of them: marks with line ends, line ends, blanks.
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_letters(digits: str) -> str:
    """Words with one mark before them, numbers of so many digits."""
    marks = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return rf"(?i:{_SHORT_FORMS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{marks}|{_BLANKS}"


def _by_case(digits: str, short_forms: str = "") -> str:
    """Words that also end where small letters are followed by capital ones."""
    before, marks = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    words = f"{before}{_UPPER}*{_LOWER}+{short_forms}|{before}{_UPPER}+{_LOWER}*{short_forms}"
    return f"{words}|{digits}|{marks}|{_BLANKS}"


@dataclass(frozen=True)
class Split:
    """A way to cut.

    Args:
        pattern: pieces, each of them cut out; None: GPT-2's, which the library has.
        single_digits: digits are cut out one by one before that.
        composed: characters are composed before that (NFC).
        whole: a piece that is in the vocabulary is taken as it is, whatever merges lead to it.
        begins: texts begin with the token for it where a file does not say.
    """

    pattern: str | None = None
    single_digits: bool = False
    composed: bool = False
    whole: bool = False
    begins: bool = False

    def apply(self, tokenizer: Any) -> None:
        """Let a tokenizer of the library `tokenizers` cut like this."""
        from tokenizers import Regex, normalizers, pre_tokenizers

        if self.composed:
            tokenizer.normalizer = normalizers.NFC()
        steps: list[Any] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        plain = self.pattern is None
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=plain))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


_GPT2 = Split()
_DIGITS = Split(single_digits=True)
_QWEN2 = Split(_by_letters(r"\p{N}"), composed=True)
_LLAMA3 = Split(_by_letters(r"\p{N}{1,3}"), whole=True, begins=True)
_DBRX = Split(_by_letters(r"\p{N}{1,3}"))
_GPT4O = Split(_by_case(r"\p{N}{1,3}", f"(?i:{_SHORT_FORMS})?"))
_TEKKEN = Split(_by_case(r"\p{N}"), whole=True, begins=True)

#: Ways to cut by the names that files give them.
SPLITS: dict[str, Split] = {
    "gpt-2": _GPT2,
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _DIGITS),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _DBRX),
    "gpt-4o": _GPT4O,
    "tekken": _TEKKEN,
}
