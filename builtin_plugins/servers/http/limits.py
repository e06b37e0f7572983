"""What one client may take from all others: sizes, times, places. Read once from the options."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from builtin_plugins.servers.http.errors import ErrorAnswer
from core.api import ConfigError

SPARE_FILES: Final = 128
"""Open files the process needs besides connections."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one HTTP server."""

    request_bytes: int
    head_bytes: int
    """Request line and headers."""
    headers: int
    read_timeout_s: float
    """For a request to arrive, its body included."""
    stall_timeout_s: float
    """For a client to read something of what waits for it."""
    connections: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Limits:
        """Read them. Raises `ConfigError` for one that nothing could pass."""
        connections = options.get("max_connections")
        limits = cls(
            request_bytes=options.get("max_request_bytes", 10 * 1024 * 1024),
            head_bytes=options.get("h11_max_incomplete_event_size", 64 * 1024),
            headers=options.get("h11_max_header_count", 256),
            read_timeout_s=options.get("request_read_timeout", 60.0),
            stall_timeout_s=options.get("stream_stall_timeout", 60.0),
            connections=_open_files() if connections is None else connections,
        )
        _check("max_request_bytes", limits.request_bytes, 1, "would refuse every request")
        _check("h11_max_incomplete_event_size", limits.head_bytes, 1024, "would refuse every request")
        _check("h11_max_header_count", limits.headers, 8, "would refuse every request")
        _check("request_read_timeout", limits.read_timeout_s, 0.1, "would cut every request")
        _check("stream_stall_timeout", limits.stall_timeout_s, 0.1, "would cut every stream")
        _check("max_connections", limits.connections, 1, "would refuse every client")
        return limits

    def crowded(self) -> ErrorAnswer:
        """Return what a client is told for whom there is no place."""
        message = f"the server has {self.connections} connections already (--max-connections); come again later."
        headers = {"Retry-After": "1", "Connection": "close"}
        return ErrorAnswer(503, message, "server_error", None, "overloaded", headers)

    def head_too_large(self) -> ErrorAnswer:
        """Return what a client is told whose headers are too long, or too many."""
        message = (
            f"the request's head has more than {self.head_bytes} bytes (--h11-max-incomplete-event-size) or "
            f"{self.headers} headers (--h11-max-header-count)."
        )
        return ErrorAnswer(431, message, "invalid_request_error", None, "head_too_large", {"Connection": "close"})

    def too_slow(self) -> ErrorAnswer:
        """Return what a client is told whose request has not arrived in time."""
        message = f"the request did not arrive within {self.read_timeout_s:g} s (--request-read-timeout)."
        return ErrorAnswer(408, message, "invalid_request_error", None, "request_timeout", {"Connection": "close"})


def _check(name: str, value: float, low: float, why: str) -> None:
    if not value >= low:
        raise ConfigError(f"--{name.replace('_', '-')} {value:g} {why}; give at least {low:g}.")


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else max(16, soft - SPARE_FILES)
