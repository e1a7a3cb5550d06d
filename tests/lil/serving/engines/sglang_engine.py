"""SGLang's own scheduler and worker on a CPU; requests come and answers go as JSON.

Run as a program with `SGLANG_USE_CPU_ENGINE=1`. Two packages are stood in for: pictures, and the
kernels of `sgl_kernel`, of which a build for CPUs is not published. What is never called needs not
be there, and what is called says that it is not.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from array import array
from types import ModuleType
from typing import Any

ABSENT = ("torchvision", "sgl_kernel")


class Absent:
    """A name of a package that is not there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{self._name} is stood in for")

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)


class AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that are stood in for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if name.split(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(__path__=[], __version__="0")


def scheduler(overlap: bool) -> Any:
    """A scheduler of four places with the reasoner."""
    from sglang.srt.managers import scheduler as engine
    from sglang.srt.server_args import PortArgs, ServerArgs

    from experiments.reasoner import checkpoint_path

    args = ServerArgs(
        model_path=str(checkpoint_path()),
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        enable_custom_logit_processor=True,
        disable_overlap_schedule=not overlap,
        max_running_requests=4,
        max_total_tokens=8192,
        disable_radix_cache=True,
        disable_cuda_graph=True,
    )
    ports = PortArgs.init_new(args)
    ranks = engine.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
    engine.publish(args, role="scheduler", ranks=ranks)
    return engine.Scheduler(args, ports)


def request(at: int, prompt: str, options: dict[str, Any], tokenizer: Any) -> Any:
    """As SGLang's tokenizer process hands it on."""
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    from lil.serving import sglang as processors

    params = SamplingParams(
        temperature=0, max_new_tokens=options["tokens"], custom_params=options["values"]
    )
    params.normalize(tokenizer)
    kind = options["processor"]
    return TokenizedGenerateReqInput(
        rid=str(at),
        input_text=prompt,
        input_ids=array("q", tokenizer(prompt)["input_ids"]),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=params,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=False,
        custom_logit_processor=kind and getattr(processors, kind).to_str(),
    )


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints must not stand before the answers
    sys.meta_path.insert(0, StandIns())
    work = json.load(sys.stdin)
    engine = scheduler(work["overlap"])
    assert engine.enable_overlap is work["overlap"]
    waiting = [
        request(at, prompt, options, engine.tokenizer)
        for at, (prompt, options) in enumerate(zip(work["prompts"], work["requests"], strict=True))
    ]
    taken: list[Any] = []

    def ingest() -> None:
        """In place of a socket: all requests at once, and then nothing until all have ended."""
        if not taken:
            engine.process_input_requests(waiting)
            taken.extend(engine.waiting_queue)
        engine.gracefully_exit = all(req.finished() for req in taken)

    engine.ingest_requests = ingest
    engine.run_event_loop()
    ends = [(list(req.output_ids), req.finished_reason.to_json()) for req in taken]
    json.dump(ends, answers, default=int)
    answers.flush()
    os._exit(0)  # threads of the engine do not end


if __name__ == "__main__":
    main()
