"""`--enable-metrics`: serves `/metrics` while a batch is answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse

from core.api import ConfigError

PATH = "/metrics"


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


@asynccontextmanager
async def metrics_server(app: Any, host: str, port: int) -> AsyncIterator[str]:
    """Serve the metrics of an application; yield their URL. Raises `ConfigError`."""
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--port: got {port} on {host}; expected a free address ({error}). Choose another."
        ) from error

    async def metrics_only(scope: Any, receive: Any, send: Any) -> None:
        answer: Any = app
        if scope["path"] != PATH:
            answer = PlainTextResponse(f"{PATH} is what is served here.\n", 404)
        await answer(scope, receive, send)

    config = uvicorn.Config(metrics_only, log_level="warning", lifespan="off", access_log=False)
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://{host}:{listener.getsockname()[1]}{PATH}"
    finally:
        server.should_exit = True
        await serving
        listener.close()
