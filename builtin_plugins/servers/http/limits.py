"""What one client may take from all others: sizes, times, places. Read once from the options."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from builtin_plugins.servers.http.errors import ErrorAnswer
from core.api import ConfigError

log = logging.getLogger(__name__)

SPARE_FILES: Final = 128
"""Open files the process may need besides connections, where there are many."""
SPARE_CONNECTIONS: Final = 64
"""Beyond the limit, so that probes are still answered; further ones are closed as they come."""
MOST_CONNECTIONS: Final = 2**15
"""Where nobody says how many there may be: idle ones take memory, too."""
FEW_CONNECTIONS: Final = 256
MIB: Final = 2**20


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
    spare_connections: int = SPARE_CONNECTIONS
    """Beyond the limit, for probes."""
    keep_alive_s: float = 75.0
    """For a connection between two requests."""
    bytes_in_flight: int = 256 * MIB
    """Of bodies of all requests that the engine has not got yet."""
    client_bytes: int = 64 * MIB
    """Of one client's."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Limits:
        """Read them. Raises `ConfigError` for one that nothing could pass."""
        connections = options.get("max_connections")
        spare = SPARE_CONNECTIONS
        if connections is None:
            connections, spare = _room()
        request_bytes = options.get("max_request_bytes", 10 * MIB)
        in_flight = options.get("max_bytes_in_flight")
        of_client = options.get("max_client_bytes_in_flight")
        in_flight = max(256 * MIB, 8 * request_bytes) if in_flight is None else in_flight
        limits = cls(
            request_bytes=request_bytes,
            head_bytes=options.get("h11_max_incomplete_event_size", 64 * 1024),
            headers=options.get("h11_max_header_count", 256),
            read_timeout_s=options.get("request_read_timeout", 60.0),
            stall_timeout_s=options.get("stream_stall_timeout", 60.0),
            connections=connections,
            spare_connections=spare,
            keep_alive_s=options.get("timeout_keep_alive", 75.0),
            bytes_in_flight=in_flight,
            client_bytes=max(in_flight // 4, request_bytes) if of_client is None else of_client,
        )
        _check("max_request_bytes", limits.request_bytes, 1, "would refuse every request")
        _check(
            "h11_max_incomplete_event_size", limits.head_bytes, 1024, "would refuse every request"
        )
        _check("h11_max_header_count", limits.headers, 8, "would refuse every request")
        _check("request_read_timeout", limits.read_timeout_s, 0.1, "would cut every request")
        _check("stream_stall_timeout", limits.stall_timeout_s, 0.1, "would cut every stream")
        _check("max_connections", limits.connections, 1, "would refuse every client")
        _check("timeout_keep_alive", limits.keep_alive_s, 0.0, "lies in the past")
        _check(
            "max_client_bytes_in_flight",
            limits.client_bytes,
            request_bytes,
            "is less than --max-request-bytes",
        )
        _check(
            "max_bytes_in_flight",
            limits.bytes_in_flight,
            limits.client_bytes,
            "is less than one client may have",
        )
        return limits

    @property
    def taken_at_once(self) -> int:
        """Connections to take in one turn of the event loop: where files are few, not more than
        there is room for.
        """
        return max(8, min(64, self.spare_connections))

    def crowded(self) -> ErrorAnswer:
        """Return what a client is told for whom there is no place."""
        message = f"the server has {self.connections} connections already (--max-connections); come again later."
        headers = {"Retry-After": "1", "Connection": "close"}
        return ErrorAnswer(503, message, "server_error", None, "overloaded", headers)

    def full(self) -> ErrorAnswer:
        """Return what a client is told while too much of others is on its way."""
        message = f"the server reads {self.bytes_in_flight} bytes of requests at most (--max-bytes-in-flight); try again."
        return ErrorAnswer(503, message, "server_error", None, "overloaded", {"Retry-After": "1"})

    def client_is_full(self) -> ErrorAnswer:
        """Return what a client is told of which too much is on its way already."""
        message = (
            f"requests of one client have {self.client_bytes} bytes at once at most "
            "(--max-client-bytes-in-flight); "
            "wait for some to be read."
        )
        return ErrorAnswer(
            429, message, "rate_limit_error", None, "too_many_bytes", {"Retry-After": "1"}
        )

    def head_too_large(self) -> ErrorAnswer:
        """Return what a client is told whose headers are too long, or too many."""
        message = (
            f"the request's head has more than {self.head_bytes} bytes "
            "(--h11-max-incomplete-event-size) or "
            f"{self.headers} headers (--h11-max-header-count)."
        )
        return ErrorAnswer(
            431, message, "invalid_request_error", None, "head_too_large", {"Connection": "close"}
        )

    def too_slow(self) -> ErrorAnswer:
        """Return what a client is told whose request has not arrived in time."""
        message = (
            f"the request did not arrive within {self.read_timeout_s:g} s (--request-read-timeout)."
        )
        return ErrorAnswer(
            408, message, "invalid_request_error", None, "request_timeout", {"Connection": "close"}
        )


def _check(name: str, value: float, low: float, why: str) -> None:
    if not value >= low:
        raise ConfigError(f"--{name.replace('_', '-')} {value:g} {why}; give at least {low:g}.")


def open_more_files() -> None:
    """Raise this process' limit of open files as far as it may; say so where connections will be
    few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
    connections, _ = _room()
    if connections < FEW_CONNECTIONS:
        log.warning(
            "the limit of open files allows %d connections only; raise it (ulimit -n)", connections
        )


def _room() -> tuple[int, int]:
    """Return how many connections, and how many beyond for probes, the limit of open files allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS, SPARE_CONNECTIONS
    left = max(16, soft - _num_open())
    spare = min(SPARE_CONNECTIONS, left // 4)
    return max(4, min(MOST_CONNECTIONS, left - spare - min(SPARE_FILES, left // 4))), spare


def _num_open() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # no Linux
        return 32
