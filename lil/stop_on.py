"""Detectors in transformers' `generate()`."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
import transformers
from torch import Tensor
from transformers import GenerationMixin, StoppingCriteria
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GENERATION_MODES_MAPPING

from attention.errors import InvalidValue, check_int
from lil import token_table
from lil.decoding.entry import eos_ids
from lil.detectors import Detector, Verdict, require_stop
from lil.generate_calls import CallSequence
from lil.hidden_states import HiddenStates, Reading


class _Row:
    """One sequence under watch."""

    def __init__(self, detectors: Sequence[Detector], prompt: bytes) -> None:
        self.watchers = [detector.watch(prompt) for detector in detectors]
        self.verdict: Verdict | None = None
        self.ended = False  # with or without a verdict

    def see(self, states: HiddenStates, at: int) -> None:
        for watcher in self.watchers:
            if watcher.wants:
                watcher.see(Reading(states, at))

    def push(self, piece: bytes) -> None:
        for watcher in self.watchers:
            self.verdict = watcher.update([piece])
            if self.verdict is not None:
                self.ended = True
                return


class _Calls(CallSequence):
    """The calls of a `StopOn`, whose first one holds generated tokens behind the prompt."""

    def __init__(self, prompt_tokens: int | None, mask_tokens: int | None) -> None:
        super().__init__()
        self._width_of_prompts, self._mask_tokens = prompt_tokens, mask_tokens

    def prompt_width(self, ids: Tensor) -> int:
        width = ids.shape[1]
        if self._width_of_prompts is None:
            return self._known() if _drafted() else max(0, width - 1)
        if self._width_of_prompts >= width:
            allowed = f"fewer than the {width} columns of the first call"
            raise InvalidValue("prompt_tokens", self._width_of_prompts, allowed)
        return self._width_of_prompts

    def follow(self, ids: Tensor) -> int:
        last = super().follow(ids)
        if last and ids.shape[1] > last + 1 and self._width_of_prompts is None:
            self._known()  # drafts, which the first call did not show
        return last

    def _known(self) -> int:
        """The prompts' width, where the first call may hold any number of drafts."""
        if self._mask_tokens is None:
            self.forget()
            allowed = "the prompts' width, or their attention_mask: calls hold several new tokens"
            raise InvalidValue("prompt_tokens", None, allowed)
        return self._mask_tokens


def _drafted() -> bool:
    """Whether assisted decoding calls: a criterion has no other sign of it than its callers."""
    method = GENERATION_MODES_MAPPING.get(GenerationMode.ASSISTED_GENERATION)
    if not isinstance(method, str) or not hasattr(GenerationMixin, method):
        release = f"transformers {transformers.__version__}"
        allowed = f"the prompts' width: {release} does not say which of its methods drafts tokens"
        raise InvalidValue("prompt_tokens", None, allowed)
    return any(frame.f_code.co_name == method for frame, _ in traceback.walk_stack(None))


