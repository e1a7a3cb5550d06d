"""The second way to stop in vLLM: a scheduler, on the host alone, exact under both runners.

    vllm serve MODEL --scheduler-cls lil.serving.vllm.scheduler.AsyncStopScheduler

**This is no public interface of vLLM**, which may change it with any release; `StopOn` is. It can
end a request and nothing else: no token is forced, so there is no answer. In exchange nothing is
late, speculative decoding may be on, no token is added, and the reason stands in the response. A
request's values are the same, but nobody looks at them before it runs: wrong ones abort it, and the
log says why.
"""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from attention.errors import InvalidValue
from lil.serving.ending import Ending
from lil.serving.vllm.requests import StoppingServer

__all__ = ["AsyncStopScheduler", "StopScheduler"]

_LOG = init_logger("vllm.lil.scheduler")

#: Where a request keeps what watches it.
_PLACE = "_lil_stop_on"


class _Stops:
    """Ends requests with `stop_on` when a detector fires."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._server = StoppingServer(self.vllm_config, forces=False)  # type: ignore[attr-defined]

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], *args: Any, **kwargs: Any
    ) -> tuple[list[int], bool]:
        update = super()._update_request_with_output  # type: ignore[misc]
        try:
            ending = self._watched(request)
        except InvalidValue as error:
            tokens, _ = update(request, new_token_ids, *args, **kwargs)
            _LOG.error("request %s: %s", request.request_id, error)
            request.status = RequestStatus.FINISHED_ABORTED
            return tokens, True
        if ending is None:
            kept: tuple[list[int], bool] = update(request, new_token_ids, *args, **kwargs)
            return kept
        tokens, stopped = [], False
        first = not request.output_token_ids
        for token in new_token_ids:  # several, where drafts were accepted: it ends between them
            given, stopped = update(request, [token], *args, **kwargs)
            tokens += given
            if not stopped:
                self._server.see(ending, [token])
            if not stopped and ending.reason is not None:
                request.status = RequestStatus.FINISHED_STOPPED
                request.stop_reason = f"lil: {ending.reason}"
                stopped = True
            if stopped:
                break
        self._server.counters.count("stop_on", int(first), len(tokens))
        return tokens, stopped

    def _watched(self, request: Request) -> Ending | None:
        """What watches a request, made before its first token; None where nothing does.

        Raises:
            InvalidValue: values that cannot be used, or an action that goes on.
        """
        params, ending = getattr(request, _PLACE, (None, None))
        # A request that is sent more of its prompt begins anew.
        over = ending is not None and len(request.output_token_ids) < ending.seen
        if params is not request.sampling_params or over:
            ending = self._made(request)
            setattr(request, _PLACE, (request.sampling_params, ending))
        found: Ending | None = ending
        return found

    def _made(self, request: Request) -> Ending | None:
        params = request.sampling_params
        stopping = None if params is None else self._server.stopping(params)
        if stopping is None:
            return None
        for detector in stopping.detectors:
            if not detector.action.ends:
                allowed = "stop: a scheduler forces no tokens, lil.serving.vllm:StopOn does"
                raise InvalidValue("on_stop", detector.action.name, allowed)
        return self._server.ending(stopping, params, request.prompt_token_ids or ())


class StopScheduler(_Stops, Scheduler):
    """For engines without asynchronous scheduling, such as vLLM's CPU build."""


class AsyncStopScheduler(_Stops, AsyncScheduler):
    """For engines with asynchronous scheduling, the default on GPUs."""
