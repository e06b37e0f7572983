"""A client.

This one lets the engine's own `thread` work and counts what it is asked; reach an engine your way.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from core.api import (
    Client,
    EngineConfig,
    EngineRequest,
    EngineStatus,
    Listener,
    Registry,
    RequestDelta,
    Running,
)


class Acme:
    """Speaks to one engine."""

    def __init__(self, config: EngineConfig, registry: Registry, listener: Listener) -> None:
        self._inner: Client = registry.load(registry.choose("clients", "thread"))(
            config, registry, listener
        )
        self.num_requests = 0
        """Sequences that were asked for."""

    def wait(self) -> Running:
        """Start the engine; return once it takes requests."""
        return self._inner.wait()

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue the sequences of one request."""
        self.num_requests += len(requests)
        return self._inner.add(requests, resumed=resumed)

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """End requests in whatever state they are."""
        return self._inner.abort(request_ids)

    def call(self, name: str, data: bytes = b"") -> Future[list[bytes]]:
        """Ask a feature something."""
        return self._inner.call(name, data)

    def status(self) -> EngineStatus:
        """Say how the engine is."""
        return self._inner.status()

    def stop(self) -> None:
        """End the engine."""
        self._inner.stop()
