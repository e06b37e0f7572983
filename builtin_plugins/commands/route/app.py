"""ASGI application: prefill on one engine, decode on another.

A failed engine is replaced by another as long as the client has received nothing. Losing a prefill
engine costs a computation, not the request. State: which engines are up and which prompt prefixes
they have computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec

from builtin_plugins.commands.route.engines import Engine, Engines, prefix_keys
from builtin_plugins.commands.route.proxy import (
    OWN_HEADERS,
    Answer,
    Forwarder,
    Headers,
    Lost,
    call_engine,
    send_error,
    send_json,
    send_whole,
)

FIELD: Final = "kv_transfer_params"
SPLIT: Final = frozenset({"/v1/completions", "/v1/chat/completions"})
"""Endpoints with KV transfer parameters in their answers."""
PREFILL_PARAMS: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(slots=True)
class Call:
    """A client's request."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    keys: Sequence[bytes] = ()
    """Keys of the prompt prefix."""
    streams: bool = False

    @classmethod
    def from_scope(cls, scope: Any, body: bytes) -> Call:
        """Return the request of an ASGI scope."""
        target = scope["raw_path"] + (
            b"?" + scope["query_string"] if scope["query_string"] else b""
        )
        headers = [(name, value) for name, value in scope["headers"] if name not in OWN_HEADERS]
        return cls(scope["method"].encode(), target, headers, body)

    def fields(self) -> dict[str, Any] | None:
        """Return the JSON fields; None: an engine reports what is wrong."""
        if self.method != b"POST":
            return None
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


def is_splittable(path: str, fields: Mapping[str, Any]) -> bool:
    """Return whether prefill can be split off: one prompt without echoed prompt data."""
    if (
        path not in SPLIT
        or fields.get(FIELD)
        or fields.get("echo")
        or fields.get("prompt_logprobs") is not None
    ):
        return False
    prompt = fields.get("prompt", "")
    return isinstance(prompt, str) or (
        isinstance(prompt, list) and all(isinstance(each, int) for each in prompt)
    )


def prefill_body(fields: Mapping[str, Any]) -> bytes:
    """Return the body of the prefill request."""
    body = {
        name: value
        for name, value in fields.items()
        if name not in ("stream_options", "min_tokens", "best_of")
    }
    body |= {"max_tokens": 1, "stream": False, "n": 1, FIELD: PREFILL_PARAMS}
    if "max_completion_tokens" in fields:
        body["max_completion_tokens"] = 1
    return msgspec.json.encode(body)


def kv_transfer_params(answer: bytes) -> Mapping[str, Any] | None:
    """Return the KV transfer parameters of a prefill answer."""
    try:
        params = msgspec.json.decode(answer).get(FIELD)
    except (msgspec.DecodeError, AttributeError):
        return None
    return params if isinstance(params, dict) else None


def decode_body(fields: Mapping[str, Any], params: Mapping[str, Any]) -> bytes:
    """Return the body of the decode request with these KV transfer parameters."""
    return msgspec.json.encode({**fields, FIELD: params})


RETRIED_STATUSES: Final = frozenset({429, 500, 502, 503, 504})
"""Status codes that are retried on another engine."""
FIRST_PAUSE_S: Final = 0.05
"""Seconds before the first retry; doubled for each further one."""
LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Rules:
    """Retry and size limits."""

    retries: int
    health_interval_s: float
    timeout_s: float
    max_request_bytes: int


