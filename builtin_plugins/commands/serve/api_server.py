"""One of several API servers: a process with a server of its own on the shared port."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from builtin_plugins.clients.api import (
    ABORT,
    OPEN_IDS,
    BrokerClient,
    ForwardingSink,
    broker_connection,
    forward_shared,
    messages,
    reading_calls,
)
from builtin_plugins.commands.serve.serving import serve
from builtin_plugins.metric_sinks.api import process_memory
from builtin_plugins.servers.api import PreservedState
from core import AsyncLLM

if TYPE_CHECKING:
    from builtin_plugins.executors.api import ParentChannel, Start
    from core.api import EngineConfig, Registry
    from core.api.serving import Client, Listener


def run(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Serve until the server stops."""
    channel.expect(messages.Begin)
    begin: messages.Begin = channel.receive()
    memory = partial(_memory, registry, start.process)

    def connect(config: EngineConfig, registry: Registry, listener: Listener) -> Client:
        return BrokerClient(channel, listener, memory, begin.options, reading_calls(registry))

    broker_connection(registry, connect)
    config = replace(start.config, options={**start.config.options, **begin.options})
    parent = BrokerParent(channel, begin, is_first=start.rank == 0)
    status = serve(config, registry, parent, ApiServerLLM, checks=False, prepare=_share_sinks)
    channel.send(messages.Left(status))


def _memory(registry: Registry, process: str) -> bytes:
    return msgspec.json.encode(process_memory(registry, process))


def _share_sinks(engine: AsyncLLM) -> None:
    """Let the broker's metric sinks count what this API server observes."""
    client = _client_of(engine)
    forward_shared(engine.sinks.entries, ForwardingSink(client.send, client.page))


def _client_of(engine: AsyncLLM) -> BrokerClient:
    return cast(BrokerClient, engine._client)


class ApiServerLLM(AsyncLLM):
    """The engines as one of several API servers sees them."""

    def health(self) -> dict[str, Any]:
        """Return the body of `/health`, with the requests of all API servers."""
        client = _client_of(self)
        return super().health() | {
            "running": sum(each.num_running for each in client.stats),
            "waiting": sum(each.num_waiting for each in client.stats),
            "open_requests": client.open_requests,
        }

    def open_ids(self) -> list[str]:
        """Return the ids of unfinished requests, also of other API servers."""
        (answer,) = self._client.call(OPEN_IDS).result()
        ids: list[str] = msgspec.json.decode(answer.scheduler or b"[]")
        return ids

    async def abort(self, request_id: str) -> None:
        """Abort a request, whichever API server has it."""
        if request_id in super().open_ids():
            await super().abort(request_id)
        else:
            await self.call(ABORT, request_id.encode())


class BrokerParent:
    """The `ServerParent` of an API server: the process that has the broker."""

    def __init__(self, channel: ParentChannel, begin: messages.Begin, *, is_first: bool) -> None:
        self._channel = channel
        self._begin = begin
        self._is_first = is_first

    @property
    def restarts(self) -> int:
        """Number of restarts; 0 only in the API server that announces the port."""
        return self._begin.restarts if self._is_first else max(1, self._begin.restarts)

    def preserved(self, name: str) -> PreservedState | None:
        """Return the descriptors that all API servers share under a name."""
        descriptors = self._begin.descriptors.get(name)
        return None if descriptors is None else PreservedState(descriptors=tuple(descriptors))

    def report_serving(self, stand_in: str = "") -> None:
        """Report that this API server accepts connections."""
        self._channel.send(messages.Serving(stand_in))

    def report_drained(self) -> None:
        """Report that the last request has ended."""
        self._channel.send(messages.Drained())
