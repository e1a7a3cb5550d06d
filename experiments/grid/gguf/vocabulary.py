"""The tokenizer that a GGUF file describes, as transformers saves and loads it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attention.errors import InvalidValue
from experiments.grid.gguf.header import Header, Unconvertible
from experiments.grid.gguf.splits import SPLITS

#: Kinds of tokens, by the numbers that files give them.
_NORMAL, _UNKNOWN, _CONTROL, _USER = 1, 2, 3, 4
#: The most characters of a token; the longest of published vocabularies has 256.
_LONGEST = 1024
#: Tokens that end a turn or a text by these names, whatever a file calls its end.
_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<end_of_turn>", "<|end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)
_BLANK = "▁"


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and what a model's config says of it.

    Args:
        tokenizer: of transformers.
        begin: id of the token that texts begin with; None: no such token.
        end: ids of tokens that end an output, the file's own first.
        pad: id of the token that fills rows up.
    """

    tokenizer: Any
    begin: int | None
    end: tuple[int, ...]
    pad: int | None

    def config(self) -> dict[str, Any]:
        """Entries of config.json and of generation_config.json."""
        ends = list(self.end) if len(self.end) > 1 else next(iter(self.end), None)
        return {"bos_token_id": self.begin, "eos_token_id": ends, "pad_token_id": self.pad}


def vocabulary(header: Header) -> Vocabulary:
    """Build the tokenizer of a file from its values.

    Args:
        header: of the file.

    Raises:
        Unconvertible: a kind of vocabulary that is not known here, or one that does not fit
            together.
    """
    return _Building(header).built()


