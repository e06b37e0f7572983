"""Telemetry: step and request statistics, and metric sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(slots=True)
class StepStats:
    """One engine step."""

    step_s: float
    """Duration in seconds; 0 when no step ran and the numbers describe the
    state after an abort.
    """
    num_running: int
    num_waiting: int
    kv_usage: float
    """Share of KV blocks in use, 0 to 1."""
    computed_tokens: int = 0
    """Positions computed, of prompts and outputs; recomputed ones count
    again.
    """
    cached_tokens: int = 0
    """Prefix cache hits, in tokens."""
    queried_tokens: int = 0
    """Prefix cache queries, in tokens."""
    preemptions: int = 0
    engine: int = 0
    """Rank of the engine among those of its client."""


@dataclass(slots=True)
class TokenStats:
    """Tokens of one engine in one delivery."""

    generated_tokens: int
    prompt_tokens: int = 0
    """Prompt tokens of the requests that received their first token."""
    cached_tokens: int = 0
    """Those prompt tokens that came from the prefix cache."""
    first_token_s: list[float] = field(default_factory=list)
    """Seconds from arrival to first token, for each first token delivered."""
    inter_token_s: list[float] = field(default_factory=list)
    """Seconds since the previous token, for each sequence that had one."""
    engine: int = 0
    """Rank of their engine."""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One finished request: sizes, and times in seconds from its arrival."""

    finish_reason: str
    """"stop", "length", "abort" or "error"."""
    prompt_tokens: int
    generated_tokens: int
    """Sum over all its sequences."""
    e2e_s: float
    """Time to the last token, or to the abort."""
    ttft_s: float | None = None
    """Time to first token; None without a token."""
    queue_s: float | None = None
    """Time until a step first computed it; None if no step did."""
    longest_output: int = 0
    """Tokens of its longest sequence."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    n: int = 1
    """Number of sequences requested."""
    max_tokens: int | None = None
    """Requested bound of generated tokens."""
    request_id: str = ""
    output_token_ids: Sequence[Sequence[int]] = ()
    """Generated tokens of each sequence."""
    extra_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its outputs that features filled."""
    engine: int = 0
    """Rank of its last engine."""
    is_corrupted: bool = False
    """Whether its logits were NaN or infinite."""

    @property
    def counts(self) -> Mapping[str, float]:
        """Counters of features for this request, by name."""
        return self.extra_fields.get("counts") or {}

    @property
    def prefill_s(self) -> float | None:
        """Time from the first step to the first token."""
        if self.ttft_s is None or self.queue_s is None:
            return None
        return self.ttft_s - self.queue_s

    @property
    def decode_s(self) -> float | None:
        """Time from the first token to the last."""
        return None if self.ttft_s is None else self.e2e_s - self.ttft_s

    @property
    def inference_s(self) -> float | None:
        """Time from the first step to the last token."""
        return None if self.queue_s is None else self.e2e_s - self.queue_s


@dataclass(frozen=True, slots=True)
class HttpStats:
    """One answered HTTP request."""

    path: str
    """Path template of the route, such as `/v1/models/{model:path}`; empty
    without a match.
    """
    method: str
    status: int
    duration_s: float
    """Time until the last byte of the answer was passed to the connection."""
    request_id: str = ""
    """The client's `X-Request-Id`."""
    error: str = ""
    """Error message of a rejected request; may repeat the client's input."""


@dataclass(frozen=True, slots=True)
class CallStats:
    """Tool calls in one answer."""

    known: int = 0
    unknown: int = 0
    """Calls of tools that the request does not offer; they are passed on
    unchanged.
    """


class MetricSink(Protocol):
    """Receives statistics. Constructed with (config). A sink that keeps
    raising is quarantined.

    Optional methods: `step(StepStats)`, in the thread that listens to the engine;
    in the event loop's `tokens(TokenStats)`, `http(HttpStats)`, `calls(CallStats)`;
    `ready(config)`, once, with automatic values resolved; from any thread
    `expose(health)`, which returns (body, content type) for `/metrics`, where
    `health` is `ServedEngine.health()`, and `snapshots(health)`, objects for
    `LLM.get_metrics`. Names of metrics are unique over all sinks.
    """

    def request(self, stats: RequestStats) -> None:
        """Record one finished request."""


class MetricRecorder(Protocol):
    """The metric sinks of an engine, as servers and routes see them."""

    @property
    def entries(self) -> Sequence[Any]:
        """The sinks with their fault counts (`sink`, `name`, `owner`, `quarantined`)."""

    def record(self, stats: StepStats | TokenStats | RequestStats | HttpStats | CallStats) -> None:
        """Pass statistics to every healthy sink that has a method for them."""
