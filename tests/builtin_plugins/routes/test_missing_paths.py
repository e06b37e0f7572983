"""A 404 of a path that other servers have says why it is not served."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from builtin_plugins.features.kv_events.routes import KvEventRoutes
from builtin_plugins.routes.missing.routes import MISSING_PATHS, MissingRoutes
from builtin_plugins.servers.http.app import EngineApp
from core.api.execution import CallAnswer
from core.config import EngineConfig
from core.config.sections import ParallelConfig

ENGINE: Any = SimpleNamespace()


def get(groups: dict[str, Any], path: str, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=EngineApp(groups, options))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.get(path)

    return asyncio.run(send())


@pytest.mark.parametrize("path", MISSING_PATHS)
def test_path_is_not_served_with_a_reason(path: str) -> None:
    for each in (path, f"{path}/", f"{path}/below"):
        reply = get({"missing": MissingRoutes(ENGINE, EngineConfig())}, each)
        assert reply.status_code == 404
        error = reply.json()["error"]
        assert error["code"] == "not_served"
        assert error["message"] == f"{each} is not served: {MISSING_PATHS[path]}."


def test_other_paths_are_not_found() -> None:
    for path in ("/", "/v1", "/v1/audios", "/nothing/at/all"):
        error = get({"missing": MissingRoutes(ENGINE, EngineConfig())}, path).json()["error"]
        assert error["code"] == "not_found", path


def test_reasons_need_the_key_like_every_path() -> None:
    assert (
        get(
            {"missing": MissingRoutes(ENGINE, EngineConfig())}, "/v1/audio", api_key=["a"]
        ).status_code
        == 401
    )


def test_served_paths_have_no_reason_in_the_table(api: Any) -> None:
    served = {getattr(route, "path", "") for route in api.server.app.routes}
    assert served.isdisjoint(MISSING_PATHS)


def test_kv_event_sources_name_the_publisher() -> None:
    config = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5599", "topic": "kv"}
    options = {"kv_events_config": config}
    chain = {"identity": "model", "link_tokens": 16}

    class Engines:
        """Two engines, of which the second one is dead."""

        registry = SimpleNamespace(shared=lambda name, make: make())

        async def call(self, name: str) -> list[CallAnswer]:
            assert name == "kv_events.chain"
            answer = CallAnswer(scheduler=json.dumps(chain).encode())
            return [answer, CallAnswer(engine=1, error="dead", died=True)]

    parallel = ParallelConfig(data_parallel_size=2)
    engines: Any = Engines()
    routes = KvEventRoutes(engines, EngineConfig(parallel=parallel, options=options))
    sources = get({"kv_events": routes}, "/kv_event_sources").json()
    assert [sources[rank]["endpoint"] for rank in "01"] == ["tcp://*:5599", "tcp://*:5600"]
    assert [sources[rank]["topic"] for rank in "01"] == ["kv", "kv"]
    assert sources["0"]["chain"] == chain
    assert "chain" not in sources["1"]
    assert get({"a": KvEventRoutes(ENGINE, EngineConfig())}, "/kv_event_sources").json() == {}
