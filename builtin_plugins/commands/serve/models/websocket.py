"""`/v1/responses` over a WebSocket: each message goes to the model that it names.

A connection to a model's process lasts as long as the client's, so that responses are continued
there; an idle one does not keep the model loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from fastapi import HTTPException
from starlette.routing import WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import WebSocketException
from websockets.protocol import State

from builtin_plugins.commands.route.proxy import Address
from builtin_plugins.commands.serve.models.forwarding import forwarded_headers, named_model
from builtin_plugins.commands.serve.models.names import ModelNames
from builtin_plugins.commands.serve.models.pool import Model, ModelPool
from builtin_plugins.commands.serve.models.routes import used
from builtin_plugins.routes.api import accept_websocket, error_message, serve_messages
from builtin_plugins.servers.api import ServerActivity
from core.api import EngineConfig

PATH: Final = "/v1/responses"
LAST_EVENTS: Final = tuple(
    f'{{"type":"{kind}"'
    for kind in ("response.completed", "response.incomplete", "response.failed", "error")
)
"""Beginnings of the message that ends a response."""


class SocketRoutes:
    """WebSocket connections of clients."""

    def __init__(self, pool: ModelPool, names: ModelNames, config: EngineConfig) -> None:
        self._pool = pool
        self._names = names
        self._origins = frozenset(config.options.get("allowed_origins") or ())

    def routes(self) -> Sequence[WebSocketRoute]:
        """Return the route."""
        return [WebSocketRoute(PATH, self._connected)]

    async def _connected(self, websocket: WebSocket) -> None:
        if not await accept_websocket(websocket, self._origins):
            return
        async with AsyncExitStack() as links:
            session = _Session(websocket, self._pool, self._names, links)
            await serve_messages(websocket, session.answer)


class _Session:
    """One client's connection, and those to the models that it has named."""

    def __init__(
        self, websocket: WebSocket, pool: ModelPool, names: ModelNames, links: AsyncExitStack
    ) -> None:
        self._websocket = websocket
        self._pool = pool
        self._names = names
        self._stack = links
        self._links: dict[Model, ClientConnection] = {}
        self._activity: ServerActivity = websocket.scope["state"]["server"]

    async def answer(self, message: Message) -> None:
        """Send the events of a response, or an error."""
        self._activity.open_requests += 1
        try:
            await self._answer(message)
        finally:
            self._activity.open_requests -= 1

    async def _answer(self, message: Message) -> None:
        text = message.get("text") or (message.get("bytes") or b"").decode(errors="replace")
        try:
            model = await self._names.find(named_model(text.encode()))
            async with used(self._pool, model) as address:
                await self._relay(await self._link(model, address), text)
        except (HTTPException, WebSocketException, OSError) as error:
            if not isinstance(error, HTTPException):
                detail = {
                    "message": f"the model's process has ended: {error}",
                    "code": "engine_dead",
                }
                error = HTTPException(503, detail)
            scope = self._websocket.scope
            described = scope["state"]["describe"](scope, error)
            await self._websocket.send_text(error_message(described))

    async def _relay(self, link: ClientConnection, text: str) -> None:
        """Send a message to a model's process, and its events to the client."""
        await link.send(text)
        while True:
            event = await link.recv(decode=True)
            await self._websocket.send_text(event)
            if event.startswith(LAST_EVENTS):
                return

    async def _link(self, model: Model, address: Address) -> ClientConnection:
        """Return the connection to a model's process, a new one after it was reloaded."""
        link = self._links.get(model)
        if link is None or link.state is not State.OPEN:
            scope = self._websocket.scope
            own = {"host", "origin", "user-agent"}  # this server has checked the origin
            headers = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in forwarded_headers(scope)
                if not name.startswith(b"sec-websocket-") and name.decode("latin-1") not in own
            ]
            connecting = unix_connect(
                address.uds,
                uri=f"ws://localhost{PATH}",
                additional_headers=headers,
                compression=None,
                max_size=None,
                ping_interval=None,
                proxy=None,
            )
            link = self._links[model] = await self._stack.enter_async_context(connecting)
        return link