class _Building:
    """What a header says of its vocabulary, checked."""

    def __init__(self, header: Header) -> None:
        self.values = header.values
        self.architecture = header.architecture
        self.tokens: list[str] = self._texts("tokens")
        if not self.tokens:
            raise Unconvertible("it has no vocabulary")
        if len(set(self.tokens)) != len(self.tokens) or max(map(len, self.tokens)) > _LONGEST:
            raise Unconvertible(f"tokens of it are there twice, or of over {_LONGEST} characters")
        self.kinds: list[int] = self._get("token_type") or [_NORMAL] * len(self.tokens)
        if not isinstance(self.kinds, list) or len(self.kinds) != len(self.tokens):
            raise Unconvertible("its tokens and their kinds are not as many")
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def built(self) -> Vocabulary:
        kind = self._get("model")
        if kind == "gpt2":
            tokenizer, begins = self._byte_level()
        elif kind == "llama":
            tokenizer, begins = self._pieces(), True
        else:
            raise Unconvertible(f"its vocabulary is of the kind {str(kind)[:40]!r}")
        begin, end = self._token("bos_token_id"), self._token("eos_token_id")
        pad, unknown = self._token("padding_token_id"), self._token("unknown_token_id")
        self._added(tokenizer, {one for one in (begin, end, pad, unknown) if one is not None})
        adds = [
            begin if self._flag("add_bos_token", begins) else None,
            end if self._flag("add_eos_token", False) else None,
        ]
        self._around(tokenizer, *adds)
        ends = [end, self._token("eot_token_id"), self._token("eom_token_id")]
        named = [self.ids.get(name) for name in _ENDS]
        ends += [one for one in named if one is not None and self.kinds[one] in (_CONTROL, _USER)]
        known = tuple(dict.fromkeys(one for one in ends if one is not None))
        return Vocabulary(self._wrapped(tokenizer, begin, end, pad, unknown), begin, known, pad)

    # ------------------------------------------------------------ the two kinds

    def _byte_level(self) -> tuple[Any, bool]:
        from tokenizers import Tokenizer, decoders, models

        name = self._get("pre")
        split = SPLITS.get(name) if isinstance(name, str) else None
        if split is None:
            near = InvalidValue("", str(name), "", SPLITS).nearest
            hint = f"; {near} is near" if near else ""
            raise Unconvertible(f"its texts are cut by {str(name)[:40]!r}, not known here{hint}")
        merges = []
        for text in self._texts("merges"):
            left, _, right = text.partition(" ")
            if not (left in self.ids and right in self.ids and left + right in self.ids):
                raise Unconvertible(f"its merge {text[:40]!r} is of no tokens of it")
            merges.append((left, right))
        tokenizer = Tokenizer(models.BPE(self.ids, merges, ignore_merges=split.whole))
        tokenizer.decoder = decoders.ByteLevel()
        split.apply(tokenizer)
        return tokenizer, split.begins

    def _pieces(self) -> Any:
        """Pieces with scores, which say in what order they are merged."""
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

        gemma = self.architecture == "gemma3"
        if gemma:  # runs of blanks are written as they are, which no text is once it is normalized
            self.tokens = [
                token if token.strip(" ") else _BLANK * len(token) for token in self.tokens
            ]
            self.ids = {token: i for i, token in enumerate(self.tokens)}
            if len(self.ids) != len(self.tokens):
                raise Unconvertible("runs of blanks are there twice among its tokens")
        unknown = self._token("unknown_token_id")
        tokenizer = Tokenizer(
            models.BPE(
                self.ids,
                self._merges(by_place=gemma),
                unk_token=None if unknown is None else self.tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        steps: list[Any] = [normalizers.Replace(" ", _BLANK)]
        back: list[Any] = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
        if self._flag("add_space_prefix", not gemma):
            steps.insert(0, normalizers.Prepend(_BLANK))
            back.append(decoders.Strip(" ", 1, 0))
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.decoder = decoders.Sequence(back)
        if gemma:
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
        return tokenizer

    def _merges(self, by_place: bool) -> list[tuple[str, str]]:
        """Pairs of tokens that make a token, the best first.

        Args:
            by_place: earlier tokens are better, whatever their scores.
        """
        scores = self._get("scores")
        if not isinstance(scores, list) or len(scores) != len(self.tokens):
            raise Unconvertible("its tokens and their scores are not as many")
        if not all(type(one) is float and math.isfinite(one) for one in scores):
            raise Unconvertible("scores of its tokens are no finite numbers")
        found: list[tuple[float, int, int, str, str]] = []
        for place, token in enumerate(self.tokens):
            pairs = []
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in self.ids and right in self.ids:
                    pairs.append((self.ids[left], self.ids[right], left, right))
            score = float(-place) if by_place else scores[place]
            found += [(score, len(p[2]), len(p[3]), p[2], p[3]) for p in sorted(pairs)]
        found.sort(key=lambda one: one[:3], reverse=True)  # stable: else in the order of the ids
        return [(left, right) for *_, left, right in found]

    # ------------------------------------------------------------ special tokens

    def _added(self, tokenizer: Any, special: set[int]) -> None:
        """Tokens that are found in a text before anything is cut or merged."""
        from tokenizers import AddedToken

        # Phi-3's take the blanks behind them, as its own tokenizer and llama.cpp have it.
        kept = {"<unk>", "<s>", "<|endoftext|>"} if self.architecture == "phi3" else None
        found = []
        for i, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)):
            is_special = kind in (_CONTROL, _UNKNOWN) or i in special
            if is_special or (kind == _USER and token.strip(_BLANK)):
                rstrip = kept is not None and self._get("model") == "llama" and token not in kept
                found.append(AddedToken(token, special=is_special, normalized=False, rstrip=rstrip))
        tokenizer.add_tokens(found)
        if tokenizer.get_vocab_size() != len(self.tokens):
            raise Unconvertible("its special tokens are not in its vocabulary")

    def _around(self, tokenizer: Any, begin: int | None, end: int | None) -> None:
        """What every text begins and ends with."""
        from tokenizers import processors

        if begin is None and end is None:
            return
        first = [] if begin is None else [self.tokens[begin]]
        last = [] if end is None else [self.tokens[end]]
        around = dict.fromkeys(one for one in (begin, end) if one is not None)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, *(f"{one}:1" for one in first), "$B:1"]
            + [f"{one}:1" for one in last],
            special_tokens=[(self.tokens[one], one) for one in around],
        )

    def _wrapped(
        self,
        tokenizer: Any,
        begin: int | None,
        end: int | None,
        pad: int | None,
        unknown: int | None,
    ) -> Any:
        from transformers import PreTrainedTokenizerFast

        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        given = {
            name: self.tokens[one]
            for name, one in zip(names, (begin, end, pad, unknown), strict=True)
            if one is not None
        }
        made = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **given
        )
        template = self.values.get("tokenizer.chat_template")
        if template is not None:
            if not isinstance(template, str):
                raise Unconvertible("its chat template is no text")
            made.chat_template = template
        return made

    # ------------------------------------------------------------ values

    def _get(self, name: str) -> Any:
        return self.values.get(f"tokenizer.ggml.{name}")

    def _texts(self, name: str) -> list[str]:
        found = self._get(name)
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise Unconvertible(f"its tokenizer.ggml.{name} are no texts")
        return found

    def _token(self, name: str) -> int | None:
        found = self._get(name)
        if found is None:
            return None
        if type(found) is not int or not 0 <= found < len(self.tokens):
            raise Unconvertible(f"its tokenizer.ggml.{name} is {str(found)[:40]}, no token of it")
        return found

    def _flag(self, name: str, default: bool) -> bool:
        found = self._get(name)
        if found is not None and not isinstance(found, bool):
            raise Unconvertible(f"its tokenizer.ggml.{name} is {str(found)[:40]}, not yes or no")
        return default if found is None else found
