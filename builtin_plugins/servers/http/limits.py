"""Limits of requests and connections, read from the options."""

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
"""Open files reserved for uses other than connections."""
SPARE_CONNECTIONS: Final = 64
"""Connections over the limit, for probes; further ones are closed at once."""
MAX_CONNECTIONS: Final = 2**15
"""Default limit of connections: idle ones use memory too."""
FEW_CONNECTIONS: Final = 256
"""Number of connections below which a warning is logged."""
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one HTTP server."""

    request_bytes: int
    head_bytes: int
    """Largest size of request line and headers, in bytes."""
    headers: int
    read_timeout_s: float
    """Timeout to receive a request with its body, in seconds."""
    stall_timeout_s: float
    """Timeout for a client to read something of its answer, in seconds."""
    connections: int
    spare_connections: int = SPARE_CONNECTIONS
    """Further connections for probes."""
    keep_alive_s: float = 75.0
    """Idle time between two requests, in seconds."""
    sse_keep_alive_s: float = 0.0
    """Interval of comments in a silent event stream, in seconds; 0: none."""
    bytes_in_flight: int = 256 * MIB
    """Largest size of all bodies not yet submitted to the engine."""
    client_bytes: int = 64 * MIB
    """Largest size of such bodies of one client."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Limits:
        """Read the options. Raises `ConfigError` for impossible limits.

        Each of several API servers has its share of what one server may have.
        """
        processes = options.get("api_server_count") or 1
        connections = options.get("max_connections")
        spare = SPARE_CONNECTIONS
        if connections is None:
            connections, spare = _default_connections()
        else:  # that of the whole server; the limit of open files is each process's own
            connections = -(-connections // processes)
        request_bytes = options.get("max_request_bytes", 10 * MIB)
        in_flight = options.get("max_bytes_in_flight")
        of_client = options.get("max_client_bytes_in_flight")
        in_flight = max(256 * MIB, 8 * request_bytes) if in_flight is None else in_flight
        of_client = max(in_flight // 4, request_bytes) if of_client is None else of_client
        if processes > 1:
            of_client = max(request_bytes, -(-of_client // processes))
            in_flight = max(of_client, -(-in_flight // processes))
        limits = cls(
            request_bytes=request_bytes,
            head_bytes=options.get("h11_max_incomplete_event_size", 64 * 1024),
            headers=options.get("h11_max_header_count", 256),
            read_timeout_s=options.get("request_read_timeout", 60.0),
            stall_timeout_s=options.get("stream_stall_timeout", 60.0),
            connections=connections,
            spare_connections=spare,
            keep_alive_s=options.get("timeout_keep_alive", 75.0),
            sse_keep_alive_s=options.get("sse_keep_alive_interval", 0.0),
            bytes_in_flight=in_flight,
            client_bytes=of_client,
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
    def accept_batch(self) -> int:
        """Number of connections to accept per event loop iteration; less with few open files."""
        return max(8, min(64, self.spare_connections))

    def too_many_connections(self) -> ErrorAnswer:
        """Return the answer for a connection over the limit."""
        message = (
            f"the server has {self.connections} connections already (--max-connections); "
            "come again later."
        )
        headers = {"Retry-After": "1", "Connection": "close"}
        return ErrorAnswer(503, message, "server_error", None, "overloaded", headers)

    def over_limit(self) -> ErrorAnswer:
        """Return the answer while all clients have too many bytes in flight."""
        message = (
            f"the server reads up to {self.bytes_in_flight} bytes of requests at once "
            "(--max-bytes-in-flight); try again."
        )
        return ErrorAnswer(503, message, "server_error", None, "overloaded", {"Retry-After": "1"})

    def client_over_limit(self) -> ErrorAnswer:
        """Return the answer to a client with too many bytes in flight."""
        message = (
            f"requests of one client have up to {self.client_bytes} bytes at once "
            "(--max-client-bytes-in-flight); wait for some to be read."
        )
        return ErrorAnswer(
            429, message, "rate_limit_error", None, "too_many_bytes", {"Retry-After": "1"}
        )

    def head_too_large(self) -> ErrorAnswer:
        """Return the answer to a head that is too long or has too many headers."""
        message = (
            f"the request's head has more than {self.head_bytes} bytes "
            f"(--h11-max-incomplete-event-size) or {self.headers} headers (--h11-max-header-count)."
        )
        return ErrorAnswer(
            431, message, "invalid_request_error", None, "head_too_large", {"Connection": "close"}
        )

    def too_slow(self) -> ErrorAnswer:
        """Return the answer to a request that did not arrive in time."""
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
    """Raise the process's limit of open files; log a warning if it allows few connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
    connections, _ = _default_connections()
    if connections < FEW_CONNECTIONS:
        log.warning(
            "the limit of open files allows %d connections only; raise it (ulimit -n)", connections
        )


def _default_connections() -> tuple[int, int]:
    """Return the connections, and those for probes, that the limit of open files allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS, SPARE_CONNECTIONS
    left = max(16, soft - _num_open())
    spare = min(SPARE_CONNECTIONS, left // 4)
    return max(4, min(MAX_CONNECTIONS, left - spare - min(SPARE_FILES, left // 4))), spare


def _num_open() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # not Linux
        return 32
