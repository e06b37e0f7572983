"""Pooling engines with an in-process application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from builtin_plugins.routes.embeddings.routes import PoolingRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.config import EngineConfig
from tests.timeouts import TIMEOUT_S


class Api:
    """One engine's routes."""

    def __init__(self, engine: Any, **options: Any) -> None:
        self.engine = engine
        config = EngineConfig(options=options)
        self.server = HttpServer(engine, config, {"pooling": PoolingRoutes(engine, config)})

    def post(self, path: str, **body: Any) -> httpx.Response:
        return asyncio.run(self.send(path, **body))

    async def send(self, path: str, method: str = "POST", **body: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.server.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=TIMEOUT_S
        ) as client:
            return await client.request(method, path, json=body)

    def good(self, path: str, **body: Any) -> Any:
        """Return the response of a request that must succeed."""
        reply = self.post(path, **body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def refused(self, path: str, **body: Any) -> tuple[str, str]:
        """Return field and message of the error that a request must get."""
        reply = self.post(path, **body)
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        return error["param"], error["message"]


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[AsyncLLM]:
    """Open an engine in this process, small and quiet."""
    usual: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 64,
        "num_threads": 1,
        "log_level": "error",
    }
    engine = AsyncLLM(str(folder), disable_frontend_multiprocessing=True, **(usual | settings))
    try:
        yield engine
    finally:
        engine.shutdown()


def as_sentence_model(folder: Path, **prompts: str) -> None:
    """Write sentence-transformers' files: mean, normalise, named prompts."""
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True})
    )
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
