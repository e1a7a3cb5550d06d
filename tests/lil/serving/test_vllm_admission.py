"""What a vLLM server and its requests say of attention is heeded or refused, never void."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from attention.errors import InvalidValue
from lil.serving.vllm.admission import ServerOptions
from lil.serving.vllm.sparse.processor import Attention
from lil.serving.vllm.values import check_values

WORKER = "lil.serving.vllm.sparse.worker.CPUWorker"
PROCESSOR = "lil.serving.vllm.sparse.processor:Attention"


def config(values: Any, worker: str = WORKER) -> Any:
    """As much of an engine's as is looked at."""
    return SimpleNamespace(
        additional_config={"lil": values},
        parallel_config=SimpleNamespace(worker_cls=worker),
        model_config=SimpleNamespace(logits_processors=[PROCESSOR]),
        scheduler_config=SimpleNamespace(scheduler_cls=None),
    )


@pytest.mark.parametrize(
    ("values", "worker", "message"),
    [
        ({"attention": "quest(budget=64)"}, "auto", "--worker-cls lil.serving.vllm.sparse."),
        ({"attention_file": "read.jsonl"}, "auto", "--worker-cls lil.serving.vllm.sparse."),
        ({"attention_fle": "read.jsonl"}, WORKER, "did you mean 'attention_file'"),
        ("quest", WORKER, "a table of values"),
    ],
)
def test_the_processor_alone_refuses_what_a_server_would_not_heed(
    values: Any, worker: str, message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        Attention(config(values, worker), "cpu", False)


def test_what_a_server_heeds_is_admitted() -> None:
    Attention(config({"attention": "quest(budget=64)", "lz": "on"}), "cpu", False)
    Attention(config({}, "auto"), "cpu", False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention": "ful"}, "did you mean 'full'"),
        ({"attention": "quest(budget=64)"}, "the method is the server's"),
        ({"attention_": "full"}, "attention: another spelling"),
        ({"attention_file": "x"}, "nothing in a request"),
        ({"Attention": "full"}, "attention: another spelling"),
        ({"atention": "full"}, "attention: another spelling"),
        ({"attentoin": "full"}, "attention: another spelling"),
    ],
)
def test_a_value_that_would_mean_nothing_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        check_values(given)
    with pytest.raises(InvalidValue, match=message):
        ServerOptions(config({})).require({"vllm_xargs": given})


def test_values_of_others_are_passed_over() -> None:
    check_values({"attention": "full", "session_id": "a", "retention": 3, "attention_sinks": 4})


def test_beams_are_not_searched_under_sparse_attention() -> None:
    sparse, plain = (ServerOptions(config(one)) for one in ({"attention": "quest(budget=64)"}, {}))
    with pytest.raises(InvalidValue, match="read in full"):
        sparse.require({"use_beam_search": True})
    sparse.require({"use_beam_search": True, "vllm_xargs": {"attention": "full"}})
    sparse.require({"use_beam_search": False})
    plain.require({"use_beam_search": True})
