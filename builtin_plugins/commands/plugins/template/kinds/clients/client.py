"""A client: connects the frontend to an engine.

This one delegates to the builtin `thread` client and counts the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from core.api import EngineConfig, Registry
from core.api.execution import CallAnswer, EngineRequest, RequestDelta
from core.api.serving import Client, EngineStatus, Listener, Running


class Acme:
    """Client of one engine."""

    def __init__(self, config: EngineConfig, registry: Registry, listener: Listener) -> None:
        self._inner: Client = registry.load(
            registry.choose("clients", "thread", {"data_parallel_size": 1})
        )(config, registry, listener)
        self.num_requests = 0
        """Number of sequences added."""

    def wait(self) -> Running:
        """Start the engine; return once it accepts requests."""
        return self._inner.wait()

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Add the sequences of one request."""
        self.num_requests += len(requests)
        return self._inner.add(requests, resumed=resumed)

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """Abort requests in any state."""
        return self._inner.abort(request_ids)

    def call(self, name: str, data: bytes = b"") -> Future[list[CallAnswer]]:
        """Call a feature extension."""
        return self._inner.call(name, data)

    def status(self) -> EngineStatus:
        """Return the engine status."""
        return self._inner.status()

    def stop(self) -> None:
        """Stop the engine."""
        self._inner.stop()
