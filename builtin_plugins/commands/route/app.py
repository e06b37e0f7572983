"""The application: a prompt goes to an engine that computes it, and the request, with what that
says, to one that goes on.

Whatever an engine does not answer is asked of another, as long as the client has heard nothing of
it. An engine for prompts that is lost costs a computation, not the request. Nothing is kept here
but who is up and who has seen what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from builtin_plugins.commands.route.answers import Telling, say_error, send_json, send_whole
from builtin_plugins.commands.route.calls import Call, going_on, of_prompt, offered, splits
from builtin_plugins.commands.route.engines import Engine, Engines
from builtin_plugins.commands.route.prefix import prefix_keys
from builtin_plugins.commands.route.upstream import Answer, Lost, ask

AGAIN: Final = frozenset({429, 500, 502, 503, 504})
"""Answers that another engine may give otherwise."""
FIRST_PAUSE_S: Final = 0.05
"""Before a second try, doubled before each more."""
LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Rules:
    """How engines are asked."""

    retries: int
    health_interval_s: float
    timeout_s: float
    most_request_bytes: int


class Router:
    """ASGI application."""

    def __init__(self, prefill: Engines, decode: Engines, rules: Rules) -> None:
        self._prefill = prefill
        self._decode = decode
        self._rules = rules

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Take what the server hands over."""
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
            await self._say_health(send)
            return
        body = await self._read(receive, send)
        if body is None:
            return
        # A client that leaves takes its request along, wherever that is.
        work = asyncio.ensure_future(self._route(Call.of(scope, body), scope["path"], send))
        left = asyncio.ensure_future(receive())
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        for task in (work, left):
            if not task.done():
                task.cancel()
        await asyncio.gather(left, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            await work

    async def _read(self, receive: Any, send: Any) -> bytes | None:
        """Return the body; None: the client has left, or was refused."""
        pieces = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._rules.most_request_bytes:
                most = f"{self._rules.most_request_bytes} bytes (--max-request-bytes)"
                await say_error(
                    send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {most}."
                )
                return None
            if not message.get("more_body"):
                return b"".join(pieces)

    async def _route(self, call: Call, path: str, send: Any) -> None:
        fields = call.fields()
        if fields is not None:
            call.keys = prefix_keys(fields)
            call.streams = bool(fields.get("stream"))
            if self._prefill and splits(path, fields):
                offer = await self._compute_prompt(call, of_prompt(fields))
                if offer is not None:
                    call.body = going_on(fields, offer)
        await self._pass_on(call, send)

    # --- prompts

    async def _compute_prompt(self, call: Call, body: bytes) -> Mapping[str, Any] | None:
        """Have an engine compute the prompt; return what it says of that, None where none does."""
        tried = set[Engine]()
        while (
            len(tried) <= self._rules.retries
            and (engine := self._prefill.choose(call.keys, tried)) is not None
        ):
            tried.add(engine)
            try:
                with engine.busy(call.keys):
                    async with self._asked(engine, call, body) as answer:
                        said = await answer.whole()
            except Lost as error:
                engine.lost(str(error))
                continue
            if answer.status not in AGAIN:
                return offered(
                    said
                )  # what is wrong with a request, the engine says that gets it as it came
        return None

    # --- what follows

    async def _pass_on(self, call: Call, send: Any) -> None:
        """Ask one engine after the other, and pass on what the first says that answers."""
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
            await send_whole(send, *refusal)
            return
        await say_error(
            send,
            HTTPStatus.SERVICE_UNAVAILABLE,
            "no engine answers; send it again later.",
            retry_after=b"1",
        )

    def _asked(self, engine: Engine, call: Call, body: bytes) -> Any:
        return ask(
            engine.address, call.method, call.target, call.headers, body, self._rules.timeout_s
        )

    # --- health

    async def _say_health(self, send: Any) -> None:
        kinds = {"prefill": self._prefill, "decode": self._decode}
        shown = {
            kind: [engine.shown() for engine in engines.all] for kind, engines in kinds.items()
        }
        up = any(engine.is_up for engine in self._decode.all)
        status = HTTPStatus.OK if up else HTTPStatus.SERVICE_UNAVAILABLE
        await send_json(send, status, {"status": "ready" if up else "no engine answers", **shown})
