"""Backends that tests drive: every method, some with several options."""

from __future__ import annotations

from dataclasses import replace

import attention

# One backend of every method, sparse from 16 to 32 tokens on, in every layer.
BACKENDS: tuple[attention.Backend, ...] = (
    attention.Full(),
    attention.Sink(budget=16),
    attention.Sink(budget=17, sinks=2, positions="absolute"),
    attention.H2O(budget=16),
    attention.H2O(budget=15, heavy=9, gqa="max"),
    attention.H2O(budget=14, score_from_prefill=False, dense_layers=1),
    attention.H2O(budget=15, gqa="query_head"),
    attention.Noise(noise=0.2, seed=3),
    attention.Quest(budget=16, page=4, dense_layers=0),
    attention.Quest(budget=18, page=3, dense_layers=1, gqa="query_head"),
    attention.InfLLM(budget=16),
    attention.InfLLM(budget=32, n_init=5, block=4, topk=2, n_local=12, repr_topk=2),
    attention.InfLLM(budget=24, far_position="absolute"),
    attention.InfLLM(budget=32, n_local=11, selection="kv_head"),
    attention.Window(budget=15),
    attention.TOVA(budget=16),
    attention.Random(budget=17, sinks=2),
    attention.Oracle(budget=16),
    attention.Oracle(top_p=0.8, gqa="max"),
    attention.RaaS(budget=16, page=4, keep_prompt=False),
    attention.RKV(budget=18),
    attention.SnapKV(budget=17),
    attention.RKV(budget=18, buffer=3),
    attention.Random(budget=20, every=5),
    attention.CAOTE(budget=17),
    attention.Adamas(budget=16, dense_layers=0, threshold_q=1.0, threshold_k=1.0),
    attention.VaSE(budget=17),
    attention.GKV(budget=18, window=4),
    attention.Lazy(budget=17, alpha=0.07),
    attention.Quest(budget=16, page=4, dense_layers=0, rule="moments"),
    attention.Duo(budget=16, sinks=3, pattern=((0.2, 0.9), (0.6, 0.1))),
    attention.LessIsMore(budget=16, dense_layers=0),
    attention.Kascade(budget=16, anchors=()),
)
#: Of models with three layers; patterns are of two others.
OF_THREE = tuple(
    replace(b, pattern=(*b.pattern, (1, 0))) if isinstance(b, attention.Duo) else b
    for b in BACKENDS
)
FIRST = tuple({b.name: b for b in reversed(BACKENDS)}.values())  # one of every method
KEEP_ALL = tuple(b for b in BACKENDS if b.keeps_all)
