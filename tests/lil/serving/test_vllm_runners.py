"""What our processors refuse in both of vLLM's runners; no engine is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

import lil.serving.vllm as serving  # noqa: E402
from attention.errors import InvalidValue  # noqa: E402

#: What the runners give a processor besides the configuration.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "V1": (torch.device("cpu"), False),
    "V2": (SimpleNamespace(all_token_ids=SimpleNamespace(gpu=torch.zeros(1))),),
}


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tiny_models import build_tokenizer

    path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(path)
    return str(path)


def config(path: str, **values: Any) -> Any:
    model = SimpleNamespace(
        tokenizer=path, tokenizer_revision=None, trust_remote_code=False, max_model_len=200
    )
    values = {"lil": {"stop_on_cue": " Anna has word7"} | values}
    return SimpleNamespace(model_config=model, additional_config=values, speculative_config=None)


@pytest.mark.parametrize("runner", ARGUMENTS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lz_alpha": -1}, "alpha"),
        ({"stop_on": "guardain"}, "did you mean 'guardian'"),
        ({"stop_on_every": 0}, "stop_on_every"),
        ({"stop_on_cue": "answer!"}, "cue"),
    ],
)
def test_a_server_that_is_told_nonsense_does_not_start(
    tokenizer_path: str, runner: str, values: Any, message: str
) -> None:
    kind = serving.LZPenalty if "lz_alpha" in values else serving.StopOn
    kind(config(tokenizer_path), *ARGUMENTS[runner])
    with pytest.raises(InvalidValue, match=message):
        kind(config(tokenizer_path, **values), *ARGUMENTS[runner])


def test_drafts_and_other_runners_are_refused(tokenizer_path: str) -> None:
    drafting = config(tokenizer_path)
    drafting.speculative_config = SimpleNamespace(method="ngram")
    for kind in (serving.StopOn, serving.LZPenalty):
        for arguments in ARGUMENTS.values():
            with pytest.raises(InvalidValue, match="speculative"):
                kind(drafting, *arguments)
