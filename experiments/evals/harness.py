"""The model `lil` of lm-evaluation-harness: its tasks under any backend, penalty and detector."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

import lil
from attention import Backend
from attention.errors import InvalidValue, check_int
from experiments.evals.model_args import GenerationArguments, Until, configuration, text_before
from experiments.grid import models
from experiments.grid.data.prompts import template_values, unknown_value
from experiments.grid.detectors import build_detectors
from experiments.grid.identity import digest
from experiments.grid.plan import build_backends, build_penalties
from experiments.grid.sources import code
from lil.decoding.options import encode, positions_of
from lil.hidden_states import widened
from lil.rereading import left_padded

#: What is added up over all generations and stands in the harness's results.
_COSTS = ("tokens", "decoded_tokens", "prefill_sec", "decode_sec")


class LilLM(TemplateLM):
    """A causal language model of transformers that decodes as `lil.decode` does.

    Generations end with the token that completes a stop string. Log-likelihoods are read in one
    dense forward: the model warns once, and its results say `"sparse": false`.

    Args:
        pretrained: hub id or folder; "reasoner" ships with the project.
        max_gen_toks: most generated tokens where a task does not say.
        max_length: most tokens of context and generation, the model's positions by default; longer
            contexts lose their beginning, as under the harness's own models.
        batch_size: rows decoded together; "auto" takes the preset's.
        think_end_token: text or id behind which an answer begins: a task sees only the text after
            its last occurrence.
        enable_thinking, chat_template_args: values for the chat template.
        arguments: see `experiments.evals.model_args.configuration`.
    """

    def __init__(
        self,
        pretrained: str = models.REASONER,
        max_gen_toks: int = 256,
        max_length: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,  # noqa: ARG002 - the harness names it always
        think_end_token: str | int | None = None,
        enable_thinking: bool | None = None,
        chat_template_args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        thinking = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        values = dict(chat_template_args or {}) | thinking
        if values:
            arguments["template_values"] = values
        if batch_size is not None and not str(batch_size).startswith("auto"):
            arguments["batch_size"] = batch_size
        self.settings = configuration({"pretrained": pretrained, **arguments})
        # `backend` is a name of the harness's own class.
        self.method = build_backends(self.settings)[-1]
        self.penalties = build_penalties(self.settings)[-1]
        self.detectors = build_detectors(self.settings)
        device = models.resolve_device(self.settings.device)
        models.use_threads(self.settings.threads)
        name, revision = self.settings.models[0], self.settings.revision
        source = models.find(name, revision, weights=self.settings.weights)
        self.loaded = models.load(source, self.settings.dtype, device)
        with self.method.on(self.loaded.model, self.settings.engine):
            pass  # a family it does not work with is refused now
        self.tokenizer = self.loaded.tokenizer
        self.template_values = template_values(self.settings.template_values)
        self.thinking_end = "" if think_end_token is None else str(think_end_token)
        if self.thinking_end.isdigit():  # an id, as in the harness's own models
            self.thinking_end = self.tokenizer.decode([int(self.thinking_end)])
        if think_end_token is not None and not self.thinking_end:
            raise InvalidValue("think_end_token", think_end_token, "a text, or a token's id")
        self.max_gen_toks = check_int("max_gen_toks", max_gen_toks, 1)
        positions = positions_of(self.loaded.model.config)
        self.max_length = check_int("max_length", max_length or positions or 1 << 31, 2)
        self._device = device
        self._finished: Counter[str] = Counter()
        self._costs: dict[str, float] = defaultdict(int)
        self._read_likelihoods = False

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> Self:
        """A model of `--model_args`, which beat the harness's own flags of the same name."""
        flags = {name: x for name, x in (additional_config or {}).items() if x is not None}
        # The harness asks for cuda:0 where nobody did; its own models then take what is there.
        if str(flags.get("device")).startswith("cuda") and not torch.cuda.is_available():
            flags["device"] = "auto"
        return cls(**{**flags, **arg_dict})

    def get_model_info(self) -> dict[str, Any]:
        """What stands in the harness's results: what was run, how it ended and what it cost."""
        about = {
            **self._decoding,
            "sparse": self.method.name != "full" and not self._read_likelihoods,
            "generations": self._finished.total(),
            "finish": dict(self._finished),
            **self._costs,
        }
        return {"lil": about}

    @property
    def _decoding(self) -> dict[str, Any]:
        """What a text follows from besides its request."""
        own = ("dtype", "temperature", "top_k", "top_p", "seed")
        return {
            "model_digest": self.loaded.source.digest,
            "backend": self.method.identity(),
            "penalties": [penalty.identity() for penalty in self.penalties],
            "detectors": [detector.identity() for detector in self.detectors],
            **{name: getattr(self.settings, name) for name in own},
            "max_gen_toks": self.max_gen_toks,
            "max_length": self.max_length,
            "think_end_token": self.thinking_end,
            "code": code(self.method, *self.penalties, *self.detectors),
        }

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Give these settings a table of their own in the harness's cache (`--use_cache`).

        The harness itself looks answers up by task type and request alone.
        """
        if (cache := cache_hook.dbdict) is not None:
            if self.settings.temperature:
                allowed = "a temperature of 0 in --model_args: all samples would be one text"
                raise InvalidValue("--use_cache", cache.filename, allowed)
            table = digest(self._decoding)
            type(cache)(cache.filename, tablename=table).close()  # makes the table
            cache.tablename = table
        super().set_cache_hook(cache_hook)

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The id that likelihoods of a text without context are conditioned on."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        """Which tokenizer and template, for the harness's cache of requests."""
        source, values = self.loaded.source, "".join(f",{x}" for x in self.settings.template_values)
        return f"{source.name}@{source.digest}{values}".replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        """A text's ids; special tokens as the tokenizer adds them, unless the text has them."""
        if add_special_tokens is None:  # a chat template writes the first one itself
            return encode(self.tokenizer, string)
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"])

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as the model's own template writes it."""
        if not self.tokenizer.chat_template:
            allowed = "a model whose tokenizer has a chat template"
            raise InvalidValue("--apply_chat_template", self.loaded.source.name, allowed)
        if (wrong := unknown_value(self.tokenizer, self.template_values)) is not None:
            warnings.warn(f"{wrong.value}: the chat template has no such name", stacklevel=2)
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **self.template_values,
        )
        return text

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The generated texts, cut before the first stop string."""
        answers: dict[int, str] = {}
        times: Counter[str] = Counter()
        groups: dict[str, tuple[GenerationArguments, list[int], list[lil.Request]]] = {}
        for at, item in enumerate(requests):
            context, options = item.args
            generation = GenerationArguments.read(options, self.settings, self.max_gen_toks)
            room = self.max_length - generation.max_new_tokens
            if room < 1:
                allowed = f"less than max_length, which is {self.max_length}"
                raise InvalidValue("max_gen_toks", generation.max_new_tokens, allowed)
            ids = self.tok_encode(context)
            if len(ids) > room:
                limits = f"max_length {self.max_length}, max_gen_toks {generation.max_new_tokens}"
                message = f"a context of {len(ids)} tokens is cut to its last {room}: {limits}"
                warnings.warn(message, stacklevel=2)
            # Where a task wants several samples, the harness names the request so many times.
            name = f"{item.task_name}/{item.doc_id}/{item.idx}"
            key = json.dumps(options, sort_keys=True, default=str)
            _, places, group = groups.setdefault(key, (generation, [], []))
            places.append(at)
            request = lil.Request(ids[-room:], generation.max_new_tokens, name, times[name])
            group.append(request)
            times[name] += 1
        special = self.tokenizer.all_special_ids
        with tqdm(total=len(requests), disable=disable_tqdm, desc="generate_until") as bar:
            for generation, places, group in groups.values():
                stops = [Until(generation.until)] if generation.until else []
                traces = lil.stream(
                    self.loaded.model,
                    self.tokenizer,
                    group,
                    backend=self.method,
                    penalties=self.penalties,
                    detectors=[*stops, *self.detectors],
                    batch_size=self.settings.batch_size,
                    check_every=self.settings.check_every,
                    token_bytes=self.loaded.token_bytes,
                    beyond_positions=True,  # max_length bounds a context and its answer
                    **generation.sampling,
                )
                for index, trace in traces:
                    at = places[index]
                    until = generation.until
                    answers[at] = text_before(trace, until, special, self.thinking_end)
                    self._finished[trace.finish] += 1
                    for name in _COSTS:
                        self._costs[name] += getattr(trace, name) or 0
                    self._costs["keys_read"] += trace.checks[-1].keys_read
                    self.cache_hook.add_partial("generate_until", requests[at].args, answers[at])
                    bar.update()
        return [answers[at] for at in range(len(requests))]

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: object,
    ) -> list[tuple[float, bool]]:
        """For each (cache key, context, continuation): its log-likelihood, and whether greedy."""
        changed = self.method.name != "full" or self.penalties or self.detectors
        if changed and not self._read_likelihoods:
            warnings.warn(
                "log-likelihoods are read in one dense forward, so no decode step was sparse: "
                "backend, penalty and detector do not change these scores",
                stacklevel=2,
            )
        self._read_likelihoods = True
        answers: dict[int, tuple[float, bool]] = {}
        # Longest first: what does not fit fails at once, and rows of a batch are alike.
        order = sorted(range(len(requests)), key=lambda at: -sum(map(len, requests[at][1:])))
        size = self.settings.rows
        with tqdm(total=len(requests), disable=disable_tqdm, desc="loglikelihood") as bar:
            for start in range(0, len(order), size):
                batch = order[start : start + size]
                pairs = [requests[at][1:] for at in batch]
                scored = likelihoods(self.loaded.model, self.method, pairs, self.max_length)
                for at, answer in zip(batch, scored, strict=True):
                    answers[at] = answer
                    if requests[at][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[at][0], answer)
                bar.update(len(batch))
        return [answers[at] for at in range(len(requests))]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of whole texts, each token predicted once, in windows of the model."""
        windows: list[tuple[None, list[int], list[int]]] = []
        counts = []
        for item in requests:
            ids, first = self.tok_encode(item.args[0], False), self.prefix_token_id
            if ids[:1] == [first]:  # it is read, and is no token of the text
                ids = ids[1:]
            rolled = get_rolling_token_windows(ids, first, self.max_length, context_len=1)
            pairs = [make_disjoint_window(pair) for pair in rolled]
            windows += [(None, *pair) for pair in pairs]
            counts.append(len(pairs))
        scored = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        sums = [math.fsum(next(scored)[0] for _ in range(count)) for count in counts]
        for item, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", item.args, total)
        return sums


@torch.inference_mode()
def likelihoods(
    model: Any, backend: Backend, pairs: Sequence[tuple[list[int], list[int]]], most: int
) -> list[tuple[float, bool]]:
    """The log-likelihood of each continuation after its context, and whether greedy gives it."""
    rows = [[*context, *after][-most - 1 : -1] for context, after in pairs]
    longest = max(1, *(len(after) for _, after in pairs))
    with backend.on(model) as cache:
        inputs = left_padded(rows, model.device)
        output = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=longest)
    logits = widened(output.logits)
    answers = []
    for row_logits, row, (_, after) in zip(logits, rows, pairs, strict=True):
        continuation = after[-len(row) :]
        wanted = torch.tensor(continuation, device=logits.device, dtype=torch.int64)[:, None]
        scores = row_logits[len(row_logits) - len(continuation) :]
        greedy = bool((scores.argmax(-1, keepdim=True) == wanted).all())
        answers.append((float(scores.log_softmax(-1).gather(-1, wanted).sum()), greedy))
    return answers
