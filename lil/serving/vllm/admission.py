"""What vLLM's HTTP server is asked that none of our processors would ever see.

    vllm serve MODEL --logits-processors ... --middleware lil.serving.vllm.admission.RequestCheck

A processor checks a request's values where it is loaded and where the engine hands them on. Beam
search hands none on: the server drops them and asks for single tokens. Nor are values looked at
whose processor was not loaded. Both would be void in silence; here they are refused.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

from vllm.config import VllmConfig

from attention.errors import InvalidValue
from lil.serving import vllm as processors
from lil.serving.keys import CUE, PENALTIES, STOPPING, penalty_keys
from lil.serving.values import OFF, penalty_of
from lil.serving.vllm.requests import served
from lil.serving.vllm.values import ATTENTION, FULL, check_values

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Where a request has its own values, and where it asks for a search with beams.
VALUES, BEAMS = "vllm_xargs", "use_beam_search"


class RequestCheck:
    """An ASGI middleware that answers with HTTP 400 what would be asked for in vain.

    It reads JSON bodies and passes on everything that it does not refuse as it came.

    Args:
        app: what answers; its state holds the engine's configuration.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._server: ServerOptions | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        if scope["type"] != "http" or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        came: list[Message] = []
        while not came or (came[-1]["type"] == "http.request" and came[-1].get("more_body")):
            came.append(await receive())
        if self._server is None:  # the engine is there before the first request, not before the app
            self._server = ServerOptions(scope["app"].state.vllm_config)
        try:
            self._server.require(_body(came))
        except InvalidValue as error:
            await _refuse(error, send)
            return
        again = iter(came)

        async def replayed() -> Message:
            message = next(again, None)
            return await receive() if message is None else message

        await self._app(scope, replayed, send)


class ServerOptions:
    """What a server heeds of a request's values.

    Args:
        config: of the engine.

    Raises:
        InvalidValue: `additional_config` holds what cannot be used.
    """

    def __init__(self, config: VllmConfig) -> None:
        self._loaded = _loaded(config)
        self._defaults = served(config)

    def require(self, body: Mapping[str, Any]) -> None:
        """Refuse a request of which something would be void.

        Args:
            body: as it came.

        Raises:
            InvalidValue: a value whose processor is not loaded; another attention than full or the
                server's; beams beside a penalty, a detector or sparse attention, be it the
                request's or the server's.
        """
        given = body.get(VALUES)
        given = given if isinstance(given, Mapping) else {}
        for key in given:
            name = _processor(key)
            if name is not None and name not in self._loaded:
                allowed = f"nothing: the server was started without lil.serving.vllm:{name}"
                raise InvalidValue(f"{VALUES}.{key}", given[key], allowed)
        check_values(given)
        if not body.get(BEAMS):
            return
        if ATTENTION in self._defaults and given.get(ATTENTION) != FULL:
            allowed = (
                f"false, or {ATTENTION} = {FULL!r}: each token of a beam is a prompt, read in full"
            )
            raise InvalidValue(BEAMS, body[BEAMS], allowed)
        for kind in PENALTIES:
            if kind.__name__ in self._loaded:
                penalty = penalty_of(kind, given, penalty_of(kind, self._defaults))
                if penalty is not None and not penalty.neutral:
                    _refuse_beams(body, kind.name)
        stop_on = given.get("stop_on", self._defaults.get("stop_on", OFF[0]))
        if "StopOn" in self._loaded and str(stop_on).lower() not in OFF:
            _refuse_beams(body, "stop_on")


def _refuse_beams(body: Mapping[str, Any], beside: str) -> None:
    allowed = f"false, or {beside} = 'off': beams are searched by the model's own scores"
    raise InvalidValue(BEAMS, body[BEAMS], allowed)


def _is_json(scope: Mapping[str, Any]) -> bool:
    kinds = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    return any(kind.split(b";")[0].strip().lower().endswith(b"json") for kind in kinds)


def _body(messages: list[Message]) -> Mapping[str, Any]:
    """A request's JSON object, an empty one where there is none: that is for the server to say."""
    try:
        body = json.loads(b"".join(one.get("body", b"") for one in messages))
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}


def _processor(key: str) -> str | None:
    """The class that heeds a value; None where it is none of ours."""
    if key in (*STOPPING, CUE):
        return "StopOn"
    owner = next((one for one in PENALTIES if key == one.name or key in penalty_keys(one)), None)
    return None if owner is None else owner.__name__


def _loaded(config: VllmConfig) -> set[str]:
    """Names of our classes that the server was started with; a scheduler of ours is `StopOn`."""
    classes = [_named(one, ":") for one in config.model_config.logits_processors or ()]
    names = {
        name
        for name in processors.__all__
        for one in classes
        if issubclass(one, getattr(processors, name))
    }
    scheduler = config.scheduler_config.scheduler_cls
    if scheduler is not None:
        from lil.serving.vllm.scheduler import AsyncStopScheduler, StopScheduler

        if issubclass(_named(scheduler, "."), (AsyncStopScheduler, StopScheduler)):
            names.add("StopOn")
    return names


def _named(one: str | type, dot: str) -> type:
    if not isinstance(one, str):
        return one
    module, _, name = one.rpartition(dot)
    found: type = getattr(importlib.import_module(module), name)
    return found


async def _refuse(error: InvalidValue, send: Send) -> None:
    """An answer in the form in which the server gives its own."""
    status = HTTPStatus.BAD_REQUEST
    told = {
        "message": str(error),
        "type": "BadRequestError",
        "param": error.field,
        "code": status.value,
    }
    body = json.dumps({"error": told}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})
