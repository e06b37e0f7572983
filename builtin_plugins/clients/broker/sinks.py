"""Metric sinks that all API servers share: the broker has them, API servers send statistics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from builtin_plugins.clients.broker.messages import Observed
from builtin_plugins.metric_sinks.api import merge_pages
from core.api import EngineConfig, Registry
from core.api.serving import RateLimitedLogger
from core.api.telemetry import CallStats, HttpStats, RequestStats, TokenStats

log = logging.getLogger(__name__)

SEND_S: Final = 0.1
"""Interval of token statistics, in seconds; those of the deliveries between are joined."""
METHODS: Final = ("tokens", "request", "http", "calls")


def is_shared(sink: Any) -> bool:
    """Return whether one sink counts for all API servers.

    Sinks that need objects of the API server itself have the attribute `per_api_server`.
    """
    return not getattr(sink, "per_api_server", False)


class SharedSinks:
    """The shared metric sinks; a failing one stops nothing."""

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        self._log = RateLimitedLogger(log)
        self.entries: list[SharedSink] = []
        if config.observability.disable_log_stats:
            return
        for each in registry.entries("metric_sinks"):
            sink = registry.make(each, config)[0]
            if is_shared(sink):
                self.entries.append(SharedSink(each.entry.name, sink))

    def call(self, method: str, argument: Any) -> None:
        """Call a method of every sink that has it."""
        for entry in self.entries:
            function = getattr(entry.sink, method, None)
            if function is None:
                continue
            try:
                function(argument)
            except Exception as error:  # noqa: BLE001 - metrics must never stop the engines
                entry.failed(method, error)
                self._log.error(entry.name, f"metric sink {entry.name!r} failed: {error!r}", error)

    def observed(self, message: Observed) -> None:
        """Pass the statistics of an API server on."""
        for method in METHODS:
            stats = getattr(message, method)
            if stats is not None:
                self.call(method, stats)

    def page(self, health: Mapping[str, Any]) -> tuple[bytes, str]:
        """Return the metrics page and its content type; empty without a sink that has one."""
        exposing = [entry for entry in self.entries if hasattr(entry.sink, "expose")]
        return merge_pages(exposing, health) if exposing else (b"", "")


class SharedSink:
    """One sink, and its faults as `/health` reports them."""

    def __init__(self, name: str, sink: Any) -> None:
        self.name = name
        self.sink = sink

    def failed(self, method: str, error: Exception) -> None:
        """Log the fault of a page."""
        log.warning("metric sink %r failed in %s: %r", self.name, method, error)


class ForwardingSink:
    """Takes the place of an API server's shared sinks."""

    def __init__(
        self,
        send: Callable[[Any], None],
        read_page: Callable[[Mapping[str, Any]], tuple[bytes, str]],
    ) -> None:
        self._send = send
        self._read_page = read_page
        self._lock = threading.Lock()
        """Guards the tokens; the page is read in another thread."""
        self._tokens: dict[int, TokenStats] = {}
        """Tokens that are not sent yet, by engine."""
        self._sent_s = 0.0

    def tokens(self, stats: TokenStats) -> None:
        """Add the tokens of a delivery, and send all when it is time."""
        with self._lock:
            joined = self._tokens.get(stats.engine)
            if joined is None:  # a copy: other sinks have the statistics of one delivery
                joined = self._tokens[stats.engine] = TokenStats(0, engine=stats.engine)
            joined.generated_tokens += stats.generated_tokens
            joined.prompt_tokens += stats.prompt_tokens
            joined.cached_tokens += stats.cached_tokens
            joined.first_token_s += stats.first_token_s
            joined.inter_token_s += stats.inter_token_s
        if time.monotonic() >= self._sent_s + SEND_S:
            self._send_tokens()

    def _send_tokens(self) -> None:
        with self._lock:
            self._sent_s = time.monotonic()
            joined = self._tokens
            self._tokens = {}
        for stats in joined.values():
            self._send(Observed(tokens=stats))

    def request(self, stats: RequestStats) -> None:
        """Send a finished request, without fields that are objects of this process."""
        self._send_tokens()
        fields = {name: value for name, value in stats.extra_fields.items() if _is_plain(value)}
        self._send(Observed(request=replace(stats, extra_fields=fields)))

    def http(self, stats: HttpStats) -> None:
        """Send an answered HTTP request."""
        self._send(Observed(http=stats))

    def calls(self, stats: CallStats) -> None:
        """Send the tool calls of an answer."""
        self._send(Observed(calls=stats))

    def expose(self, health: Mapping[str, Any]) -> tuple[bytes, str]:
        """Return the page of the shared sinks, with the sums of all API servers."""
        self._send_tokens()
        return self._read_page(health)


def _is_plain(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except TypeError:
        return False
    return True


def forward_shared(entries: list[Any], sink: ForwardingSink) -> None:
    """Let `sink` take the place of the shared ones among an API server's sinks."""
    shared: Sequence[Any] = [entry for entry in entries if is_shared(entry.sink)]
    if shared:
        shared[0].sink = sink
        entries[:] = [each for each in entries if each is shared[0] or each not in shared]