class Router:
    """ASGI application."""

    def __init__(self, prefill: Engines, decode: Engines, rules: Rules) -> None:
        self._prefill = prefill
        self._decode = decode
        self._rules = rules

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle an ASGI scope."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        every_s = self._rules.health_interval_s
        watching = asyncio.gather(self._prefill.watch(every_s), self._decode.watch(every_s))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            await self._send_health(send)
            return
        body = await self._read(receive, send)
        if body is None:
            return
        # a client disconnect cancels its request
        work = asyncio.ensure_future(self._route(Call.from_scope(scope, body), scope["path"], send))
        disconnected = asyncio.ensure_future(receive())
        await asyncio.wait((work, disconnected), return_when=asyncio.FIRST_COMPLETED)
        for task in (work, disconnected):
            if not task.done():
                task.cancel()
        await asyncio.gather(disconnected, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            await work

    async def _read(self, receive: Any, send: Any) -> bytes | None:
        """Return the body; None if the client disconnected or the body was rejected."""
        pieces = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._rules.max_request_bytes:
                limit = f"{self._rules.max_request_bytes} bytes (--max-request-bytes)"
                await send_error(
                    send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {limit}."
                )
                return None
            if not message.get("more_body"):
                return b"".join(pieces)

    async def _route(self, call: Call, path: str, send: Any) -> None:
        fields = call.fields()
        if fields is not None:
            call.keys = prefix_keys(fields)
            call.streams = bool(fields.get("stream"))
            if self._prefill and is_splittable(path, fields):
                params = await self._compute_prompt(call, prefill_body(fields))
                if params is not None:
                    call.body = decode_body(fields, params)
        await self._forward(call, send)

    # --- prefill

    async def _compute_prompt(self, call: Call, body: bytes) -> Mapping[str, Any] | None:
        """Prefill on an engine; return its KV transfer parameters, or None."""
        tried = set[Engine]()
        while (
            len(tried) <= self._rules.retries
            and (engine := self._prefill.choose(call.keys, tried)) is not None
        ):
            tried.add(engine)
            try:
                with engine.busy():
                    async with self._call_engine(engine, call, body) as answer:
                        body = await answer.whole()
            except Lost as error:
                engine.mark_lost(str(error))
                continue
            if answer.status not in RETRIED_STATUSES:
                engine.has_computed(call.keys)
                return kv_transfer_params(body)  # a decode engine reports errors of the request
        return None

    # --- decode

    async def _forward(self, call: Call, send: Any) -> None:
        """Try decode engines in turn and forward the first answer."""
        tried = set[Engine]()
        pause_s = FIRST_PAUSE_S
        refusal: tuple[Answer, bytes] | None = None
        for _ in range(self._rules.retries + 1):
            engine = self._decode.choose(call.keys, tried)
            if engine is None:  # all were tried
                await asyncio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                engine = self._decode.choose_any(call.keys)
            tried.add(engine)
            forwarder = Forwarder(send, partial(engine.has_computed, call.keys))
            try:
                with engine.busy():
                    async with self._call_engine(engine, call, call.body) as answer:
                        if answer.status in RETRIED_STATUSES:
                            refusal = answer, await answer.whole()
                            continue
                        await forwarder.forward(answer, streams=call.streams)
                return
            except Lost as error:
                engine.mark_lost(str(error))
                if forwarder.has_begun:
                    await forwarder.end_broken_stream()
                    return
        if refusal is not None:
            await send_whole(send, *refusal)
            return
        await send_error(
            send,
            HTTPStatus.SERVICE_UNAVAILABLE,
            "no engine answers; retry later.",
            retry_after=b"1",
        )

    def _call_engine(self, engine: Engine, call: Call, body: bytes) -> Any:
        return call_engine(
            engine.address, call.method, call.target, call.headers, body, self._rules.timeout_s
        )

    # --- health

    async def _send_health(self, send: Any) -> None:
        kinds = {"prefill": self._prefill, "decode": self._decode}
        engines_json = {
            kind: [engine.to_json() for engine in engines.all] for kind, engines in kinds.items()
        }
        up = any(engine.is_up for engine in self._decode.all)
        status = HTTPStatus.OK if up else HTTPStatus.SERVICE_UNAVAILABLE
        await send_json(
            send, status, {"status": "ready" if up else "no engine answers", **engines_json}
        )
