"""Several engines of one `AsyncLLM`, and their processes and states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from builtin_plugins.clients.data_parallel.client import DataParallelClient
from core import AsyncLLM


@contextmanager
def running(model: str, size: int = 2, **settings: Any) -> Iterator[AsyncLLM]:
    defaults = {
        "dtype": "float32",
        "max_model_len": 512,
        "kv_cache_memory_bytes": 1 << 25,
        "num_threads": 1,
        "structured_outputs_config": {"warm_up": False},
    }
    engine = AsyncLLM(model, data_parallel_size=size, **{**defaults, **settings})
    try:
        yield engine
    finally:
        engine.shutdown()
        assert size == 1 or not any(child(engine, rank).is_alive for rank in range(size))


def child(engine: AsyncLLM, rank: int) -> Any:
    client = engine._client
    assert isinstance(client, DataParallelClient)
    return client.engines[rank].supervised.child


def states(engine: AsyncLLM) -> list[str]:
    return [each["status"] for each in engine.health()["engines"]]


def restarts(engine: AsyncLLM) -> list[int]:
    return [each["restarts"] for each in engine.health()["engines"]]
