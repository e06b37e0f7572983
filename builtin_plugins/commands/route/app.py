"""The application: a prompt goes to an engine that computes it, and the request, with what that says, to one that goes on.

Whatever an engine does not answer is asked of another, as long as the client has heard nothing of it. An engine for prompts that
is lost costs a computation, not the request. Nothing is kept here but who is up and who has seen what.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from builtin_plugins.commands.route.engines import Engine, Engines
from builtin_plugins.commands.route.prefix import prefix_keys
from builtin_plugins.commands.route.upstream import Answer, Headers, Lost, ask

log = logging.getLogger(__name__)
FIELD: Final = "kv_transfer_params"
SPLIT: Final = frozenset({"/v1/completions", "/v1/chat/completions"})
"""Endpoints whose answers say how another engine goes on."""
AGAIN: Final = frozenset({429, 500, 502, 503, 504})
"""Answers that another engine may give otherwise."""
FIRST_PAUSE_S: Final = 0.05
"""Before a second try, doubled before each more."""
LONGEST_PAUSE_S: Final = 2.0
MOST_ANSWER_BYTES: Final = 1 << 28
WANTED: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
OWN_HEADERS: Final = frozenset(
    (
        b"host", b"content-length", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade",
        b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"expect",
    )
)  # fmt: skip
"""Of one connection, not of what is said over it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How engines are asked."""

    retries: int
    health_interval_s: float
    timeout_s: float
    most_request_bytes: int


@dataclass(slots=True)
class Call:
    """A client's request."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    keys: Sequence[bytes]
    """Of its prompt's beginning."""
    streams: bool


