r"""Prompts: what the columns of a problem become before a model reads them.

A template is a text with names in braces: `{problem}` is the question, any other name a column of
the data set. Braces that are meant, as in `\boxed{}`, are written twice: `\boxed{{}}`.
"""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention import spec
from attention.errors import InvalidValue

#: The paper prints no prompt; this is the instruction its reasoning models were published with.
MATH_TEMPLATE = (
    "{problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
)

#: What is asked for with a problem of a generator, whose answers may have several lines.
GYM_TEMPLATE = (
    "{problem}\nPlease reason step by step, and put your final answer alone between <answer> and "
    "</answer>."
)

#: The name of the question in a template, whatever its column is called.
PROBLEM = "problem"


def read_template(file: str) -> str:
    """The text of a template's file, without a last line break."""
    field = "prompt_template"
    try:
        text = Path(file).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, ValueError) as error:
        raise InvalidValue(field, file, f"a readable text file ({error})") from error
    if not _names(text, file):
        allowed = "{problem} or a column's name in it: all prompts would be the same"
        raise InvalidValue(field, file, allowed)
    return text


def _names(text: str, file: str) -> list[str]:
    """What stands in braces, in order."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        allowed = f"braces that are meant written twice, {{{{ and }}}} ({error})"
        raise InvalidValue("prompt_template", file, allowed) from error
    names = []
    for _, name, form, conversion in parts:
        if name is not None:
            how = f"!{conversion}" if conversion else ""
            names.append(name + how + (f":{form}" if form else ""))
    return names


def fill(
    text: str, file: str, question: str, columns: Mapping[str, Any], answer_column: str | None
) -> str:
    """A template with a problem's values in it."""
    known = {
        PROBLEM: question,
        **{k: v for k, v in columns.items() if k not in (PROBLEM, answer_column)},
    }
    for name in _names(text, file):
        if name not in known:
            names = ", ".join("{" + name + "}" for name in known)
            excluded = "" if answer_column is None else f"not the answer's column {answer_column}; "
            allowed = f"{names} ({excluded}braces that are meant are written twice)"
            raise InvalidValue("prompt_template", "{" + name + "}", allowed, known)
    # Values are put in as they are: braces of a problem are no names.
    return "".join(
        literal + ("" if name is None else str(known[name]))
        for literal, name, _, _ in string.Formatter().parse(text)
    )


def template_values(pairs: Sequence[str]) -> dict[str, Any]:
    """Values for a chat template, of texts NAME=VALUE: as TOML or Python has them, else texts."""
    named = (pair.split("=", 1) for pair in pairs)
    words = {"True": True, "False": False}
    return {name: words.get(raw, spec.value(raw)) for name, raw in named}


def token_ids(
    tokenizer: Any, message: str, chat: bool, system: str | None, values: Mapping[str, Any]
) -> list[int]:
    """A prompt as the model sees it; `values` are for its chat template."""
    if (system is not None or values) and not (chat and tokenizer.chat_template):
        field, given = ("system", system) if system is not None else ("template_values", [*values])
        why = "the tokenizer has none" if chat else "prompts used as they are go through none"
        allowed = f"none without a chat template: {why} (write it into the prompt template)"
        raise InvalidValue(field, given, allowed)
    if not chat or not tokenizer.chat_template:
        from lil.decoding.options import encode

        return encode(tokenizer, message)
    return _rendered(tokenizer, [("user", message)], system, values)


def chat_ids(
    tokenizer: Any,
    messages: Sequence[tuple[str, str]],
    system: str | None,
    values: Mapping[str, Any],
) -> list[int]:
    """A chat as the model sees it, its own turn next."""
    if not tokenizer.chat_template:
        allowed = "a model with a chat template for a column of messages: the tokenizer has none"
        raise InvalidValue("messages", messages[-1][1][:60], allowed)
    if system is not None and any(role == "system" for role, _ in messages):
        raise InvalidValue("system", system, "none: the messages have a system prompt of their own")
    return _rendered(tokenizer, messages, system, values, own=True)


def unknown_value(tokenizer: Any, values: Mapping[str, Any]) -> InvalidValue | None:
    """Why a chat template takes no value of one of these names; None where it takes all."""
    names = set(re.findall(r"[^\W\d]\w*", str(tokenizer.chat_template)))
    names -= {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"}
    wrong = next((name for name in values if name not in names), None)
    if wrong is None:
        return None
    return InvalidValue("template_values", wrong, "a name in the model's chat template", names)


def _rendered(
    tokenizer: Any,
    messages: Sequence[tuple[str, str]],
    system: str | None,
    values: Mapping[str, Any],
    own: bool = False,
) -> list[int]:
    """Messages in the tokenizer's chat template; `own` says that they are the user's own."""
    if (wrong := unknown_value(tokenizer, values)) is not None:
        raise wrong
    chat = [] if system is None else [{"role": "system", "content": system}]
    chat += [{"role": role, "content": content} for role, content in messages]
    try:
        rendered = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=False, **values
        )
    except Exception as error:  # a template may raise what it likes
        if own:
            allowed = f"messages that the model's chat template takes ({error})"
            raise InvalidValue("messages", messages[-1][1][:60], allowed) from error
        if system is None:
            allowed = f"a model whose chat template takes a question ({error})"
            raise InvalidValue("model", tokenizer.name_or_path, allowed) from error
        allowed = f"a system prompt that the model's chat template takes ({error})"
        raise InvalidValue("system", system, allowed) from error
    # The template writes the special tokens itself.
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def unknown_words(tokenizer: Any, prompts: Sequence[Sequence[int]], named: str) -> list[str]:
    """A notice where prompts hold words that the tokenizer does not have."""
    unknown = tokenizer.unk_token_id
    if unknown in (None, tokenizer.bos_token_id, tokenizer.eos_token_id):  # which say other things
        return []
    holding = sum(unknown in ids for ids in prompts)
    if not holding:
        return []
    return [
        f"{named}: {holding:,} of {len(prompts):,} prompts hold words that the model does not know "
        f"({tokenizer.unk_token}): `lil run --json` shows them, and --prompt-template FILE "
        "puts other words around a problem"
    ]
