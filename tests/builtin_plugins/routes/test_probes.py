"""Probes of a server that has some of the engines."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.probes.routes import ProbeRoutes
from builtin_plugins.servers.http.app import EngineApp
from core.api.execution import CallAnswer
from core.config import EngineConfig
from core.config.sections import ParallelConfig


def health_of(config: EngineConfig, ranks: range, answering: list[int]) -> Any:
    """Return the body of `/health`; the engines of some ranks report a feature."""

    async def call(name: str, data: bytes = b"") -> list[CallAnswer]:
        reports = {rank: {"engine": rank, "infos": {"tier": {"rank": rank}}} for rank in answering}
        return [
            CallAnswer(engine=rank, scheduler=json.dumps(report).encode())
            for rank, report in reports.items()
        ]

    health = {"status": "ready", "engines": [{"status": "ready"} for _ in ranks]}
    registry = SimpleNamespace(shared=lambda name, make: make())
    engine: Any = SimpleNamespace(call=call, health=lambda: health, registry=registry)

    async def send() -> httpx.Response:
        app = EngineApp({"probes": ProbeRoutes(engine, config)}, {})
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.get("/health")

    return asyncio.run(send()).json()


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("answering", [[0, 1], [1], [0]])
def test_health_gives_features_to_the_engine_of_their_rank(
    first: int, answering: list[int]
) -> None:
    options = {
        "data_parallel_hybrid_lb": True,
        "data_parallel_start_rank": first,
        "data_parallel_size_local": 2,
    }
    config = EngineConfig(parallel=ParallelConfig(data_parallel_size=4), options=options)
    ranks = range(first, first + 2)
    health = health_of(config, ranks, [first + index for index in answering])
    features = [engine.get("features") for engine in health["engines"]]
    expected = [{"tier": {"rank": rank}} if rank - first in answering else None for rank in ranks]
    assert features == expected