class Router:
    """ASGI application."""

    def __init__(self, prefill: Engines, decode: Engines, rules: Rules) -> None:
        self._prefill, self._decode, self._rules = prefill, decode, rules
        self._watching: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Take what the server hands over."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        every_s = self._rules.health_interval_s
        self._watching = asyncio.gather(self._prefill.watch(every_s), self._decode.watch(every_s))  # type: ignore[assignment]
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._watching.cancel()  # type: ignore[union-attr]
        with suppress(asyncio.CancelledError):
            await self._watching  # type: ignore[misc]
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            await self._say_health(send)
            return
        body = await self._read(receive, send)
        if body is None:
            return
        # A client that leaves takes its request along, wherever that is.
        work, left = (
            asyncio.ensure_future(self._route(_call(scope, body), scope, send)),
            asyncio.ensure_future(receive()),
        )
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        for task in (work, left):
            if not task.done():
                task.cancel()
        await asyncio.gather(left, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            await work

    async def _read(self, receive: Any, send: Any) -> bytes | None:
        """Return the body; None: the client has left, or was refused."""
        pieces, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._rules.most_request_bytes:
                most = f"{self._rules.most_request_bytes} bytes (--max-request-bytes)"
                await _say_error(send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {most}.")
                return None
            if not message.get("more_body"):
                return b"".join(pieces)

    async def _route(self, call: Call, scope: Any, send: Any) -> None:
        fields = _fields(scope, call)
        if fields is not None:
            call.keys, call.streams = prefix_keys(fields), bool(fields.get("stream"))
            if self._prefill and _splits(scope["path"], fields):
                offer = await self._compute_prompt(call, fields)
                if offer is not None:
                    call.body = msgspec.json.encode({**fields, FIELD: offer})
        await self._pass_on(call, send)

    # --- prompts

    async def _compute_prompt(self, call: Call, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Have an engine compute the prompt; return what it says of that, None where none does."""
        asked = {
            name: value for name, value in fields.items() if name not in ("stream_options", "min_tokens", "best_of")
        }
        asked |= {"max_tokens": 1, "stream": False, "n": 1, FIELD: WANTED}
        if "max_completion_tokens" in fields:
            asked["max_completion_tokens"] = 1
        body, tried = msgspec.json.encode(asked), set[Engine]()
        while len(tried) <= self._rules.retries and (engine := self._prefill.choose(call.keys, tried)) is not None:
            tried.add(engine)
            try:
                with engine.busy(call.keys):
                    async with self._asked(engine, call, body) as answer:
                        said = await answer.whole()
            except Lost as error:
                engine.lost(str(error))
                continue
            if answer.status not in AGAIN:
                return _offer(said)  # what is wrong with a request, the engine says that gets it as it came
        return None

    # --- what follows

    async def _pass_on(self, call: Call, send: Any) -> None:
        """Ask one engine after the other, and pass on what the first says that answers."""
        tried, pause_s = set[Engine](), FIRST_PAUSE_S
        refusal: tuple[Answer, bytes] | None = None
        for _ in range(self._rules.retries + 1):
            engine = self._decode.choose(call.keys, tried)
            if engine is None:  # all were tried
                await asyncio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                engine = self._decode.choose_any(call.keys)
            tried.add(engine)
            telling = Telling(send)
            try:
                with engine.busy(call.keys):
                    async with self._asked(engine, call, call.body) as answer:
                        if answer.status in AGAIN:
                            refusal = answer, await answer.whole()
                            continue
                        await telling.all_of(answer, streams=call.streams)
                return
            except Lost as error:
                engine.lost(str(error))
                if telling.has_begun:
                    await telling.broke_off()
                    return
        if refusal is not None:
            await _send_whole(send, *refusal)
            return
        await _say_error(
            send, HTTPStatus.SERVICE_UNAVAILABLE, "no engine answers; send it again later.", retry_after=b"1"
        )

    def _asked(self, engine: Engine, call: Call, body: bytes) -> Any:
        return ask(engine.address, call.method, call.target, call.headers, body, self._rules.timeout_s)

    # --- health

    async def _say_health(self, send: Any) -> None:
        kinds = {"prefill": self._prefill, "decode": self._decode}
        shown = {
            kind: [
                {
                    "url": engine.address.url,
                    "up": engine.is_up,
                    "reason": engine.reason,
                    "open": engine.num_open,
                    "asked": engine.num_asked,
                    "lost": engine.num_lost,
                }
                for engine in engines.all
            ]
            for kind, engines in kinds.items()
        }
        up = any(engine.is_up for engine in self._decode.all)
        status = HTTPStatus.OK if up else HTTPStatus.SERVICE_UNAVAILABLE
        await _send_json(send, status, {"status": "ready" if up else "no engine answers", **shown})


class Telling:
    """An answer on its way to the client."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.has_begun = False
        """The client has heard of it: no other engine can be asked."""

    async def all_of(self, answer: Answer, *, streams: bool) -> None:
        """Pass an answer on: as it comes, or whole, so that one that breaks off can be asked again. Raises `Lost`."""
        if not streams:
            body = await answer.whole()
            self.has_begun = True
            await _send_whole(self._send, answer, body)
            return
        async for piece in answer.pieces:
            if not self.has_begun:
                self.has_begun = True
                await _send_head(self._send, answer)
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        if not self.has_begun:
            await _send_head(self._send, answer)
        await self._send({"type": "http.response.body", "body": b""})

    async def broke_off(self) -> None:
        """End a stream whose engine was lost, so that the client knows that it is not whole."""
        error = _error(
            "the engine was lost in the midst of this answer; send the request again.", HTTPStatus.BAD_GATEWAY
        )
        body = b"data: " + msgspec.json.encode(error) + b"\n\n"
        await self._send({"type": "http.response.body", "body": body})


def _call(scope: Any, body: bytes) -> Call:
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    headers = [(name, value) for name, value in scope["headers"] if name not in OWN_HEADERS]
    return Call(scope["method"].encode(), target, headers, body, (), streams=False)


def _fields(scope: Any, call: Call) -> dict[str, Any] | None:
    """Return what a request says; None: an engine is to say what is wrong with it."""
    if scope["method"] != "POST":
        return None
    try:
        return msgspec.json.decode(call.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _splits(path: str, fields: Mapping[str, Any]) -> bool:
    """Say whether a request is one whose prompt another engine may compute: one prompt, nothing of which is to be shown."""
    if path not in SPLIT or fields.get(FIELD) or fields.get("echo") or fields.get("prompt_logprobs") is not None:
        return False
    prompt = fields.get("prompt", "")
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(each, int) for each in prompt))


def _offer(said: bytes) -> Mapping[str, Any] | None:
    """Return what an answer says of how another engine goes on."""
    try:
        offer = msgspec.json.decode(said).get(FIELD)
    except (msgspec.DecodeError, AttributeError):
        return None
    return offer if isinstance(offer, dict) else None


def _error(message: str, status: HTTPStatus) -> dict[str, Any]:
    return {"error": {"message": message, "type": status.phrase, "param": None, "code": int(status)}}


async def _say_error(send: Any, status: HTTPStatus, message: str, retry_after: bytes = b"") -> None:
    await _send_json(send, status, _error(message, status), [(b"retry-after", retry_after)] if retry_after else ())


async def _send_json(send: Any, status: HTTPStatus, said: Any, headers: Headers = ()) -> None:
    body = msgspec.json.encode(said)
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": int(status), "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def _send_whole(send: Any, answer: Answer, body: bytes) -> None:
    await _send_head(send, answer, [(b"content-length", b"%d" % len(body))])
    await send({"type": "http.response.body", "body": body})


async def _send_head(send: Any, answer: Answer, more: Headers = ()) -> None:
    headers = [(name, value) for name, value in answer.headers if name.lower() not in OWN_HEADERS]
    await send({"type": "http.response.start", "status": answer.status, "headers": [*headers, *more]})
