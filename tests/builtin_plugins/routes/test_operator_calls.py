"""Operator routes with two engines of which one has not done its call: no route says it is done."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest

from builtin_plugins.features.lora.messages import AdapterRef
from builtin_plugins.features.lora.serving import unload_adapter
from builtin_plugins.routes.operator.routes import OperatorRoutes
from builtin_plugins.servers.http.app import EngineApp
from core.api import EngineError
from core.api.execution import CallAnswer
from core.config import EngineConfig

OPTIONS: Final = {
    "enable_operator_routes": True,
    "enable_sleep_mode": True,
    "profiler_config": {"torch_profiler_dir": "traces"},
    "operator_calls": ["memory.owners"],
}
MAKE_NO_CALL: Final = {
    "/abort_requests",
    "/server_info",
    "/reset_mm_cache",
    "/reset_encoder_cache",
}
DIED: Final = "the engine died before it answered; retry the call."


class Engines:
    """Two engines; the second one answers every call with an error."""

    fields = SimpleNamespace(keys=frozenset())
    registry = SimpleNamespace(plan=SimpleNamespace(plugins=()), shared=lambda name, make: make())
    sinks = SimpleNamespace(entries=())

    def __init__(self, error: CallAnswer) -> None:
        self.error = error
        self.calls: list[str] = []

    def open_ids(self) -> list[str]:
        return []

    async def call(self, name: str, data: bytes = b"") -> list[CallAnswer]:
        self.calls.append(name)
        if name.startswith("profiling."):
            return [CallAnswer(ranks=[b'{"file": "engine0.rank0.json"}']), self.error]
        state = b"0 0" if name.startswith("pausing.") else b"1"
        return [CallAnswer(scheduler=state, ranks=[b"5"]), self.error]

    async def reset_prefix_cache(self) -> bool:
        self.calls.append("reset_prefix_cache")
        return self.error.died


def send(engines: Any, method: str, path: str, **request: Any) -> httpx.Response:
    routes = OperatorRoutes(engines, EngineConfig(options=OPTIONS))

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=EngineApp({"operator": routes}, {}))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.request(method, path, **request)

    return asyncio.run(main())


def paths_with_calls() -> list[tuple[str, str]]:
    """Return the method and the path of each operator route that calls engines."""
    engine: Any = Engines(CallAnswer())
    routes = OperatorRoutes(engine, EngineConfig(options=OPTIONS)).routes()
    return [
        (min(route.methods or set(), key=lambda each: each == "HEAD"), route.path)
        for route in routes
        if route.path not in MAKE_NO_CALL
    ]


@pytest.mark.parametrize("died", [True, False])
@pytest.mark.parametrize(("method", "path"), paths_with_calls())
def test_route_names_the_engine_that_has_not_done_it(method: str, path: str, died: bool) -> None:
    engines = Engines(CallAnswer(engine=1, error=DIED, died=died))
    body = {"json": {"method": "memory.owners"}} if path == "/collective_rpc" else {}
    reply = send(engines, method, path, **body)
    assert engines.calls
    if path == "/collective_rpc":
        assert reply.json()["engines"] == [
            {"engine": 0, "results": ["1", "5"]},
            {"engine": 1, "error": DIED},
        ]
    elif path == "/reset_prefix_cache":  # the successor of a dead engine has an empty cache
        assert reply.status_code == (200 if died else 409)
    else:
        assert reply.status_code >= 400, reply.text
        if died or path not in ("/sleep", "/release_kv_cache_memory"):
            assert f"engine 1: {DIED}" in reply.text.replace("..", ".")


def test_profile_of_one_engine_is_named_where_the_other_has_none() -> None:
    none = CallAnswer(engine=1, ranks=[json.dumps({"error": "no profile is under way"}).encode()])
    reply = send(Engines(none), "POST", "/stop_profile")
    assert reply.status_code == 409
    assert reply.json()["error"]["message"] == (
        "engine 1: no profile is under way. Other engines have written engine0.rank0.json."
    )


def test_adapter_is_unloaded_where_an_engine_died_and_not_where_it_failed() -> None:
    ref = AdapterRef(b"0" * 32, "folder", "name")
    asyncio.run(unload_adapter(Engines(CallAnswer(engine=1, error=DIED, died=True)).call, ref))
    with pytest.raises(EngineError, match=r"engine 1: it failed\. Engines that have done it: 0"):
        asyncio.run(unload_adapter(Engines(CallAnswer(engine=1, error="it failed")).call, ref))
