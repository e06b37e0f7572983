"""Several engines of one `AsyncLLM`, and their processes and states."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from builtin_plugins.clients.api import (
    BrokerClient,
    EngineBroker,
    broker_connection,
    messages,
    reading_calls,
)
from builtin_plugins.clients.data_parallel.client import DataParallelClient
from builtin_plugins.commands.serve.api_server import ApiServerLLM
from builtin_plugins.executors.api import TICK_S
from builtin_plugins.executors.process.channel import Channel
from builtin_plugins.executors.process.child import ParentChannel
from core import AsyncLLM
from core.frontend.startup import load_from_kwargs

DEFAULTS: Final[dict[str, Any]] = {
    "dtype": "float32",
    "max_model_len": 512,
    "kv_cache_memory_bytes": 1 << 25,
    "num_threads": 1,
    "structured_outputs_config": {"warm_up": False},
}


@contextmanager
def running(model: str, size: int = 2, **settings: Any) -> Iterator[AsyncLLM]:
    engine = AsyncLLM(model, data_parallel_size=size, **{**DEFAULTS, **settings})
    try:
        yield engine
    finally:
        engine.shutdown()
        assert size == 1 or not any(child(engine, rank).is_alive for rank in range(size))


@contextmanager
def brokered(
    model: str, num_servers: int = 2, **settings: Any
) -> Iterator[tuple[EngineBroker, list[AsyncLLM]]]:
    """Yield the broker of two engines, and API servers in threads of this process."""
    given = {"model": model, "data_parallel_size": 2, **DEFAULTS, **settings}
    broker = EngineBroker(*load_from_kwargs(given))
    with ExitStack() as stack:
        stack.callback(broker.stop)
        broker.wait()
        servers = [stack.enter_context(_api_server(broker, given)) for _ in range(num_servers)]
        yield broker, servers


@contextmanager
def _api_server(broker: EngineBroker, given: dict[str, Any]) -> Iterator[AsyncLLM]:
    parent = Channel.listen(messages.FromApiServer)
    channel = ParentChannel.connect(parent.folder, messages.ToApiServer)
    session = broker.open(parent.send)
    is_open = True

    def receive() -> None:
        while is_open:
            if (message := parent.receive(TICK_S)) is not None:
                broker.receive(session, message)

    thread = threading.Thread(target=receive)
    thread.start()
    config, registry = load_from_kwargs(given)
    reading = reading_calls(registry)
    broker_connection(
        registry, lambda _, __, listener: BrokerClient(channel, listener, bytes, {}, reading)
    )
    server = ApiServerLLM.from_config(config, registry)
    try:
        yield server
    finally:
        server.shutdown()
        is_open = False
        thread.join()
        broker.close(session)
        channel.close()
        parent.close()


def client_of(engine: AsyncLLM) -> DataParallelClient:
    client = engine._client
    assert isinstance(client, DataParallelClient)
    return client


def child(engine: AsyncLLM, rank: int) -> Any:
    return client_of(engine).engines[rank].supervised.child


def states(engine: AsyncLLM) -> list[str]:
    return [each["status"] for each in engine.health()["engines"]]


def restarts(engine: AsyncLLM) -> list[int]:
    return [each["restarts"] for each in engine.health()["engines"]]
