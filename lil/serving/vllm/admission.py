"""Checks requests for what none of our processors would ever see.

    vllm serve MODEL --logits-processors ... --middleware lil.serving.vllm.admission.RequestCheck

A processor checks a request's values where it is loaded and where the engine hands them on. Beam
search hands none on: the server drops them and asks for single tokens. Values whose processor was
not loaded are not looked at. Both would be void in silence; here they are refused.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from vllm.config import VllmConfig

from attention.errors import InvalidValue
from lil.serving import vllm as processors
from lil.serving.values import (
    ATTENTION,
    CUE,
    FULL,
    OFF,
    PENALTIES,
    STOPPING,
    check_attention,
    penalty_keys,
    penalty_of,
)
from lil.serving.vllm.requests import server_values

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Where a request has its own values, and where it asks for a search with beams.
VALUES, BEAMS = "vllm_xargs", "use_beam_search"
#: Bytes of a body that is read to be checked; a larger one is refused.
LARGEST_BODY = 64 * 2**20


class RequestCheck:
    """An ASGI middleware that answers with HTTP 400 where something in a request would be void.

    It reads JSON bodies and passes on everything that it accepts as it came.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._options: ServerOptions | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        messages, size, is_more = list[Message](), 0, True
        while is_more:
            messages.append(await receive())
            is_more = messages[-1]["type"] == "http.request" and messages[-1].get(
                "more_body", False
            )
            size += len(messages[-1].get("body", b""))
            if size > LARGEST_BODY:
                error = InvalidValue("body", f"{size:,} bytes", f"at most {LARGEST_BODY:,} bytes")
                await _refuse(error, 413, send)
                return
        if self._options is None:  # the engine is there before the first request, not earlier
            self._options = ServerOptions(scope["app"].state.vllm_config)
        try:
            self._options.accept(_body(messages))
        except InvalidValue as error:
            await _refuse(error, 400, send)
            return
        remaining = iter(messages)

        async def replay() -> Message:
            message = next(remaining, None)
            return await receive() if message is None else message

        await self._app(scope, replay, send)


class ServerOptions:
    """What a server does with a request's values."""

    def __init__(self, config: VllmConfig) -> None:
        loaded = config.model_config.logits_processors or ()
        names = processors.__all__
        self._loaded = {name for name in names if f"{processors.__name__}:{name}" in loaded}
        self._defaults = server_values(config)

    def accept(self, body: Mapping[str, Any]) -> None:
        """Refuse a request of which something would be void."""
        values = body.get(VALUES)
        values = values if isinstance(values, Mapping) else {}
        for key in values:
            name = _processor_of(key)
            if name is not None and name not in self._loaded:
                allowed = f"nothing: the server was started without lil.serving.vllm:{name}"
                raise InvalidValue(f"{VALUES}.{key}", values[key], allowed)
        check_attention(values)
        if body.get(BEAMS):
            self._refuse_beams(body[BEAMS], values)

    def _refuse_beams(self, beams: object, values: Mapping[str, Any]) -> None:
        if ATTENTION in self._defaults and values.get(ATTENTION) != FULL:
            allowed = f"false, or {ATTENTION} = {FULL!r}: a beam is a prompt, which is read in full"
            raise InvalidValue(BEAMS, beams, allowed)
        kinds = (kind for kind in PENALTIES if kind.__name__ in self._loaded)
        penalties = (penalty_of(kind, values, penalty_of(kind, self._defaults)) for kind in kinds)
        active = [penalty.name for penalty in penalties if penalty and not penalty.neutral]
        stop_on = values.get("stop_on", self._defaults.get("stop_on", OFF[0]))
        if "StopOn" in self._loaded and str(stop_on).lower() not in OFF:
            active.append("stop_on")
        if active:
            allowed = f"false, or {active[0]} = 'off': beams are searched by the model's own scores"
            raise InvalidValue(BEAMS, beams, allowed)


def _is_json(scope: Mapping[str, Any]) -> bool:
    kinds = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    return any(kind.split(b";")[0].strip().lower().endswith(b"json") for kind in kinds)


def _body(messages: list[Message]) -> Mapping[str, Any]:
    """A request's JSON object; an empty one where there is none, which the server refuses."""
    try:
        body = json.loads(b"".join(message.get("body", b"") for message in messages))
    except (ValueError, RecursionError):  # the latter of brackets in brackets in brackets
        return {}
    return body if isinstance(body, Mapping) else {}


def _processor_of(key: str) -> str | None:
    """The name of the class that reads a value; None where it is none of ours."""
    if key in (*STOPPING, CUE):
        return "StopOn"
    kinds = (kind for kind in PENALTIES if key == kind.name or key in penalty_keys(kind))
    return next((kind.__name__ for kind in kinds), None)


async def _refuse(error: InvalidValue, status: int, send: Send) -> None:
    """An answer in the form in which the server gives its own."""
    fields = {"message": str(error), "type": "BadRequestError", "param": error.field}
    body = json.dumps({"error": fields | {"code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
