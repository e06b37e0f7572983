"""WebSocket connections to a server of several models: each message reaches the model it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.server import ServerConnection, unix_serve

from builtin_plugins.commands.serve.models.pool import ModelPool
from builtin_plugins.commands.serve.models.server import ServedPool, route_groups
from builtin_plugins.commands.serve.models.settings import ModelSettings
from builtin_plugins.servers.http.server import HttpServer
from core.config import EngineConfig
from tests.builtin_plugins.commands.test_model_routes import EchoProcess, EchoStarter


class SocketProcess(EchoProcess):
    """A process that answers a message with two events, the first of which has the headers."""

    async def ready(self) -> None:
        self._server: Any = await unix_serve(self._answer_messages, self.address.uds)

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer_messages(self, connection: ServerConnection) -> None:
        number = 0
        async for text in connection:
            number += 1
            if json.loads(text).get("die"):
                await connection.close()
                return
            assert connection.request is not None
            headers = connection.request.headers
            first = {"type": "response.created", "for": headers["x-forwarded-for"]}
            await connection.send(json.dumps(first))
            last = f'{{"type":"response.completed","of":"{self.name}","number":{number}}}'
            await connection.send(last)


class SocketStarter(EchoStarter):
    def start(self, number: int, settings: ModelSettings) -> Any:
        self.processes[settings.name] = SocketProcess(self._folder, settings)
        return self.processes[settings.name]


def test_messages_reach_the_models_they_name_over_one_connection(tmp_path: Path) -> None:
    models = [ModelSettings((name,), name, {}, None) for name in ("one", "two")]
    starter = SocketStarter(tmp_path)
    pool = ModelPool(models, starter, max_loaded=2, max_queue=10)
    config = EngineConfig()
    served: Any = ServedPool(pool)
    app = HttpServer(served, config, route_groups(pool, config)).app

    with TestClient(app) as client:
        with client.websocket_connect("/v1/responses") as socket:
            exchange(socket, pool)
        headers = {"origin": "http://elsewhere"}
        with pytest.raises(WebSocketDisconnect) as refused:
            client.websocket_connect("/v1/responses", headers=headers).__enter__()
        assert refused.value.code == 1008
        for process in starter.processes.values():
            assert client.portal is not None
            client.portal.call(process.stop)


def exchange(socket: WebSocketTestSession, pool: ModelPool) -> None:
    """Send messages, and check the events that come back."""

    def events(message: dict[str, Any], number: int = 2) -> list[dict[str, Any]]:
        socket.send_text(json.dumps(message))
        return [json.loads(socket.receive_text()) for _ in range(number)]

    first, last = events({"model": "one"})
    assert first == {"type": "response.created", "for": "testclient"}
    assert last == {"type": "response.completed", "of": "one", "number": 1}
    assert events({"model": "two"})[1]["of"] == "two"
    assert events({"model": "one"})[1]["number"] == 2, "another connection to the process"
    (error,) = events({"model": "three"}, 1)
    assert (error["type"], error["status"], error["error"]["param"]) == ("error", 404, "model")
    (error,) = events({"model": "one", "die": True}, 1)
    assert (error["status"], error["error"]["code"]) == (503, "engine_dead")
    assert events({"model": "one"})[1]["number"] == 1
    assert [model.num_open for model in pool.models] == [0, 0]