class StopOn(StoppingCriteria):
    """Ends each row of a `generate()` at its first verdict, as `lil.decode` does.

        stop = lil.StopOn(lil.Guardian(), lil.Cycle(), tokenizer=tokenizer)
        model.generate(**inputs, stopping_criteria=StoppingCriteriaList([stop]))
        stop.verdicts  # one a row: its evidence, or None

    `eos` beats a verdict at the same token. With beams the detectors judge every candidate anew
    from its ids at each step. Assisted decoding and prompt lookup bring several tokens at once:
    they need `prompt_tokens` or `attention_mask`. Enter the object where a detector reads hidden
    states: `with lil.StopOn(..., model=model) as stop`. One object serves one `generate()` after
    another; where the next prompts are the last output, call `forget`.

    Where it differs from `lil.decode`: `generate()` does not say how many tokens it may make, so a
    verdict at the cap's token is a verdict here and `length` there. Nor can it drop tokens: where a
    verdict keeps fewer than there are, `verdict.token` says how many.

    Args:
        detectors: each row has its watchers; the first verdict counts.
        tokenizer: whose ids these are.
        prompt_tokens: width of the prompts with their padding, for assisted decoding.
        eos_token_id: ids that end a sequence; by default the tokenizer's and those of the
            generation config of `model`.
        pad_token_id: padding before short prompts and behind ended rows; by default the
            tokenizer's, and behind rows what the generation config of `model` names.
        attention_mask: (B, prompt width), 1 at tokens, 0 at padding; for prompts that begin with
            the padding id as a token, and for assisted decoding.
        model: for detectors that read hidden states, and to know every end token.
        token_bytes: bytes of each token id, for tokenizers that `lil.token_bytes` cannot read.

    Raises:
        InvalidValue: no detector, one that acts instead of stopping, one that reads hidden states
            of no model, or a width that is no integer of at least 0.
    """

    def __init__(
        self,
        *detectors: Detector,
        tokenizer: Any,
        prompt_tokens: int | None = None,
        eos_token_id: int | Iterable[int] | None = None,
        pad_token_id: int | None = None,
        attention_mask: Tensor | None = None,
        model: Any = None,
        token_bytes: Sequence[bytes] | None = None,
    ) -> None:
        if not detectors:
            raise InvalidValue("detectors", (), "at least one")
        for detector in detectors:
            require_stop(detector, "generate() can do nothing else; lil.decode can")
            if detector.cues:
                allowed = "one that asks nothing: lil.decode can"
                raise InvalidValue("detectors", detector.name, allowed)
            if detector.signals and model is None:
                allowed = f"the model: {detector.name} reads what it computes"
                raise InvalidValue("model", None, allowed)
        if attention_mask is not None and attention_mask.ndim != 2:
            raise InvalidValue("attention_mask", tuple(attention_mask.shape), "a shape (B, width)")
        self._detectors = detectors
        if prompt_tokens is not None:
            prompt_tokens = check_int("prompt_tokens", prompt_tokens, 0)
        known = token_table.token_bytes(tokenizer) if token_bytes is None else token_bytes
        self._pieces = [*known]
        for detector in detectors:
            detector.require_tokens(self._pieces)
        if eos_token_id is None:
            eos_token_id = eos_ids(model, tokenizer)
        eos = eos_token_id if isinstance(eos_token_id, Iterable) else [eos_token_id]
        self._pad = tokenizer.pad_token_id if pad_token_id is None else pad_token_id
        behind = getattr(getattr(model, "generation_config", None), "pad_token_id", None)
        self._ends = {int(token) for token in (*eos, self._pad, behind) if token is not None}
        self._mask = None if attention_mask is None else attention_mask.bool().tolist()
        if self._ends:
            # `generate()` pads rows that have ended only where some criterion has this attribute.
            self.eos_token_id = sorted(map(int, eos))
        mask_tokens = None if attention_mask is None else attention_mask.shape[1]
        self._following = _Calls(prompt_tokens, mask_tokens)
        self._rows: list[_Row] = []
        blocks = sorted(frozenset[int]().union(*(detector.blocks for detector in detectors)))
        compared = {
            piece: token_table.token_id(self._pieces, piece, tokenizer)
            for detector in detectors
            for piece in detector.compared
        }
        self._hidden = HiddenStates(model, blocks, compared) if blocks or compared else None

    def __enter__(self) -> Self:
        if self._hidden is not None:
            self._hidden.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._hidden is not None:
            self._hidden.__exit__(*error)

    @property
    def verdicts(self) -> list[Verdict | None]:
        """Of each row of the last call, why it was ended, or None."""
        return [row.verdict for row in self._rows]

    def forget(self) -> None:
        """The next call starts anew: needed where its prompt is the last output."""
        self._following.forget()

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Which rows have a verdict, (B,) bool.

        Raises:
            InvalidValue: a mask or width that does not belong to these prompts, drafts where
                neither is known; or hidden states are read under drafts or in a beam search.
            RuntimeError: hidden states are read, and the object was not entered.
        """
        del scores
        if self._over(input_ids):
            self.forget()
        known = self._following.follow(input_ids)
        if known and (self._hidden is None or known == input_ids.shape[1] - 1):
            for at, (row, tokens) in enumerate(
                zip(self._rows, input_ids[:, known:].tolist(), strict=True)
            ):
                if self._hidden is not None and not row.ended:
                    row.see(self._hidden, at)  # of the last token: the newest has not been read
                for token in tokens:
                    self._push(row, token)
        else:
            self._begin(input_ids)
        ended = [row.verdict is not None for row in self._rows]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)

    def _over(self, ids: Tensor) -> bool:
        """Whether the last call ended a generation, so that this one belongs to another."""
        if not any(self.verdicts) or not all(row.ended for row in self._rows):
            return False
        # On some devices `generate()` asks whether to stop one step late.
        return not self._ends.issuperset(ids[:, -1].tolist())

    def _begin(self, ids: Tensor) -> None:
        """All rows from the start: a new generation, or beams that changed places."""
        width = self._following.prompt
        if self._hidden is not None and (ids.shape[1] > width + 1 or _drafted()):
            allowed = "a token at a time: hidden states of other rows and drafts are unknown"
            raise InvalidValue("generate()", "beams or drafts", allowed)
        rows = ids.tolist()
        prompts = [self._prompt(row[:width], at, len(rows)) for at, row in enumerate(rows)]
        self._rows = [
            _Row(self._detectors, b"".join(map(self._piece, prompt))) for prompt in prompts
        ]
        for row, tokens in zip(self._rows, rows, strict=True):
            for token in tokens[width:]:
                self._push(row, token)

    def _prompt(self, ids: list[int], at: int, rows: int) -> list[int]:
        """Row `at` of the prompts, without its padding."""
        if self._mask is None:
            first = next((i for i, token in enumerate(ids) if token != self._pad), len(ids))
            return ids[first:]
        beams, left = divmod(rows, len(self._mask))
        if left or len(self._mask[0]) != len(ids):
            shape = f"(B, {len(ids)}), the prompts' shape, B a divisor of {rows}"
            raise InvalidValue("attention_mask", (len(self._mask), len(self._mask[0])), shape)
        mask = self._mask[at // beams]
        return [token for token, real in zip(ids, mask, strict=True) if real]

    def _push(self, row: _Row, token: int) -> None:
        """Show a row its newest token, unless it has ended or ends with it."""
        row.ended = row.ended or token in self._ends
        if not row.ended:
            row.push(self._piece(token))

    def _piece(self, token: int) -> bytes:
        # Embeddings are often padded beyond the tokenizer's last id; such ids decode to nothing.
        return self._pieces[token] if token < len(self._pieces) else b""
